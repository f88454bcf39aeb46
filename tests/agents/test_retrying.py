"""Attempts of one call, in virtual time."""

import asyncio
import contextlib
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard import Misconfigured, Reason, Refused
from fuseboard.calling import deadline
from fuseboard.calling.classification import Verdict, classify
from fuseboard.calling.retries import Capacity
from fuseboard.contract.protection import Retry
from fuseboard.contract.words import Jitter
from fuseboard.decision import Decision
from tests.agents.retry_world import ALWAYS, DOWN, NO_FLOOR, OBSERVED, RETRY, HttpError, World, now, play


def notes(error: BaseException) -> str:
    return " ".join(getattr(error, "__notes__", ()))


# T20


def test_sustained_failures_deplete_the_budget_within_cap_and_deadline(caplog):
    async def main() -> tuple[World, list[float]]:
        world = World(*[DOWN] * 500, retry=RETRY, clock=now, warm=0)
        took = []
        for _ in range(100):
            began = now()
            with pytest.raises(ConnectionRefusedError):
                await world.use(deadline_s=20)
            took.append(now() - began)
            await asyncio.sleep(0.1)
        return world, took

    caplog.set_level(logging.CRITICAL)
    world, took = play(main())
    totals = world.retries.totals()["api"]
    assert len(world.sent) == totals.first_calls + totals.retries == 100 + totals.retries
    assert max(took) <= 20
    assert 0 < totals.retries <= 25
    assert totals.no_budget > 50
    assert totals.helped == 0


def test_every_call_that_ends_is_counted_by_its_attempts():
    async def main() -> World:
        world = World(DOWN, DOWN, retry=Retry(idempotent=True, attempts=2), clock=now)
        with pytest.raises(ConnectionRefusedError):
            await world.use()
        assert await world.use() == "answer 1"
        return world

    totals = play(main()).retries.totals()["api"]
    assert (totals.attempts[:3], totals.exhausted, totals.helped) == ([1, 1, 0], 1, 0)


def test_a_retry_helps_and_is_counted_and_logged(caplog):
    async def main() -> World:
        world = World(DOWN, retry=RETRY, clock=now)
        assert await world.use() == "answer 2"
        return world

    caplog.set_level(logging.INFO)
    totals = play(main()).retries.totals()["api"]
    assert (totals.first_calls, totals.retries, totals.helped, totals.no_budget) == (1, 1, 1, 0)
    assert (totals.attempts[:3], totals.exhausted) == ([0, 1, 0], 0)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(
        "retry.waiting dependency=api attempt=1 max=3 error=ConnectionRefusedError wait_ms="
    )


def test_without_a_policy_there_is_one_attempt(caplog):
    async def main() -> World:
        world = World(DOWN, DOWN, retry=None, clock=now)
        for _ in range(2):
            with pytest.raises(ConnectionRefusedError):
                await world.use()
        return world

    caplog.set_level(logging.INFO)
    assert len(play(main()).sent) == 2
    assert [record.getMessage() for record in caplog.records] == [
        "retry.off dependency=api: its policy allows no retries"
    ]


def test_no_budget_raises_the_last_real_error_with_a_note():
    async def main() -> World:
        world = World(DOWN, retry=NO_FLOOR, clock=now, warm=0)
        with pytest.raises(ConnectionRefusedError) as caught:
            await world.use()
        assert caught.value is DOWN or caught.value.args == DOWN.args
        assert "the retry budget is spent" in notes(caught.value)
        return world

    world = play(main())
    assert world.retries.totals()["api"].no_budget == 1
    assert len(world.sent) == 1


def test_in_observe_mode_the_budget_counts_and_refuses_nothing():
    async def main() -> World:
        world = World(DOWN, retry=NO_FLOOR, protection=OBSERVED, clock=now, warm=0)
        assert await world.use() == "answer 2"
        return world

    totals = play(main()).retries.totals()["api"]
    assert (totals.no_budget, totals.observed, totals.helped) == (0, 1, 1)


def test_nothing_is_held_while_a_retry_waits():
    async def main() -> None:
        world = World(DOWN, DOWN, retry=ALWAYS, clock=now, takes_s=1.0)
        task = asyncio.create_task(world.use())
        held = []
        # Attempts at 0, 1.5 and 3.5 s, each a second long.
        for _ in range(10):
            await asyncio.sleep(0.499)
            held.append(world.held)
        assert held == [1, 1, 0, 1, 1, 0, 0, 1, 1, 0]
        assert await task == "answer 3"
        assert world.sent == pytest.approx([0, 1.5, 3.5])

    play(main())


def test_a_cancelled_wait_gives_its_retry_back():
    async def main() -> None:
        world = World(DOWN, retry=ALWAYS, clock=now, warm=10)
        budget = world.retries.part("api").budget
        task = asyncio.create_task(world.use())
        await asyncio.sleep(0.1)
        spent = budget.left(now(), ALWAYS)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert budget.left(now(), ALWAYS) == pytest.approx(spent + 1)
        assert world.retries.totals()["api"].retries == 0

    play(main())


def test_a_retry_that_is_refused_gives_it_back_and_raises_the_error_before():
    refused = Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN, rule="api"))

    async def main() -> None:
        world = World(DOWN, retry=ALWAYS, clock=now, warm=10)
        budget = world.retries.part("api").budget
        before = budget.left(now(), ALWAYS) + 0.1  # this call's own part
        world.refusals[1] = refused
        with pytest.raises(ConnectionRefusedError) as caught:
            await world.use()
        assert "attempt 2 was refused" in notes(caught.value)
        assert "breaker_open" in notes(caught.value)
        assert budget.left(now(), ALWAYS) >= before - 0.01
        assert world.retries.totals()["api"].retries == 0
        world.refusals[1] = refused
        with pytest.raises(Refused):
            await world.use()

    play(main())


@pytest.mark.parametrize(
    "busy", [Capacity(closed=False), Capacity(mean_wait_s=2.5), Capacity(saturation=0.95)], ids=repr
)
def test_no_retry_while_open_queued_or_saturated(busy: Capacity):
    async def main() -> None:
        world = World(DOWN, retry=ALWAYS, clock=now, warm=10)
        world.capacity = busy
        with pytest.raises(ConnectionRefusedError):
            await world.use()
        # It is busy when the wait is over.
        world.script, world.capacity = [DOWN], Capacity()
        task = asyncio.create_task(world.use())
        await asyncio.sleep(0.1)
        left = world.retries.part("api").budget.left(now(), ALWAYS)
        world.capacity = busy
        with pytest.raises(ConnectionRefusedError) as caught:
            await task
        assert "the breaker is not closed, calls queue" in notes(caught.value)
        assert len(world.sent) == 2
        assert world.retries.part("api").budget.left(now(), ALWAYS) == pytest.approx(left + 1)

    play(main())


@pytest.mark.parametrize(
    ("error", "retry", "at_least", "at_most"),
    [
        (HttpError(429, retry_after="10"), RETRY, 10.0, 11.0),
        (HttpError(503, retry_after="2.5"), RETRY, 2.5, 2.75),
        (HttpError(503, retry_after_ms="700", retry_after="9"), RETRY, 0.7, 0.77),
        (HttpError(429), Retry(idempotent=True, default_retry_after_ms=60_000), 60.0, 66.0),
        (HttpError(503), Retry(idempotent=True, default_retry_after_ms=60_000), 0.0, 0.5),
        (HttpError(408), ALWAYS, 0.0, 0.0),
        (HttpError(529), ALWAYS, 1.0, 1.0),
        (HttpError(502), ALWAYS, 0.5, 0.5),
    ],
    ids=repr,
)
def test_a_vendor_that_says_when_to_come_back_is_obeyed(error, retry, at_least, at_most):
    async def main() -> float:
        world = World(error, retry=retry, clock=now)
        assert await world.use() == "answer 2"
        return world.sent[1] - world.sent[0]

    assert at_least - 1e-6 <= play(main()) <= at_most + 1e-6


def test_a_wait_beyond_the_deadline_is_not_begun():
    async def main() -> None:
        for arguments, why in (({"deadline_s": 5}, "deadline"), ({}, "too long")):
            world = World(HttpError(429, retry_after="600"), retry=RETRY, clock=now)
            began = now()
            with pytest.raises(HttpError) as caught:
                await world.use(**arguments)
            assert why in notes(caught.value)
            assert now() == began

    play(main())


def test_an_attempt_ends_at_the_deadline():
    async def main() -> None:
        world = World(DOWN, retry=RETRY, clock=now, takes_s=3.0)
        began = now()
        with pytest.raises((TimeoutError, ConnectionRefusedError)):
            await world.use(deadline_s=4)
        assert now() - began <= 4.001
        with deadline.deadline(2), pytest.raises(TimeoutError):
            await world.use(deadline_s=60)
        assert deadline.until() is None

    play(main())


@pytest.mark.parametrize(
    ("error", "arguments", "retry", "attempts"),
    [
        # The last request was not received, but others of the block may have been.
        (DOWN, {}, Retry(), 1),
        (DOWN, {"idempotent": True}, Retry(), 2),
        (TimeoutError("late"), {}, Retry(), 1),
        (HttpError(503), {}, Retry(), 1),
        (HttpError(503), {"idempotent": True}, Retry(), 2),
        (HttpError(503), {}, RETRY, 2),
        # What the caller says about this call is more than what the policy says about all.
        (HttpError(503), {"idempotent": False}, RETRY, 1),
        # Not retryable, unless asked.
        (HttpError(409), {"idempotent": True}, RETRY, 1),
        (HttpError(409), {"on": HttpError}, RETRY, 2),
        (HttpError(409), {"on": (KeyError, HttpError)}, RETRY, 2),
        (HttpError(503), {"on": lambda error: False}, RETRY, 1),
        (ValueError("unknown"), {}, RETRY, 1),
        (ValueError("unknown"), {"on": Exception}, RETRY, 2),
        (Refused(Decision(allowed=False, reason=Reason.QUOTA)), {"on": Exception}, RETRY, 1),
    ],
)
def test_what_is_repeated(error, arguments, retry, attempts):
    async def main() -> int:
        world = World(error, retry=retry, clock=now)
        if attempts == 2:
            assert await world.use(**arguments) == "answer 2"
            return 2
        with pytest.raises(type(error)) as caught:
            await world.use(**arguments)
        hinted = classify(error).retryable and "on" not in arguments
        assert ("pass idempotent=True" in notes(caught.value)) is hinted
        return len(world.sent)

    assert play(main()) == attempts


class TooLong(Exception):
    status_code = 413


def test_a_prompt_that_is_too_long_is_cut_to_three_quarters():
    text = ["word " * 100]

    def cut(verdict: Verdict) -> bool:
        text[0] = text[0][: len(text[0]) * 3 // 4]
        return True

    async def main() -> None:
        world = World(TooLong(), TooLong(), retry=RETRY, clock=now)
        assert await world.use(shrink=cut) == "answer 3"
        assert len(text[0]) == 500 * 9 // 16
        assert now() == 0
        world.script = [TooLong()]
        with pytest.raises(TooLong):
            await world.use(shrink=lambda _: False)
        world.script = [TooLong()]
        with pytest.raises(TooLong):
            await world.use()

    play(main())


def test_an_attempt_is_used_in_its_loop_and_once():
    async def main() -> None:
        world = World(retry=RETRY, clock=now)
        with pytest.raises(Misconfigured, match="with attempt"):
            async for _ in world.retrying({}):
                pass
        async for attempt in world.retrying({}):
            assert (attempt.num, attempt.most, attempt.cause, attempt.next_wait) == (1, 3, None, 0.0)
            assert attempt.budget_left > 9
            async with attempt as permit:
                assert permit.dependency == "api"
            with pytest.raises(Misconfigured, match="once"):
                await attempt.__aenter__()
        with pytest.raises(Misconfigured, match="deadline"):
            world.retrying({"deadline_s": -1})
        with pytest.raises(TypeError, match="dead_line"):
            world.retrying({"dead_line": 3})  # type: ignore[typeddict-unknown-key]

    play(main())


def test_each_attempt_knows_what_ended_the_one_before():
    async def main() -> None:
        world = World(DOWN, retry=ALWAYS, clock=now)
        seen = []
        async for attempt in world.retrying({}):
            seen.append((attempt.num, attempt.cause, attempt.waited_s))
            async with attempt:
                await world.send()
            seen.append(attempt.next_wait)
        assert seen == [(1, None, 0.0), 0.5, (2, DOWN, 0.5), 0.0]

    play(main())


SCRIPT = st.lists(
    st.sampled_from(
        [None, DOWN, HttpError(503), HttpError(429, retry_after="3"), HttpError(408), TimeoutError("late")]
    ),
    max_size=60,
)


@given(
    SCRIPT,
    st.integers(1, 5),
    st.floats(0.5, 30),
    st.sampled_from([0.0, 0.01, 0.7, 4.0]),
    st.sampled_from(Jitter),
    st.integers(0, 1000),
)
def test_attempts_and_deadline_are_kept(script, attempts, deadline_s, takes_s, jitter, seed):
    async def main() -> None:
        retry = Retry(idempotent=True, attempts=attempts, jitter=jitter)
        world = World(*script, retry=retry, clock=now, takes_s=takes_s, seed=seed, warm=20)
        calls = 0
        while world.script and calls < 30:
            calls += 1
            began, before = now(), len(world.sent)
            with contextlib.suppress(ConnectionRefusedError, HttpError, TimeoutError):
                await world.use(deadline_s=deadline_s)
            assert now() - began <= deadline_s + 1e-3
            assert 1 <= len(world.sent) - before <= attempts
            assert world.held == 0
        totals = world.retries.totals()["api"]
        assert totals.first_calls == calls
        assert len(world.sent) == calls + totals.retries
        assert totals.helped <= totals.retries

    logging.disable(logging.CRITICAL)
    try:
        play(main())
    finally:
        logging.disable(logging.NOTSET)
