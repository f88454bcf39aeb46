"""Percentiles of stored histograms. Histograms can be added up over time and gateways; percentiles cannot."""

from collections.abc import Sequence


def percentile(counts: Sequence[int | None], edges: Sequence[int], percent: float) -> float | None:
    """Interpolated within its bucket, as charts do; ``None`` without counts.

    What is longer than the last edge is at least that edge, so the edge is returned.
    """
    known = [count or 0 for count in counts]
    wanted = sum(known) * percent / 100
    if not wanted:
        return None
    below, floor = 0, 0
    for count, edge in zip(known, edges, strict=False):
        if count and below + count >= wanted:
            return floor + (edge - floor) * (wanted - below) / count
        below, floor = below + count, edge
    return floor
