"""Reports of pods about the limits of vendors: the numbers that answers state, and those that pods follow.

One pod alone moves nothing, if there are several: it may lie, or use another key. All that judges reports
asks this module what they prove.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from controlplane.fleet.models import Server, ServerState

#: Rows of pods that are read.
MAX_PODS = 2_000
_RUNNING = (ServerState.ONLINE, ServerState.LATE)
#: Fewer pods, or fewer answers or refusals, are no evidence.
MIN_PODS = 2
MIN_ANSWERS = 20
#: Pods count what became of their calls over this time.
LATELY_S = 600

#: A newer gateway may store more.
_FIGURES = 11

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
    #: The present and the lowest time of the calls of all pods, where the limit follows it.
    took_ms: int = 0
    lowest_ms: int = 0

    @property
    def is_witness(self) -> bool:
        """Whether it calls the dependency: a pod that does not has nothing to say about it."""
        return bool(self.followed or self.said or self.sent or self.blocked)


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

    @property
    def is_proven(self) -> bool:
        """Whether enough pods and answers state it to act on it."""
        return self.pods >= MIN_PODS and self.answers >= MIN_ANSWERS


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

    At least two pods and half of those with a number must report it, unless only one pod makes calls.
    """
    numbers = Counter(one.said for one in pods if one.said)
    if not numbers:
        return None
    number, votes = min(numbers.items(), key=lambda item: (-item[1], item[0]))
    of = numbers.total()
    if votes < least_pods(pods) or 2 * votes < of:
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
    needed = least_pods(pods)
    return lowest[needed - 1] if len(lowest) >= needed else 0


def least_pods(pods: Iterable[PodSeen]) -> int:
    """How many pods must report the same: one is enough if no other one makes calls."""
    return min(MIN_PODS, max(1, sum(one.is_witness for one in pods)))


def without_the_worst(numbers: Collection[int]) -> int:
    """Their sum, in which the largest of several counts as much as the second one."""
    ordered = sorted(numbers, reverse=True)
    return sum(ordered) - ordered[0] + ordered[1] if len(ordered) > 1 else sum(ordered)


def proven(numbers: Collection[int], *, least: int = MIN_PODS) -> int:
    """Return what the numbers of several pods prove, without the worst; 0 for too few pods, or too little."""
    if sum(number > 0 for number in numbers) < least:
        return 0
    found = without_the_worst(numbers)
    return found if found >= MIN_ANSWERS else 0


def refused_calls(pods: Collection[PodSeen], *, least: int = MIN_PODS) -> tuple[int, int]:
    """Return the calls that the vendor refuses, as far as several pods prove it, and of how many calls."""
    refused, sent = _weighed(pods)
    return proven(refused, least=least), sent


def _weighed(pods: Collection[PodSeen]) -> tuple[list[int], int]:
    """The refused calls of each pod with any, and the calls of all pods.

    As in ``learn.lua`` of the agent, the calls of a pod count at most twice what the others make on average:
    one pod alone can neither invent refusals nor hide those of the others.
    """
    callers = [one for one in pods if one.sent]
    every = sum(one.sent for one in callers)
    refused, sent = [], 0
    for one in callers:
        most = 2 * (every - one.sent) // max(1, len(callers) - 1) if len(callers) > 1 else every
        kept = min(one.sent, most)
        sent += kept
        refused.append(min(one.refused, one.sent) * kept // one.sent)
    return [number for number in refused if number], sent


def others_share(pods: Collection[PodSeen], limit: int, window_s: int, *, least: int = MIN_PODS) -> float:
    """The part of a limit that others with the same key use, as far as several pods prove it."""
    may = limit * LATELY_S / window_s
    return min(1.0, proven([one.others for one in pods], least=least) / may) if may > 0 else 0.0


def stated_limits(environment: str) -> dict[Key, Stated]:
    """Dependency and limit -> the number that most pods report."""
    found = {key: agreed(pods) for key, pods in seen_limits(environment).items()}
    return {key: stated for key, stated in found.items() if stated is not None}


def followed_limits(environment: str) -> Mapping[Key, int]:
    """Dependency and limit -> the number that pods apply instead of the configured one."""
    found = {key: applied(pods) for key, pods in seen_limits(environment).items()}
    return {key: number for key, number in found.items() if number}
