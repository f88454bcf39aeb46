"""What a pod that makes no calls reports of a breaker that other pods open and close."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings
from fuseboard.contract import keys
from fuseboard.contract.words import BreakerState, Outcome
from fuseboard.errors import Refused
from tests.agents.gateways import FakeGateway, gateway_running
from tests.agents.servers import POLICY
from tests.agents.test_local_breaker import opening_for
from tests.waiting import eventually

OPEN, CLOSED = BreakerState.OPEN, BreakerState.CLOSED


@pytest.fixture
def gateway(limits: redis.Redis) -> Iterator[FakeGateway]:
    with gateway_running() as gateway:
        gateway.next_ms = 50
        yield gateway


@asynccontextmanager
async def pod(gateway: FakeGateway, redis_url: str, name: str) -> AsyncIterator[Agent]:
    settings = AgentSettings(redis_url=redis_url, url=gateway.url, token="fb_sel_secret", server=name)
    async with Agent(settings=settings) as agent:
        yield agent


def reported(gateway: FakeGateway, name: str) -> BreakerState | None:
    """The state in the newest heartbeat of this pod."""
    for beat in reversed(gateway.beats):
        if beat.server == name:
            return next((view.state for view in beat.breakers if view.dependency == "payments"), None)
    return None


async def both_know_the_breaker(gateway: FakeGateway, limits: redis.Redis) -> None:
    """Both pods report it, and would hear that it opens."""

    def know() -> bool:
        ((_, listeners),) = limits.pubsub_numsub(keys.breaker_channel("production"))
        return listeners == 2 and reported(gateway, "caller") is reported(gateway, "idle") is CLOSED

    await eventually(know)


async def call(agent: Agent, outcome: Outcome) -> bool:
    with suppress(Refused):
        agent.report(await agent.admit_call("payments"), outcome)
        return True
    return False


async def test_an_idle_pod_reports_that_a_breaker_has_closed(
    gateway: FakeGateway, limits: redis.Redis, redis_url: str
):
    """It heard only of the opening, and said "open" for as long as it made no call."""
    gateway.publish(opening_for(100), revision=7)
    async with pod(gateway, redis_url, "caller") as caller, pod(gateway, redis_url, "idle"):
        await both_know_the_breaker(gateway, limits)
        for _ in range(4):
            assert await call(caller, Outcome.FAILURE)
        await eventually(lambda: reported(gateway, "idle") is OPEN)

        async def is_closed() -> bool:
            await call(caller, Outcome.OK)
            return caller.views()[0].state is CLOSED

        await eventually(is_closed)
        await eventually(lambda: reported(gateway, "idle") is CLOSED)


async def test_an_idle_pod_asks_nothing_while_it_knows_that_the_breaker_is_open(
    gateway: FakeGateway, limits: redis.Redis, redis_url: str
):
    gateway.publish(msgspec.structs.replace(opening_for(60_000), tuning=POLICY.tuning), revision=7)
    async with pod(gateway, redis_url, "caller") as caller, pod(gateway, redis_url, "idle") as idle:
        await both_know_the_breaker(gateway, limits)
        for _ in range(4):
            assert await call(caller, Outcome.FAILURE)
        await eventually(lambda: reported(gateway, "idle") is OPEN)
        breakers = idle._runtime.admission.calls.breakers
        breakers.refresh()
        assert not breakers["payments"].pending
