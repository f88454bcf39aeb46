"""How many retries a budget allows, and how long they wait."""

import asyncio
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.calling.classification import Verdict
from fuseboard.calling.retried_call import backoff_s
from fuseboard.calling.retry_budget import ErrorWindow, ProcessBudget, RetryBudget, allowance
from fuseboard.contract.protection import PodProtection, Retry
from fuseboard.contract.words import Jitter
from tests.agents.retry_world import DOWN, RETRY, World, now, play


@pytest.mark.parametrize(
    ("closed", "mean_wait_s", "saturation", "error_rate", "retries"),
    [
        (False, 0.0, 0.0, 0.0, 0),
        (True, 2.1, 0.0, 0.0, 0),
        (True, 0.0, 0.95, 0.0, 0),
        (True, 0.0, 0.0, 0.6, 1),
        (True, 0.0, 0.0, 0.3, 2),
        (True, 0.0, 0.0, 0.1, 3),
        # At the edges, and unknown.
        (True, 2.0, 0.9, 0.5, 2),
        (True, 2.0, 0.9, 0.2, 3),
        (True, None, 0.0, None, 3),
    ],
)
def test_the_table_of_the_budget(closed, mean_wait_s, saturation, error_rate, retries):
    assert retries == allowance(
        closed=closed, mean_wait_s=mean_wait_s, saturation=saturation, error_rate=error_rate
    )


def test_the_error_rate_is_bounded_by_calls_and_by_time():
    window = ErrorWindow()
    for _ in range(9):
        window.add(0.0, failed=True)
    assert window.rate(1.0) is None  # too few to say
    window.add(1.0, failed=True)
    assert window.rate(1.0) == 1.0
    for _ in range(95):
        window.add(2.0, failed=False)
    assert window.rate(2.0) == 0.05  # of the last hundred
    assert window.rate(31.5) == 0.0
    assert window.rate(40.0) is None  # not frozen when traffic stops


@given(
    jitter=st.sampled_from(Jitter),
    base_ms=st.integers(1, 60_000),
    more_ms=st.integers(0, 540_000),
    attempt=st.integers(1, 2000),
    before_s=st.floats(0, 600),
    status=st.sampled_from([0, 429, 503, 529]),
    asked_ms=st.integers(0, 3_600_000),
)
def test_a_wait_is_between_zero_and_its_cap(jitter, base_ms, more_ms, attempt, before_s, status, asked_ms):
    retry = Retry(base_ms=base_ms, cap_ms=base_ms + more_ms, jitter=jitter)
    verdict = Verdict(retryable=True, status=status, cooldown_ms=asked_ms)
    wait = backoff_s(retry, verdict, attempt, before_s, Random(attempt))
    assert wait >= asked_ms / 1000
    assert 0 <= wait <= max(retry.cap_ms / 1000, asked_ms * 1.1 / 1000) + 1e-6
    if jitter is Jitter.EQUAL:
        assert wait >= min(retry.cap_ms, base_ms) / 2000 - 1e-6
    if jitter is Jitter.DECORRELATED:
        assert wait >= min(retry.cap_ms, base_ms) / 1000 - 1e-6


STEPS = st.lists(
    st.tuples(
        st.floats(0, 3),
        st.sampled_from(["call", "call", "call", "retry", "retry", "give back"]),
        st.booleans(),
    ),
    max_size=200,
)


@given(STEPS, st.integers(0, 100), st.integers(0, 10_000))
def test_a_budget_is_never_exceeded(steps, percent, floor_milli):
    check_budget(RetryBudget, steps, percent, floor_milli)


def check_budget(kind: Any, steps: Any, percent: int, floor_milli: int) -> None:
    """In any 10 s: the part of the first calls, and what the floor gives in that time and one more."""
    retry = Retry(budget_percent=percent, floor_milli=floor_milli)
    at, calls, made, taken = 0.5, [], [], []
    budget = kind(at)
    for gap, what, troubled in steps:
        at += gap
        if what == "call":
            budget.first_call(at)
            calls.append(at)
        elif what == "give back" and taken:
            budget.give_back(at, taken.pop())
            made.pop()
        elif what == "retry":
            withdrawal = budget.withdraw(at, retry, floor_milli / 1000, troubled=troubled)
            if withdrawal is not None:
                taken.append(withdrawal)
                made.append(at)
    total = percent / 100 * len(calls) + floor_milli / 1000 * (at - 0.5) + 1
    assert len(made) <= total + 1e-6
    for end in made:
        recent = sum(1 for one in made if end - 9 < one <= end)
        deposited = sum(1 for one in calls if end - 20 < one <= end)
        assert recent <= percent / 100 * deposited + floor_milli / 1000 * 10 + 1 + 1e-6


def test_a_floor_starts_with_one_retry():
    retry = Retry(budget_percent=0)
    budget = RetryBudget(0.0)
    assert budget.withdraw(0.0, retry, 0.5, troubled=False) is not None
    assert budget.withdraw(0.0, retry, 0.5, troubled=False) is None
    assert budget.withdraw(1.9, retry, 0.5, troubled=False) is None
    assert budget.withdraw(2.0, retry, 0.5, troubled=False) is not None
    assert RetryBudget(0.0).withdraw(0.0, retry, 0.0, troubled=False) is None


def test_the_lone_failure_of_a_young_pod_is_retried():
    async def main() -> str:
        world = World(DOWN, retry=RETRY, clock=now, warm=0)
        return await world.use()

    assert play(main()) == "answer 2"


def test_a_process_makes_so_many_retries_in_any_second():
    process, budget_of = ProcessBudget(), PodProtection().retries_per_s
    made = [at / 50 for at in range(500) if process.withdraw(at / 50, budget_of)]
    assert len(made) == 100
    assert all(sum(1 for one in made if at <= one < at + 0.999) <= 10 for at in made)

    async def main() -> int:
        none = PodProtection(retries_per_s=0)
        world = World(DOWN, retry=RETRY, protection=none, clock=now)
        with pytest.raises(ConnectionRefusedError):
            await world.use()
        return len(world.sent)

    assert play(main()) == 1


def test_the_control_plane_lowers_the_floor_for_three_heartbeats():
    async def main() -> None:
        world = World(retry=Retry(), clock=now)
        floor = world.retries.floor_per_s
        assert floor("api", Retry(), now()) == 1.0
        world.live_servers = 40
        assert floor("api", Retry(), now()) == 0.25
        world.retries.cap({"api": 20}, valid_s=30)
        assert floor("api", Retry(), now()) == 0.02
        assert floor("other", Retry(), now()) == 0.25
        await asyncio.sleep(31)
        assert floor("api", Retry(), now()) == 0.25

    play(main())
