"""Remembered refusals, by counter.

A pod answers from memory while Redis would surely refuse again. What the pod itself does changes the end of a
refusal: a grant, a lease or a settled cost makes it later, what goes back makes it earlier. So the pod
asks Redis again while such a question about the counter is under way, and forgets the refusal when the
answer comes.
"""

from collections.abc import Iterable
from math import inf
from time import monotonic
from typing import Protocol

from msgspec import Struct

from fuseboard.contract.words import Reason

#: When there are more, all are forgotten: asking Redis once too often is always right.
MAX_REMEMBERED = 20_000

#: Redis is asked about a spent limit again after this time, however long the limit stays spent. Any pod may
#: correct an estimate that was too high, and a budget must not count as spent until midnight because of it.
DENIAL_MEMORY_S = 1.0


class Denial(Struct):
    """A refusal, and how long it applies. Times are monotonic seconds."""

    reason: Reason
    rule: str
    until: float
    #: Redis is asked again from this time on: what was spent may have been given back.
    believed_until: float = inf

    def left_s(self, now: float) -> float:
        """How long it still applies; 0 when it has ended, or when Redis should be asked again."""
        return max(0.0, self.until - now) if now < self.believed_until else 0.0


class Refusable(Protocol):
    """A demand that remembers its last refusal."""

    keys: tuple[bytes, ...]
    denial: Denial | None


class RememberedRefusals:
    """The refusals that one pod remembers. Domains share them: different domains may charge one counter."""

    __slots__ = ("_changing", "_last_end", "_size", "by_counter")

    def __init__(self) -> None:
        #: Read by each grant, which has nothing to do while it is empty.
        self.by_counter: dict[bytes, set[Refusable]] = {}
        self._size = 0
        #: When the last of them ends; monotonic seconds.
        self._last_end = 0.0
        #: Counters that questions under way may charge or refund, with the number of these questions.
        self._changing: dict[bytes, int] = {}

    def remember(self, demand: Refusable, reason: Reason, rule: str, until: float) -> None:
        """``demand`` was refused until then (monotonic seconds), or until one of its counters changes."""
        if self._size >= MAX_REMEMBERED:
            self.forget(tuple(self.by_counter))
        denial = demand.denial = Denial(reason, rule, until, monotonic() + DENIAL_MEMORY_S)
        self._last_end = max(self._last_end, min(until, denial.believed_until))
        for key in demand.keys:
            refused = self.by_counter.setdefault(key, set())
            before = len(refused)
            refused.add(demand)
            self._size += len(refused) - before

    def left_s(self, demand: Refusable) -> float:
        """How long the remembered refusal still applies; 0 when Redis should be asked."""
        if demand.denial is None:
            return 0.0
        left_s = demand.denial.left_s(monotonic())
        if left_s <= 0:
            self.drop(demand)
        elif self._changing and any(key in self._changing for key in demand.keys):
            return 0.0
        return left_s

    def changing(self, counters: Iterable[bytes]) -> None:
        """A question that may charge or refund these counters was sent. ``changed`` follows."""
        changing = self._changing
        for key in counters:
            changing[key] = changing.get(key, 0) + 1

    def changed(self, counters: Iterable[bytes]) -> None:
        """That question was answered, or its connection is lost."""
        changing = self._changing
        for key in counters:
            if changing[key] > 1:
                changing[key] -= 1
            else:
                del changing[key]

    def forget(self, counters: Iterable[bytes]) -> None:
        """These counters were charged or refunded."""
        if monotonic() >= self._last_end:
            # All have ended. Otherwise those of demands that do not come again would stay.
            self.by_counter.clear()
            self._size = 0
            return
        for key in counters:
            for demand in tuple(self.by_counter.get(key, ())):
                self.drop(demand)

    def drop(self, demand: Refusable) -> None:
        """The refusal of this demand has ended."""
        demand.denial = None
        for key in demand.keys:
            refused = self.by_counter.get(key)
            if refused is not None and demand in refused:
                refused.remove(demand)
                self._size -= 1
                if not refused:
                    del self.by_counter[key]
