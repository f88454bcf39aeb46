"""Which demands remember a refusal, by the counters that they need.

A remembered refusal ends when the limit has room again, as Redis computed it. A call that this pod is
granted from the same limit afterwards makes that later. So a grant ends the refusals that it affects,
and the next call of each asks Redis.
"""

from collections.abc import Iterable
from typing import Protocol

#: When there are more, all are forgotten: asking Redis once too often is always right.
MAX_REMEMBERED = 20_000


class Refusable(Protocol):
    """A demand that remembers its last refusal."""

    keys: tuple[bytes, ...]

    def forget_refusal(self) -> None: ...


class Refusals:
    __slots__ = ("_size", "by_counter")

    def __init__(self) -> None:
        #: Read by each grant, which has nothing to do while it is empty.
        self.by_counter: dict[bytes, set[Refusable]] = {}
        self._size = 0

    def remember(self, demand: Refusable) -> None:
        """``demand`` was refused: a later grant from one of its counters ends that."""
        if self._size >= MAX_REMEMBERED:
            self.end(tuple(self.by_counter))
        for key in demand.keys:
            refused = self.by_counter.setdefault(key, set())
            before = len(refused)
            refused.add(demand)
            self._size += len(refused) - before

    def end(self, counters: Iterable[bytes]) -> None:
        """Calls were granted from these counters."""
        for key in counters:
            refused = self.by_counter.pop(key, None)
            if refused is not None:
                self._size -= len(refused)
                for demand in refused:
                    demand.forget_refusal()
