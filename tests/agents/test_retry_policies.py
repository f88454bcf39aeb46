"""What a call says about its attempts, what counts towards the budget, and what is logged and freed."""

import asyncio
import gc
import logging
import weakref

import pytest

from fuseboard import Misconfigured, Reason, Refused
from fuseboard.contract.protection import Retry
from fuseboard.decision import Decision
from tests.agents.retry_world import ALWAYS, DOWN, HttpError, World, now, play


def test_a_call_may_be_repeated_otherwise_than_the_policy_says():
    async def main() -> None:
        rich = Retry(attempts=1, budget_percent=100)
        world = World(*[HttpError(503)] * 2, retry=rich, clock=now, warm=10_000)
        # Of the preset: idempotent, 3 attempts, and a minute after a 429.
        assert await world.use(preset="llm") == "answer 3"
        world.script = [HttpError(429)]
        began = now()
        assert await world.use(preset="llm") == "answer 2"
        assert 60 <= now() - began <= 66
        # The budget stays that of the policy.
        world.retry = Retry(budget_percent=0, floor_milli=0)
        world.retries.part("api").budget._floor = 0.0
        world.script = [HttpError(503)]
        with pytest.raises(HttpError):
            await world.use(preset="llm")
        # An admin who switched retries off is obeyed.
        world.retry, world.script = None, [DOWN]
        with pytest.raises(ConnectionRefusedError):
            await world.use(preset="llm")
        with pytest.raises(Misconfigured, match="preset is one of user-facing"):
            world.retrying({"preset": "aggressive"})

    play(main())


def test_a_refused_call_allows_no_retry():
    """A breaker that was open for 10 s at 1,000 calls per second allowed 1,000 retries."""
    refused = Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN, rule="api"))

    async def main() -> None:
        world = World(retry=ALWAYS, clock=now, warm=0)
        for _ in range(50):
            world.refusals[0] = refused
            with pytest.raises(Refused):
                await world.use()
        assert world.retries.totals()["api"].first_calls == 0
        assert world.retries.part("api").budget.left(now(), ALWAYS) == 1  # the floor

    play(main())


def test_a_spent_budget_is_logged_once_a_second(caplog):
    async def main() -> None:
        retry = Retry(idempotent=True, floor_milli=0, budget_percent=0)
        world = World(*[DOWN] * 40, retry=retry, clock=now, warm=0)
        world.retries.part("api").budget._floor = 0.0
        for _ in range(40):
            with pytest.raises(ConnectionRefusedError):
                await world.use()
            await asyncio.sleep(0.0625)

    caplog.set_level(logging.WARNING)
    play(main())
    lines = [record.getMessage() for record in caplog.records if "no_budget" in record.getMessage()]
    assert len(lines) in (2, 3)
    assert lines[1].endswith("why=no_budget unlogged=15")


@pytest.mark.parametrize(
    ("error", "neutral"),
    [(Refused(Decision(allowed=False, reason=Reason.SHED)), ()), (HttpError(503), (HttpError,))],
)
def test_what_says_nothing_about_the_dependency_counts_neither_way(error, neutral):
    async def main() -> None:
        world = World(DOWN, error, retry=Retry(attempts=1, idempotent=True), clock=now)
        for expected in (DOWN, error):
            with pytest.raises(type(expected)):
                await world.use(neutral=neutral)
        part = world.retries.part("api")
        assert part.failed_before
        assert len(part.errors._ended) == 1

    play(main())


def test_an_error_is_freed_with_the_call():
    """It referred to the frame that referred to the call, and the call to it."""

    class Lost(ConnectionRefusedError):
        pass

    async def main() -> None:
        world = World(retry=None, clock=now)

        async def lose() -> None:
            async for attempt in world.retrying({}):
                async with attempt:
                    raise Lost

        gc.disable()
        try:
            try:
                await lose()
            except Lost as error:
                found = weakref.ref(error)
            assert found() is None
        finally:
            gc.enable()

    play(main())
