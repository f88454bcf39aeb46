"""The names that were counted most, in bounded memory, whatever names a client sends: Misra-Gries.

A count is never too high: ``count <= true count <= count + missed``. ``missed`` is at most the sum of
all weights divided by ``size + 1``, and 0 while no more than twice ``size`` names were counted.
"""

from heapq import nlargest


class HeavyHitters:
    def __init__(self, size: int) -> None:
        self.counts: dict[str, float] = {}
        #: The sum of all weights, also of names that are not in ``counts``.
        self.total = 0.0
        self.missed = 0.0
        self._size = size

    def add(self, name: str, weight: float) -> None:
        """``weight`` is above 0."""
        self.total += weight
        self.counts[name] = self.counts.get(name, 0.0) + weight
        # To make room for many names at once costs a comparison for each name that is added.
        if len(self.counts) > 2 * self._size:
            self._make_room()

    def forget(self, name: str) -> bool:
        """Remove a name. Its count stays in the total. Returns whether it was there."""
        return self.counts.pop(name, None) is not None

    def top(self, most: int) -> tuple[list[tuple[str, float]], float]:
        """The highest counts, and the most that any name can have been counted beyond them."""
        found = nlargest(most + 1, self.counts.items(), key=_by_count)
        left_out = found[most][1] if len(found) > most else 0.0
        return found[:most], self.missed + left_out

    def _make_room(self) -> None:
        kept = nlargest(self._size + 1, self.counts.items(), key=_by_count)
        least = kept.pop()[1]
        self.missed += least
        self.counts = {name: count - least for name, count in kept if count > least}


def _by_count(item: tuple[str, float]) -> tuple[float, str]:
    return item[1], item[0]
