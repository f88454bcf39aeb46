"""The content of the page of locks: who holds which lock for how long, and what became of locks lately."""

from dataclasses import dataclass

from controlplane.alerts.rules.thresholds import LOCK_HELD_S
from controlplane.status.locks import WINDOW_S, HeldLock, LocksStatus, PodLocks

#: Rows of a table: the others are counted.
MAX_ROWS = 100


@dataclass(frozen=True, kw_only=True)
class LockPodRow(PodLocks):
    """The locks of one pod, or of all pods together."""

    name: str

    @property
    def hot(self) -> bool:
        return any(self.locks.get(name) for name in ("lost", "unavailable", "unreleased"))

    @property
    def once_hot(self) -> bool:
        return any(self.once.get(name) for name in ("lost", "unavailable", "unsealed"))

    @property
    def mean_wait_s(self) -> float | None:
        """The mean over all attempts. An attempt has also waited if another process got the lock first."""
        attempts = self.locks.get("acquired", 0) + self.locks.get("taken", 0)
        return self.locks.get("waited_ms", 0) / 1000 / attempts if attempts else None


@dataclass(frozen=True, kw_only=True)
class LocksPage:
    held: tuple[HeldLock, ...]
    holding: int
    #: The sum of several pods first, then those with failures.
    pods: tuple[LockPodRow, ...]
    #: Pods that use an idempotency key or ``agent.once``.
    once: tuple[LockPodRow, ...]
    #: Pods without a row.
    more: int
    without: tuple[str, ...]
    minutes: int = round(WINDOW_S / 60)
    #: A lock that is held for longer is marked.
    long_s: float = LOCK_HELD_S

    @property
    def unnamed(self) -> int:
        return max(0, self.holding - len(self.held))


def locks_page(status: LocksStatus) -> LocksPage:
    pods = [LockPodRow(**vars(one), name=server.name) for server, one in status.pods]
    fleet = LockPodRow(name="", locks=status.locks, once=status.once, holding=status.holding)
    return LocksPage(
        held=status.held[:MAX_ROWS],
        holding=status.holding,
        pods=_with_sum(fleet, [row for row in pods if row.locks or row.holding]),
        once=_with_sum(fleet, [row for row in pods if row.once]),
        more=max(0, len(pods) - MAX_ROWS),
        without=status.without,
    )


def _with_sum(fleet: LockPodRow, rows: list[LockPodRow]) -> tuple[LockPodRow, ...]:
    return (fleet, *rows[:MAX_ROWS]) if len(rows) > 1 else tuple(rows)
