"""The limits of one vendor, and all that is known of them: for the page of the dependency, and the API."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from statistics import median_low

from controlplane.fleet.stated_limits import (
    PodSeen,
    agreed,
    applied,
    least_pods,
    others_share,
    proven,
    refused_calls,
    seen_limits,
)
from controlplane.policies.document import environment_of, tuning_of
from controlplane.policies.limits import LimitColumns
from controlplane.policies.models import Dependency, VendorLimit
from controlplane.suggestions.edits import present_suggestions
from controlplane.suggestions.models import Suggestion
from controlplane.suggestions.spent_limits import spent_limits
from fuseboard.contract.words import Algorithm


@dataclass(frozen=True, kw_only=True)
class LearnedLimit:
    """One limit of a vendor."""

    name: str
    measure: str
    algorithm: str
    window_s: int
    configured: int
    #: 1 unless it is a token bucket.
    burst: int
    #: The number that pods apply instead; ``None`` for none.
    followed: int | None
    #: Spent in the counter of the fleet; ``None`` if it cannot be read.
    spent: int | None
    #: The number of the vendor on which pods agree, how many do, of those that have recorded any.
    stated: int | None
    stated_by: int
    stated_of: int
    answers: int
    since: datetime | None
    #: The vendor stated last that this is left.
    left: int | None
    #: Charged here in the last 10 minutes because the vendor had less left: spent by others.
    others: int
    #: The part of the limit that this is, as far as several pods prove it.
    others_share: float
    #: Budgets of calendar periods keep their number, and a shadow refuses nothing.
    can_follow: bool
    #: The present and the lowest time of calls, where the limit follows it.
    took_ms: int | None
    lowest_ms: int | None

    @property
    def applied(self) -> int:
        return self.configured if self.followed is None else self.followed

    @property
    def share(self) -> float | None:
        return self.spent / self.applied if self.spent is not None and self.applied else None

    @property
    def is_slots(self) -> bool:
        return self.algorithm == Algorithm.CONCURRENCY


@dataclass(frozen=True, kw_only=True)
class Learned:
    dependency: str
    #: How far limits follow their vendor, in percent of the configured number; 0 for not at all.
    floor_percent: int
    #: Calls of the last 10 minutes, those that the vendor refused because of a limit, and those that our
    #: limits refused: as pods report them.
    sent: int
    refused: int
    blocked: int
    #: The part that the vendor refuses, and the calls that our limits refuse: what several pods prove.
    refused_share: float
    proven_blocked: int
    #: Only one pod makes calls, so that no other one can prove what it reports.
    is_one_pod: bool
    limits: Sequence[LearnedLimit]
    suggestions: Sequence[Suggestion]


def read_learned(environment: str, dependency: str) -> Learned:
    """Raises ``NotFound`` for an unknown environment. An unknown dependency has no limits."""
    row = environment_of(environment)
    slug = row.slug
    found = Dependency.objects.filter(environment=row, name=dependency)
    rows = list(VendorLimit.objects.filter(dependency__in=found).order_by("name"))
    return learned_of(
        dependency,
        rows,
        {limit: pods for (_, limit), pods in seen_limits(slug, dependency).items()},
        floor_percent=tuning_of(row).vendor_floor_percent,
        spent=spent_limits(slug, dependency, rows),
        suggestions=present_suggestions(slug, dependency),
    )


def learned_of(
    dependency: str,
    limits: Collection[LimitColumns],
    seen: Mapping[str, Collection[PodSeen]],
    *,
    floor_percent: int = 0,
    spent: Mapping[str, int],
    suggestions: Sequence[Suggestion] = (),
) -> Learned:
    """``seen`` has what pods report, by limit."""
    # Each row of a pod has the figures of all its calls to the dependency.
    pods = {one.pod: one for reported in seen.values() for one in reported}.values()
    least = least_pods(pods)
    refused, sent = refused_calls(pods, least=least)
    return Learned(
        dependency=dependency,
        floor_percent=floor_percent,
        sent=sum(one.sent for one in pods),
        refused=sum(min(one.refused, one.sent) for one in pods),
        blocked=sum(one.blocked for one in pods),
        refused_share=min(1.0, refused / sent) if sent else 0.0,
        proven_blocked=proven([one.blocked for one in pods], least=least),
        is_one_pod=least == 1,
        limits=[_limit(limit, seen.get(limit.name, ()), spent, least) for limit in limits],
        suggestions=suggestions,
    )


def _limit(
    limit: LimitColumns, pods: Collection[PodSeen], spent: Mapping[str, int], least: int
) -> LearnedLimit:
    stated, followed = agreed(pods), applied(pods)
    paces = sorted((one.took_ms, one.lowest_ms) for one in pods if one.lowest_ms)
    took_ms, lowest_ms = paces[(len(paces) - 1) // 2] if paces else (None, None)
    left = [one.left for one in pods if one.left is not None and stated and one.said == stated.number]
    return LearnedLimit(
        name=limit.name,
        measure=limit.measure,
        algorithm=limit.algorithm,
        window_s=limit.window_s,
        configured=limit.limit,
        burst=limit.burst,
        followed=followed if 0 < followed < limit.limit else None,
        spent=spent.get(limit.name),
        stated=stated.number if stated else None,
        stated_by=stated.pods if stated else 0,
        stated_of=stated.of if stated else 0,
        answers=stated.answers if stated else 0,
        since=datetime.fromtimestamp(stated.since, UTC) if stated and stated.since else None,
        left=median_low(left) if left else None,
        others=sum(one.others for one in pods),
        others_share=others_share(pods, limit.limit, limit.window_s, least=least),
        can_follow=limit.algorithm != Algorithm.FIXED_WINDOW and not limit.shadow,
        # 0 while no call has ended lately.
        took_ms=took_ms or None,
        lowest_ms=lowest_ms,
    )
