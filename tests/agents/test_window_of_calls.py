"""A pod's own breaker with a window of calls."""

import pytest
from msgspec.structs import replace

from fuseboard.breaker import local_breaker
from fuseboard.breaker.local_breaker import LocalBreaker
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.words import BreakerState, Outcome

BY_CALLS = BreakerPolicy(
    consecutive_failures=0,
    failure_percent=50,
    slow_percent=50,
    minimum_calls=10,
    window_s=600,
    window_calls=20,
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.5

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(local_breaker, "monotonic", clock)
    return clock


def calls_until_open(clock: Clock, policy: BreakerPolicy, bad: Outcome) -> int:
    """Bad calls, one in ten seconds, until the breaker opens after 1,000 good ones; 100 at most."""
    breaker = LocalBreaker()
    for _ in range(1_000):
        breaker.record(Outcome.OK, policy)
    breaker.fold(policy)
    for number in range(100):
        if breaker.state is BreakerState.OPEN:
            return number
        clock.now += 10
        breaker.record(bad, policy)
    return 100


@pytest.mark.parametrize("bad", [Outcome.FAILURE, Outcome.SLOW])
def test_a_quiet_dependency_is_judged_by_its_last_calls(clock: Clock, bad: Outcome):
    # 20 bad calls are the newest seconds with 20 calls. Before, the good ones are among them.
    assert calls_until_open(clock, BY_CALLS, bad) == 20
    # Only when the window of seconds has forgotten the good calls, after 10 minutes.
    assert calls_until_open(clock, replace(BY_CALLS, window_calls=0), bad) == 60


def test_whole_seconds_are_judged(clock: Clock):
    breaker = LocalBreaker()
    for _ in range(30):
        breaker.record(Outcome.OK, BY_CALLS)
    for _ in range(29):
        breaker.record(Outcome.FAILURE, BY_CALLS)
    assert breaker.state is BreakerState.CLOSED
    breaker.record(Outcome.FAILURE, BY_CALLS)
    assert breaker.state is BreakerState.OPEN
    assert breaker.figures == (60, 30, 0, 30)


def test_fewer_calls_than_the_window_wants_are_judged_all(clock: Clock):
    breaker = LocalBreaker()
    for _ in range(9):
        clock.now += 1
        breaker.record(Outcome.FAILURE, BY_CALLS)
    assert breaker.state is BreakerState.CLOSED
    clock.now += 1
    breaker.record(Outcome.FAILURE, BY_CALLS)
    assert breaker.state is BreakerState.OPEN
    assert breaker.figures == (10, 10, 0, 10)
