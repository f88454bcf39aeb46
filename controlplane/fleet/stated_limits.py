"""Reports of pods about the limits of vendors: the numbers that answers state, and those that pods follow.

One pod alone moves nothing, if there are several: it may lie, or use another key.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from controlplane.fleet.models import Server, ServerState

#: Rows of pods that are read.
MAX_PODS = 2_000
_RUNNING = (ServerState.ONLINE, ServerState.LATE)

#: A newer gateway may store more.
_FIGURES = 9

#: A dependency and a limit of it.
Key = tuple[str, str]


@dataclass(frozen=True)
class PodSeen:
    """One pod and one limit; see ``fuseboard.contract.sync.SeenLimit``."""

    pod: str
    said: int = 0
    followed: int = 0
    answers: int = 0
    #: When the vendor first stated ``said``, in unix seconds.
    since: float = 0.0
    left: int | None = None
    sent: int = 0
    refused: int = 0
    blocked: int = 0
    others: int = 0


@dataclass(frozen=True)
class Stated:
    #: The vendor's number, for the window of the limit.
    number: int
    #: The pods to which the vendor has stated it, and those to which it has stated any number.
    pods: int
    of: int
    #: Answers of the vendor to these pods, and since when.
    answers: int = 0
    since: float = 0.0


def seen_limits(environment: str, dependency: str = "") -> dict[Key, list[PodSeen]]:
    """Dependency and limit -> what each running pod reports of it; only one dependency, if it is given."""
    found: dict[Key, dict[str, PodSeen]] = {}
    rows = Server.objects.filter(environment=environment, state__in=_RUNNING).exclude(seen=[])
    for pod, seen in rows.order_by("name").values_list("name", "seen")[:MAX_PODS]:
        for name, limit, *figures in seen:
            if not dependency or name == dependency:
                # A pod that names a limit twice has one vote.
                found.setdefault((name, limit), {})[pod] = PodSeen(pod, *figures[:_FIGURES])
    return {key: list(pods.values()) for key, pods in found.items()}


def agreed(pods: Collection[PodSeen]) -> Stated | None:
    """The number that most pods report.

    At least two pods and half of them must report it, unless only one has recorded any.
    """
    numbers = Counter(one.said for one in pods if one.said)
    if not numbers:
        return None
    number, votes = min(numbers.items(), key=lambda item: (-item[1], item[0]))
    of = numbers.total()
    if of > 1 and (votes < 2 or 2 * votes < of):
        return None
    same = [one for one in pods if one.said == number]
    # Not the first of several: one pod may report any age.
    since = sorted(one.since for one in same if one.since)[:2]
    return Stated(number, votes, of, sum(one.answers for one in same), since[-1] if since else 0.0)


def applied(pods: Collection[PodSeen]) -> int:
    """The number that pods apply instead of the configured one; 0 for none.

    The lowest one. Of several pods that make calls, at least two must apply as little.
    """
    lowest = sorted(one.followed for one in pods if one.followed)
    several = sum(bool(one.followed or one.said or one.sent) for one in pods) > 1
    return lowest[several] if len(lowest) > several else 0


def without_the_worst(numbers: Collection[int]) -> int:
    """Their sum, in which the largest of several counts as much as the second one."""
    ordered = sorted(numbers, reverse=True)
    return sum(ordered) - ordered[0] + ordered[1] if len(ordered) > 1 else sum(ordered)


def stated_limits(environment: str) -> dict[Key, Stated]:
    """Dependency and limit -> the number that most pods report."""
    found = {key: agreed(pods) for key, pods in seen_limits(environment).items()}
    return {key: stated for key, stated in found.items() if stated is not None}


def followed_limits(environment: str) -> Mapping[Key, int]:
    """Dependency and limit -> the number that pods apply instead of the configured one."""
    found = {key: applied(pods) for key, pods in seen_limits(environment).items()}
    return {key: number for key, number in found.items() if number}
