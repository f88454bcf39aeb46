"""Percentiles of stored histograms. Histograms can be added up over time and gateways; percentiles cannot."""

from collections.abc import Sequence

from controlplane.series.kinds import CALL_FIELDS
from controlplane.series.reading import Answer
from fuseboard.contract.sync import CALL_EDGES_MS


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


def calls_ms(answer: Answer, percents: Sequence[float] = (50, 95, 99)) -> dict[float, float | None]:
    """Percentiles of how long calls to a dependency took, over all points of an answer.

    Read the answer with the fields ``CALL_FIELDS``. Only calls count that were reported with
    how long they took.
    """
    counts = [sum(value or 0 for value in answer.fields[field]) for field in CALL_FIELDS]
    return {percent: percentile(counts, CALL_EDGES_MS, percent) for percent in percents}
