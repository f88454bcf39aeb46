"""Remembered refusals, by counter.

A pod answers from memory while Redis would surely refuse again. A charge moves the end of a refusal later, a
refund earlier. While the pod itself changes a counter, it does not use the memory, and asks Redis. When the
answer comes, it forgets the refusals of that counter.
"""

from collections.abc import Iterable
from math import inf
from time import monotonic
from typing import Protocol

from msgspec import Struct

from fuseboard.contract.words import Reason

#: When there are more, all are forgotten: asking Redis once too often is always safe.
MAX_REMEMBERED = 20_000

#: Redis is asked about a spent limit again after this time, however long the limit stays spent. Any pod may
#: correct an estimate that was too high, and a budget must not count as spent until midnight because of it.
MEMORY_S = 1.0


class RememberedRefusal(Struct):
    """A refusal that this pod repeats from memory without asking Redis. Times are monotonic seconds."""

    reason: Reason
    rule: str
    until: float
    #: Redis is asked again from this time on: what was spent may have been given back.
    believed_until: float = inf
    #: The number of the limit in the demand, from 1; 0 for none.
    place: int = 0

    @property
    def ends(self) -> float:
        """Until when Redis is not asked."""
        return min(self.until, self.believed_until)

    def left_s(self, now: float) -> float:
        """How long it still applies; 0 when it has ended, or when Redis should be asked again."""
        return max(0.0, self.until - now) if now < self.believed_until else 0.0


class Refusable(Protocol):
    """A demand that remembers its last refusal."""

    keys: tuple[bytes, ...]
    remembered: RememberedRefusal | None


class RememberedRefusals:
    """The refusals that one pod remembers. Domains share them: different domains may charge one counter."""

    __slots__ = ("_changing", "_last_end", "_most", "_size", "by_counter")

    def __init__(self, most: int = MAX_REMEMBERED) -> None:
        self._most = most
        #: Counter -> demands that it refused. distribute.py tests it for each grant: while it is empty, a
        #: grant need not forget refusals.
        self.by_counter: dict[bytes, set[Refusable]] = {}
        self._size = 0
        #: When the last of them ends; monotonic seconds.
        self._last_end = 0.0
        #: Counters that questions under way may charge or refund, with the number of these questions.
        self._changing: dict[bytes, int] = {}

    def remember(self, demand: Refusable, reason: Reason, rule: str, until: float, *, place: int = 0) -> None:
        """``demand`` is refused until ``until`` (monotonic seconds), or until one of its counters changes."""
        if self._size >= self._most:
            self.forget_counters(tuple(self.by_counter))
        remembered = RememberedRefusal(reason, rule, until, monotonic() + MEMORY_S, place)
        demand.remembered = remembered
        self._last_end = max(self._last_end, min(until, remembered.believed_until))
        for key in demand.keys:
            refused = self.by_counter.setdefault(key, set())
            before = len(refused)
            refused.add(demand)
            self._size += len(refused) - before

    def left_s(self, demand: Refusable) -> float:
        """How long the remembered refusal still applies; 0 when Redis should be asked.

        Forgets a refusal that has ended.
        """
        if demand.remembered is None:
            return 0.0
        left_s = demand.remembered.left_s(monotonic())
        if left_s <= 0:
            self.forget_demand(demand)
        elif self._changing and any(key in self._changing for key in demand.keys):
            return 0.0
        return left_s

    def begin_change(self, counters: Iterable[bytes]) -> None:
        """Use no refusal of these counters until ``end_change``: a question that may change them was sent."""
        changing = self._changing
        for key in counters:
            changing[key] = changing.get(key, 0) + 1

    def end_change(self, counters: Iterable[bytes]) -> None:
        """End one ``begin_change``: its question was answered, or the connection is lost."""
        changing = self._changing
        for key in counters:
            if changing[key] > 1:
                changing[key] -= 1
            else:
                del changing[key]

    def forget_counters(self, counters: Iterable[bytes]) -> None:
        """Forget every refusal by these counters, which were charged or refunded."""
        if monotonic() >= self._last_end:
            # All have ended, so forget all at once. Demands still hold an ended one: ``left_s`` drops it.
            self.by_counter.clear()
            self._size = 0
            return
        for key in counters:
            for demand in tuple(self.by_counter.get(key, ())):
                self.forget_demand(demand)

    def forget_demand(self, demand: Refusable) -> None:
        """Forget the refusal of this demand."""
        demand.remembered = None
        for key in demand.keys:
            refused = self.by_counter.get(key)
            if refused is not None and demand in refused:
                refused.remove(demand)
                self._size -= 1
                if not refused:
                    del self.by_counter[key]
