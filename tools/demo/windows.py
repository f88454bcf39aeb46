"""The most calls that a window of a limit saw, by the clock of callers, who do not see when Redis counts."""

from collections.abc import Iterable


def surely_in_one_window(calls: Iterable[tuple[float, float]], window: float) -> int:
    """The most calls that one window saw for certain: each was charged between its two times.

    Times and ``window`` have one unit.
    """
    spans = sorted(calls)
    return max(
        (sum(end < begin + window for _, end in spans[number:]) for number, (begin, _) in enumerate(spans)),
        default=0,
    )
