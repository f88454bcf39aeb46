"""Finds remembered refusals by counter.

A grant delays the end of other refusals on the same counter, so the pod forgets them and asks Redis again.
"""

from collections.abc import Iterable
from time import monotonic
from typing import Protocol

#: When there are more, all are forgotten: asking Redis once too often is always right.
MAX_REMEMBERED = 20_000


class Refusable(Protocol):
    """A demand that remembers its last refusal."""

    keys: tuple[bytes, ...]

    def forget_refusal(self) -> None: ...


class RememberedRefusals:
    __slots__ = ("_last_end", "_size", "by_counter")

    def __init__(self) -> None:
        #: Read by each grant, which has nothing to do while it is empty.
        self.by_counter: dict[bytes, set[Refusable]] = {}
        self._size = 0
        #: When the last of them ends; monotonic seconds.
        self._last_end = 0.0

    def remember(self, demand: Refusable, until: float) -> None:
        """``demand`` was refused until then (monotonic seconds), or until a grant of one of its counters."""
        if self._size >= MAX_REMEMBERED:
            self.forget(tuple(self.by_counter))
        self._last_end = max(self._last_end, until)
        for key in demand.keys:
            refused = self.by_counter.setdefault(key, set())
            before = len(refused)
            refused.add(demand)
            self._size += len(refused) - before

    def forget(self, counters: Iterable[bytes]) -> None:
        """Calls were granted from these counters."""
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
        demand.forget_refusal()
        for key in demand.keys:
            refused = self.by_counter.get(key)
            if refused is not None and demand in refused:
                refused.remove(demand)
                self._size -= 1
                if not refused:
                    del self.by_counter[key]
