"""Figures of the locks of this process, and of work that must not be done twice.

The thread of the store writes, any thread reads. No lock is needed: each count is one assignment, and a copy
of the locks that are held is one call that the interpreter does not interrupt.
"""

from bisect import bisect_left
from collections.abc import Callable
from operator import itemgetter
from time import monotonic
from typing import Any

from fuseboard.contract.primitives import (
    LOCK_EDGES_S,
    LOCK_EVENTS,
    MAX_NAMED,
    NAME_LETTERS,
    NAMED_AFTER_S,
    ONCE_EVENTS,
    HeldLock,
    LockCounters,
    OnceCounters,
    Primitives,
)


class Durations:
    """A histogram with the edges ``LOCK_EDGES_S``."""

    __slots__ = ("counts", "longest_s", "record", "total_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(LOCK_EDGES_S) + 1)
        self.total_s = self.longest_s = 0.0
        #: Also gets each duration: the instrument of OpenTelemetry, if it is on.
        self.record: Callable[[float], object] | None = None

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(LOCK_EDGES_S, seconds)] += 1
        self.total_s += seconds
        self.longest_s = max(self.longest_s, seconds)
        if self.record is not None:
            self.record(seconds)


class LockFigures:
    """Figures of the locks of this process."""

    def __init__(self) -> None:
        self.acquired = 0
        #: Acquired, but not by the first question.
        self.waited = 0
        #: Not acquired: another process had the lock for the whole wait.
        self.taken = 0
        self.lost = 0
        #: Not acquired: Redis could not be asked.
        self.unavailable = 0
        #: Not released at the end, because Redis could not be asked.
        self.unreleased = 0
        #: Held for more than ``LONG_HELD_S``.
        self.long_held = 0
        #: How long callers waited, also in vain; how long blocks took.
        self.waits, self.holds = Durations(), Durations()
        #: Token -> name, and since when it is held (monotonic).
        self.held: dict[str, tuple[str, float]] = {}

    def events(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in LOCK_EVENTS}

    def held_now(self) -> list[tuple[str, float]]:
        """Name and age of each lock that is held, the oldest first."""
        now = monotonic()
        every = [(name, now - since) for name, since in list(self.held.values())]
        return sorted(every, key=itemgetter(1), reverse=True)

    @property
    def longest_s(self) -> float:
        """The age of the lock that is held longest now."""
        return max((monotonic() - since for _, since in list(self.held.values())), default=0.0)

    def describe(self) -> dict[str, Any]:
        """Return the figures as JSON, for ``/resilience``."""
        return self.events() | {
            "waited_s": round(self.waits.total_s, 3),
            "held_s": round(self.holds.total_s, 3),
            "longest_held_s": round(self.holds.longest_s, 3),
            "holding": len(self.held),
            "held_now": [
                {"name": name, "held_s": round(age_s, 3)} for name, age_s in self.held_now()[:MAX_NAMED]
            ],
        }


class OnceFigures:
    """Figures of requests with an ``Idempotency-Key``, and of blocks of ``agent.once``."""

    def __init__(self) -> None:
        self.begun = 0
        #: Done before.
        self.replayed = 0
        #: Requests in progress elsewhere.
        self.running = 0
        #: The key belongs to another request.
        self.mismatched = 0
        self.lost = 0
        #: Redis could not be asked, or its memory was almost full.
        self.unavailable = 0
        #: Done before, and no key opens the kept answer: the key is missing, or another service wrote it.
        self.unsealed = 0

    def events(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in ONCE_EVENTS}


class PrimitiveFigures:
    """The figures of one run of an agent."""

    def __init__(self) -> None:
        self.locks, self.once = LockFigures(), OnceFigures()

    def wire(self) -> Primitives:
        """Return the figures for a heartbeat."""
        locks = self.locks
        held = locks.held_now()
        named = [one for one in held[:MAX_NAMED] if one[1] >= NAMED_AFTER_S]
        return Primitives(
            locks=LockCounters(
                **locks.events(),
                waited_ms=round(locks.waits.total_s * 1000),
                held_ms=round(locks.holds.total_s * 1000),
            ),
            once=OnceCounters(**self.once.events()),
            holding=len(held),
            longest_ms=round(held[0][1] * 1000) if held else 0,
            held=tuple(
                HeldLock(name=name[:NAME_LETTERS], held_ms=round(age_s * 1000)) for name, age_s in named
            ),
        )

    def describe(self) -> dict[str, Any]:
        return {"locks": self.locks.describe(), "once": self.once.events()}
