"""An account that a vendor does not serve stops the pods that heard it, and not the others."""

import pytest
import redis

from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.words import BreakerState, Outcome, Reason
from fuseboard.errors import Refused
from tests.agents.servers import Server, running
from tests.agents.test_classification import of_anthropic, of_openai
from tests.waiting import eventually

NO_CREDIT = "Your credit balance is too low to access the Anthropic API."
ACCOUNT = [
    of_openai(429, "insufficient_quota", retry_after="86400"),
    of_openai(429, "rate_limit_exceeded", retry_after="86400"),
    of_openai(400, "billing_hard_limit_reached"),
    of_anthropic(400, "invalid_request_error", NO_CREDIT),
]


async def fail(server: Server, error: Exception) -> None:
    permit = await server.admission.admit_call("payments")
    outcome, cooldown_ms = judge_permitted(permit, error)
    server.admission.report(permit, outcome, cooldown_ms)


async def is_refused(server: Server) -> Refused | None:
    try:
        server.admission.report(await server.admission.admit_call("payments"), Outcome.OK)
    except Refused as refused:
        return refused
    return None


@pytest.mark.parametrize("error", ACCOUNT, ids=repr)
async def test_the_pod_that_heard_it_stops_and_the_others_go_on(
    limits: redis.Redis, redis_url: str, error: Exception
):
    async with running(redis_url, "web-1") as one, running(redis_url, "web-2") as other:
        for _ in range(2):
            await is_refused(other)
        await fail(one, error)
        refused = await is_refused(one)
        assert refused is not None
        assert refused.decision.reason is Reason.COOLING_DOWN
        assert 0 < refused.decision.retry_after_ms <= 60_000
        assert await is_refused(other) is None
        assert not limits.keys("*cooldown*")


async def test_a_429_without_a_time_stops_the_fleet_for_a_second_and_opens_nothing(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url, "web-1") as one, running(redis_url, "web-2") as other:
        for number in range(10):
            await fail((one, other)[number % 2], of_openai(429, "rate_limit_exceeded"))
            for breaker in (
                *one.admission.calls.breakers.values(),
                *other.admission.calls.breakers.values(),
            ):
                breaker.remembered = None
            limits.delete(*limits.keys("*cooldown*") or ["none"])
        await fail(one, of_openai(429, "rate_limit_exceeded"))
        await eventually(lambda: limits.keys("*cooldown*"))
        refused = await is_refused(other)
        assert refused is not None
        assert refused.decision.reason is Reason.COOLING_DOWN
        assert refused.decision.retry_after_ms <= 1000
        assert one.admission.breaker_views()[0].state is BreakerState.CLOSED
