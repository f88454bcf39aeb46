"""C.10: hot-key mode ends only after 60 s below 40 % of its threshold."""

from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from fuseboard.batching import fleet_leases
from fuseboard.batching.demand import Demand
from fuseboard.batching.fleet_leases import COOL_AFTER_S, Leases, Supply
from fuseboard.batching.redis_question import Domain

THRESHOLD = 250.0


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fleet_leases, "monotonic", clock)
    return clock


@pytest.fixture
def measure(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], bool]:
    """Take one measurement of the rate; whether the key is hot then."""
    given: Any = None
    leases = Leases(batcher=given, settlements=given, live_servers=lambda: 20, usable=lambda: True)
    supply = Supply(cast(Domain, given), Demand((), (), 0), given, given)
    # 5,000 calls per second over 20 pods.
    monkeypatch.setattr(leases, "_threshold", lambda demand: THRESHOLD)

    def measured(rate: float) -> bool:
        supply.rate = 0.0  # without smoothing
        leases._measure(supply, rate)
        return clock.now - supply.hot_at < COOL_AFTER_S

    return measured


def run(clock: Clock, measure: Callable[[float], bool], rate: float, seconds: float) -> bool:
    hot = False
    for _ in range(int(seconds * 2)):
        hot = measure(rate)
        clock.now += 0.5
    return hot


def test_a_rate_between_40_percent_and_the_threshold_keeps_a_key_hot_and_makes_none(
    clock: Clock, measure: Callable[[float], bool]
) -> None:
    assert not run(clock, measure, 249, 200)
    assert measure(250)
    assert run(clock, measure, 100, 200)


def test_below_40_percent_it_ends_after_60_seconds(clock: Clock, measure: Callable[[float], bool]) -> None:
    assert measure(250)
    assert run(clock, measure, 99, 59.5)
    assert not run(clock, measure, 99, 2)
    assert not run(clock, measure, 200, 5)
    assert measure(250)


def test_a_call_that_a_spent_lease_sends_to_redis_does_not_end_leases(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a key is leased, no call is asked: its silence there says nothing about its rate."""
    given: Any = None
    leases = Leases(batcher=given, settlements=given, live_servers=lambda: 20, usable=lambda: False)
    supply = Supply(cast(Domain, given), Demand((), (), 0), given, given)
    monkeypatch.setattr(leases, "_threshold", lambda demand: THRESHOLD)
    while supply.rate < 490 or supply.asked:
        clock.now += 0.002
        leases.note(supply)
    for _ in range(20):
        clock.now += 0.6
        leases._measure(supply, 500.0, sustained=500.0)
    leases.note(supply)
    assert supply.rate >= 250


def test_a_model_agrees(clock: Clock, measure: Callable[[float], bool]) -> None:
    """The model remembers every rate since the start, and decides from the definition."""
    random = Random(7)
    hot, seen_above_at = False, float("-inf")
    for _ in range(5_000):
        rate = random.choice((0, 50, 99.9, 100, 180, 249.9, 250, 5_000))
        clock.now += random.choice((0.25, 1, 20, 59.9, 60.1))
        if hot and clock.now - seen_above_at >= 60:
            hot = False
        if rate >= THRESHOLD or (hot and rate >= 0.4 * THRESHOLD):
            hot, seen_above_at = True, clock.now
        assert measure(rate) == hot
