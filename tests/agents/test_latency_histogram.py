"""Quantiles within 9 percent, in bounded memory, and none of what is long over."""

import random
import sys
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.protection.latency_histogram import (
    CELLS,
    HALF_WINDOW_S,
    LONGEST_S,
    SMALLEST_S,
    LatencyHistogram,
)

durations = st.floats(SMALLEST_S, LONGEST_S)


@given(st.lists(durations, min_size=1, max_size=200), st.sampled_from((0.5, 0.95, 0.99, 1.0)))
def test_a_quantile_is_within_9_percent(samples: list[float], part: float) -> None:
    histogram = LatencyHistogram()
    for sample in samples:
        histogram.add(sample, 0.0)
    exact = sorted(samples)[max(1, ceil(part * len(samples))) - 1]
    assert histogram.quantile(part, 0.0) == pytest.approx(exact, rel=0.09)
    assert histogram.mean(0.0) == pytest.approx(sum(samples) / len(samples))


def test_the_p95_of_many_latencies() -> None:
    histogram, draw = LatencyHistogram(), random.Random(7)
    samples = [draw.lognormvariate(-3, 1) for _ in range(20_000)]
    for sample in samples:
        histogram.add(sample, 1.0)
    assert histogram.quantile(0.95, 1.0) == pytest.approx(sorted(samples)[18_999], rel=0.09)


def test_after_an_idle_window_it_knows_nothing() -> None:
    histogram = LatencyHistogram()
    histogram.add(0.2, 100.0)
    assert histogram.quantile(0.95, 100.0 + 2 * HALF_WINDOW_S - 0.1) is not None
    assert histogram.quantile(0.95, 100.0 + 2 * HALF_WINDOW_S) is None
    assert histogram.mean(100.0 + 2 * HALF_WINDOW_S) is None
    assert histogram.count(1e9) == 0


def test_samples_last_one_to_two_half_windows() -> None:
    histogram = LatencyHistogram()
    for now in range(1_000):
        histogram.add(0.1, float(now))
        assert min(now + 1, HALF_WINDOW_S) <= histogram.count(float(now)) <= 2 * HALF_WINDOW_S


def test_a_late_turn_keeps_nothing_longer() -> None:
    histogram = LatencyHistogram()
    histogram.add(1.0, 0.0)
    histogram.add(2.0, HALF_WINDOW_S * 1.9)
    assert histogram.count(HALF_WINDOW_S * 1.9) == 2
    assert histogram.count(HALF_WINDOW_S * 2) == 1


def test_reading_changes_nothing() -> None:
    """Two threads that read at the end of a half window lost up to 10 s of samples."""
    histogram = LatencyHistogram()
    histogram.add(1.0, 0.0)
    for late_s in (0.0, 1.0, 4.9, 5.0, 9.9, 10.0, 50.0):
        histogram.mean(late_s)
        histogram.quantile(0.95, late_s)
    histogram.add(2.0, HALF_WINDOW_S * 1.9)
    assert histogram.count(HALF_WINDOW_S * 1.9) == 2
    assert histogram.count(HALF_WINDOW_S * 2) == 1


def test_few_samples_are_no_evidence() -> None:
    histogram = LatencyHistogram()
    for _ in range(19):
        histogram.add(1.0, 0.0)
    assert histogram.quantile(0.95, 0.0, at_least=20) is None
    histogram.add(1.0, 0.0)
    assert histogram.quantile(0.95, 0.0, at_least=20) == pytest.approx(1.0, rel=0.09)


@pytest.mark.parametrize("odd", [0.0, -5.0, float("nan"), float("inf"), 1e300])
def test_an_odd_duration_harms_nothing(odd: float) -> None:
    histogram = LatencyHistogram()
    histogram.add(odd, 0.0)
    assert histogram.count(0.0) == 1
    assert 0 <= histogram.total_s(0.0) <= LONGEST_S
    assert 0 < (histogram.quantile(0.5, 0.0) or 0) <= LONGEST_S


def test_it_takes_two_kilobytes() -> None:
    histogram = LatencyHistogram()
    for sample in range(100_000):
        histogram.add(sample / 1_000, 0.0)
    halves = histogram._both
    assert sum(sys.getsizeof(half) + sys.getsizeof(half.cells) for half in halves) < 2_048
    assert CELLS == 184
