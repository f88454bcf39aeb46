"""Judges by the clock of Redis what was admitted."""

from collections.abc import Iterable


def worst_window(admitted_us: Iterable[int], window_us: int) -> int:
    """The most admissions that any window of this length, open at one end, ever saw."""
    times = sorted(admitted_us)
    worst, oldest = 0, 0
    for newest, time in enumerate(times):
        while times[oldest] <= time - window_us:
            oldest += 1
        worst = max(worst, newest - oldest + 1)
    return worst
