"""How long something took in the last seconds, in bounded memory: mean and quantiles."""

from array import array
from math import exp2, log2

#: The shortest duration that is told apart from 0, and how finely durations are sorted.
SMALLEST_S = 0.000_1
PER_OCTAVE = 8
#: 23 octaves: from 0.1 ms to 14 minutes.
OCTAVES = 23
CELLS = OCTAVES * PER_OCTAVE
#: A longer duration counts as this one, a little below the end of the last cell.
LONGEST_S = SMALLEST_S * 2 ** (OCTAVES - 0.01)
#: Samples are kept for one to two times as long.
HALF_WINDOW_S = 5.0

_NO_SAMPLES = bytes(4 * CELLS)


class _Half:
    __slots__ = ("busy_s", "cells", "count")

    def __init__(self) -> None:
        self.cells = array("I", _NO_SAMPLES)
        self.count = 0
        self.busy_s = 0.0


class LatencyHistogram:
    """Samples of the current half window and of the one before.

    One thread adds them, any thread reads: reading changes nothing.
    Takes 2 KB, however many samples there are. Every ``now`` is of one monotonic clock, in seconds. A
    quantile differs by at most 4.5 percent from a sample: cells are 9 percent wide, and it is the middle.
    """

    __slots__ = ("_both", "_current", "_ends", "_half_window_s")

    def __init__(self, half_window_s: float = HALF_WINDOW_S) -> None:
        self._half_window_s = half_window_s
        self._current = _Half()
        #: The half window before, and the current one. Replaced together, for readers in other threads.
        self._both = _Half(), self._current
        self._ends = float("-inf")

    def add(self, seconds: float, now: float) -> None:
        """Count one duration that ended at ``now``."""
        if now >= self._ends:
            self._turn(now)
        half = self._current
        if seconds >= LONGEST_S:
            half.busy_s += LONGEST_S
            half.cells[CELLS - 1] += 1
        elif seconds >= SMALLEST_S:
            half.busy_s += seconds
            half.cells[int(log2(seconds / SMALLEST_S) * PER_OCTAVE)] += 1
        else:  # also a clock that went back
            half.cells[0] += 1
        # After the cell: a reader never finds fewer samples in the cells than this.
        half.count += 1

    def count(self, now: float) -> int:
        """How many samples the two half windows have."""
        return sum(half.count for half in self._halves(now))

    def total_s(self, now: float) -> float:
        """The sum of all samples."""
        return sum(half.busy_s for half in self._halves(now))

    def mean(self, now: float) -> float | None:
        """In seconds. ``None`` after an idle window: an old figure would be wrong."""
        halves = self._halves(now)
        count = sum(half.count for half in halves)
        return sum(half.busy_s for half in halves) / count if count else None

    def quantile(self, part: float, now: float, *, at_least: int = 1) -> float | None:
        """The duration that ``part`` of the samples do not exceed, in seconds.

        ``None`` with fewer than ``at_least`` samples.
        """
        halves = self._halves(now)
        count = sum(half.count for half in halves)
        if count < max(1, at_least):
            return None
        rank, seen = part * count, 0
        for cell, samples in enumerate(zip(*(half.cells for half in halves), strict=True)):
            seen += sum(samples)
            if seen >= rank and seen:
                return _middle(cell)
        return _middle(CELLS - 1)

    def _halves(self, now: float) -> tuple[_Half, ...]:
        """The halves whose samples are not too old."""
        late_s = now - self._ends
        if late_s < 0:
            return self._both
        return self._both[1:] if late_s < self._half_window_s else ()

    def _turn(self, now: float) -> None:
        """Begin a new half window, and forget what is too old."""
        idle = now >= self._ends + self._half_window_s
        before = _Half() if idle else self._current
        self._current = _Half()
        self._both = before, self._current
        self._ends = (now if idle else self._ends) + self._half_window_s


def _middle(cell: int) -> float:
    return SMALLEST_S * exp2((cell + 0.5) / PER_OCTAVE)
