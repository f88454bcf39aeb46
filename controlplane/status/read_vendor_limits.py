"""Reads which limits follow their vendor far down, and which pod is refused more than the others."""

from collections.abc import Collection, Mapping
from typing import Any

from controlplane.fleet.stated_limits import Key, PodSeen, applied, seen_limits
from controlplane.policies.models import VendorLimit
from controlplane.status.watched import FollowedLimit, OddPod

#: Fewer refusals of a pod are noise, and so are pods with fewer calls.
MIN_REFUSED = 20
MIN_CALLS = 20
#: A pod is compared with at least this number of others.
MIN_OTHERS = 2


def read_vendor_limits(environment: str) -> dict[str, Any]:
    """The fields of ``Watched`` about limits of vendors."""
    seen = seen_limits(environment)
    return {"followed": _followed(environment, seen), "odd_pods": odd_pods(seen)}


def _followed(environment: str, seen: Mapping[Key, Collection[PodSeen]]) -> tuple[FollowedLimit, ...]:
    numbers = {key: number for key, pods in seen.items() if (number := applied(pods))}
    if not numbers:
        return ()
    rows = VendorLimit.objects.filter(dependency__environment=environment).select_related("dependency")
    return tuple(
        FollowedLimit(dependency=row.dependency.name, limit=row.name, number=number, configured=row.limit)
        for row in rows.order_by("dependency__name", "name")
        if 0 < (number := numbers.get((row.dependency.name, row.name), 0)) < row.limit
    )


def odd_pods(seen: Mapping[Key, Collection[PodSeen]]) -> tuple[OddPod, ...]:
    """The pod that each vendor refuses most often, if there are others to compare it with."""
    by_dependency: dict[str, dict[str, PodSeen]] = {}
    for (dependency, _), pods in seen.items():
        # Each row of a pod has the figures of all its calls to the dependency.
        by_dependency.setdefault(dependency, {}).update((one.pod, one) for one in pods)
    found = []
    for dependency, reports in sorted(by_dependency.items()):
        callers = [one for one in reports.values() if one.sent >= MIN_CALLS]
        refused = [one for one in callers if one.refused >= MIN_REFUSED]
        if len(callers) <= MIN_OTHERS or not refused:
            continue
        worst = max(refused, key=lambda one: (_share(one), one.pod))
        others = [one for one in callers if one.pod != worst.pod]
        found.append(
            OddPod(
                dependency=dependency,
                pod=worst.pod,
                refused=min(worst.refused, worst.sent),
                sent=worst.sent,
                others=len(others),
                others_refused=sum(min(one.refused, one.sent) for one in others),
                others_sent=sum(one.sent for one in others),
            )
        )
    return tuple(found)


def _share(one: PodSeen) -> float:
    return min(one.refused, one.sent) / one.sent
