"""The locks of the fleet, and its work that must not be done twice, as pods report them."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from controlplane.status.facts import Facts, Server

#: Counts of a row are of about this time.
WINDOW_S = 600.0
#: Fewer attempts say nothing about a share of them.
MIN_ATTEMPTS = 20


@dataclass(frozen=True, kw_only=True)
class PodLocks:
    """The report of one pod. Counts are of about ``WINDOW_S``."""

    #: Fields of ``fuseboard.contract.primitives.LockCounters`` and ``OnceCounters``; 0 is left out.
    locks: Mapping[str, int] = field(default_factory=dict)
    once: Mapping[str, int] = field(default_factory=dict)
    #: Locks that it holds, and since when it holds the one that it holds longest.
    holding: int = 0
    longest_since: float | None = None
    #: Name, and since when it is held: those that are held longest.
    held: tuple[tuple[str, float], ...] = ()

    @property
    def used(self) -> bool:
        return bool(self.locks or self.once or self.holding)

    @property
    def lost(self) -> int:
        return self.locks.get("lost", 0) + self.once.get("lost", 0)

    @property
    def unavailable(self) -> int:
        """Attempts that ended because Redis could not be asked."""
        return self.locks.get("unavailable", 0) + self.once.get("unavailable", 0)

    @property
    def attempts(self) -> int:
        """Attempts to get a lock or to begin work, but for those that others kept from it."""
        return self.locks.get("acquired", 0) + self.once.get("begun", 0) + self.unavailable


@dataclass(frozen=True, kw_only=True)
class HeldLock:
    name: str
    pod: str
    service: str
    since: float
    held_s: float


@dataclass(frozen=True, kw_only=True)
class LocksStatus:
    #: The pods that report, and use locks or idempotency, those with failures first.
    pods: tuple[tuple[Server, PodLocks], ...]
    #: All of them together.
    locks: Mapping[str, int]
    once: Mapping[str, int]
    #: Locks that live pods name, the longest held first; and how many they hold.
    held: tuple[HeldLock, ...]
    holding: int
    #: Live pods whose agent does not report locks.
    without: tuple[str, ...]
    #: Live pods that lost one, or could not ask Redis.
    losing: tuple[str, ...]
    failing: tuple[str, ...]
    lost: int
    unavailable: int
    attempts: int
    now: float

    @property
    def longest_s(self) -> float:
        """Seconds since which the longest held lock is held, named or not; 0 for none."""
        since = [one.longest_since for _, one in self.pods if one.longest_since is not None]
        return max(0.0, self.now - min(since)) if since else 0.0

    @property
    def longest_pod(self) -> str:
        found = [(one.longest_since, pod.name) for pod, one in self.pods if one.longest_since is not None]
        return min(found)[1] if found else ""

    @property
    def failed_share(self) -> float:
        """Part of the attempts that ended because Redis could not be asked; 0 for few attempts."""
        return self.unavailable / self.attempts if self.attempts >= MIN_ATTEMPTS else 0.0


def pod_locks(document: dict[str, Any] | None) -> PodLocks | None:
    """From the column of a pod; ``None`` for one that does not report."""
    if document is None:
        return None
    return PodLocks(
        locks=document.get("locks", {}),
        once=document.get("once", {}),
        holding=document.get("holding", 0),
        longest_since=document.get("longest_since"),
        held=tuple((name, since) for name, since in document.get("held", ())),
    )


def locks_status(facts: Facts) -> LocksStatus:
    reporting = [
        (pod, found) for pod in facts.live_servers if (found := pod_locks(pod.primitives)) is not None
    ]
    used = [one for one in reporting if one[1].used]
    locks: Counter[str] = Counter()
    once: Counter[str] = Counter()
    for _, one in used:
        locks.update(one.locks)
        once.update(one.once)
    held = [
        HeldLock(
            name=name, pod=pod.name, service=pod.service, since=since, held_s=max(0.0, facts.now - since)
        )
        for pod, one in used
        for name, since in one.held
    ]
    return LocksStatus(
        pods=tuple(sorted(used, key=_rank)),
        locks=locks,
        once=once,
        held=tuple(sorted(held, key=lambda lock: (lock.since, lock.pod, lock.name))),
        holding=sum(one.holding for _, one in used),
        without=tuple(pod.name for pod in facts.live_servers if pod.primitives is None),
        losing=tuple(pod.name for pod, one in used if one.lost),
        failing=tuple(pod.name for pod, one in used if one.unavailable),
        lost=sum(one.lost for _, one in used),
        unavailable=sum(one.unavailable for _, one in used),
        attempts=sum(one.attempts for _, one in used),
        now=facts.now,
    )


def _rank(one: tuple[Server, PodLocks]) -> tuple[int, int, int, str]:
    pod, found = one
    return -found.lost, -found.unavailable, -found.locks.get("taken", 0), pod.name
