"""Calls that a proxy has repeated: each repetition is charged as one call more, and nothing else is."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent, AgentSettings, Misconfigured, blocking
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import FailurePolicy, Mode, Reason
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.testing import FakeAgent
from tests.agents.limit_kinds import bucket, daily, slots, window
from tests.agents.published import publish
from tests.agents.servers import PATIENT, POLICY, Server, configured, running
from tests.waiting import eventually

SHARED = {"failure_policy": FailurePolicy.LOCAL_SHARE}
KINDS = {
    "window": window(20, 3600, "calls", **SHARED),
    "bucket": bucket(20, seconds=36_000_000, name="calls", **SHARED),
    "daily": daily(20, **SHARED),
}


@asynccontextmanager
async def serving(redis_url: str, *limits: Limit, connected: bool = True) -> AsyncIterator[Server]:
    payments = replace(POLICY.dependencies[0], vendor_limits=limits)
    policy = replace(POLICY, dependencies=(payments,), tuning=PATIENT)
    url = redis_url if connected else "redis://127.0.0.1:1"
    async with running(url, configuration=configured(policy), connected=connected) as server:
        yield server


async def admitted(server: Server, cost: int = 1, **costs: int) -> Permit:
    return await server.admission.admit_call("payments", cost=cost, costs=costs or None)


async def left(server: Server) -> int:
    """How much one call can still spend."""
    admission = server.admission
    admission.settlements.flush()  # answers come in the order of questions
    for cost in range(20, 0, -1):
        try:
            permit = await admission.admit_call("payments", cost=cost)
        except Refused:
            continue
        admission.give_back(permit.decision)
        admission.settlements.flush()
        return cost
    return 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("cost", "times"), [(1, 1), (1, 4), (3, 2), (5, 9)])
async def test_each_repetition_costs_as_much_as_the_call(
    limits: redis.Redis, redis_url: str, kind: str, cost: int, times: int
):
    async with serving(redis_url, KINDS[kind]) as server:
        permit = await admitted(server, cost)
        server.admission.charging.charge_again(permit, times)
        assert await left(server) == max(0, 20 - cost * (1 + times))


async def test_neither_tokens_nor_slots_are_charged_again(limits: redis.Redis, redis_url: str):
    both = (KINDS["window"], window(100, 3600, "tokens", measure="tokens", **SHARED), slots(2))
    async with serving(redis_url, *both) as server:
        permit = await admitted(server, tokens=60)
        server.admission.charging.charge_again(permit, 3)
        server.admission.settlements.flush()
        second = await admitted(server, tokens=40)
        known = {status.name: status.remaining for status in second.decision.limits}
        assert (known["tokens"], known["calls"]) == (0, 15)
        with pytest.raises(Refused) as refused:  # the two slots are taken, not more
            await admitted(server)
        assert refused.value.decision.rule == slots(2).name


async def test_calls_of_a_lease_are_charged_again_too(limits: redis.Redis, redis_url: str):
    many = bucket(50_000, seconds=3600, name="calls", **SHARED)
    async with serving(redis_url, many) as server:

        async def leased() -> Permit | None:
            permit = await admitted(server)
            return permit if permit.decision.leased else None

        permit = await eventually(leased)
        assert permit is not None
        server.admission.charging.charge_again(permit, 60_000)
        server.admission.settlements.flush()
        refusal: Refused | None = None
        for _ in range(20_000):  # what is leased may be spent
            try:
                await admitted(server)
            except Refused as error:
                refusal = error
                break
        assert refusal is not None
        assert refusal.decision.reason is Reason.VENDOR_LIMIT


async def test_without_redis_the_share_of_the_pod_is_charged():
    async with serving("", KINDS["window"], connected=False) as server:
        permit = await admitted(server)
        assert permit.decision.mode is Mode.LOCAL
        server.admission.charging.charge_again(permit, 19)
        with pytest.raises(Refused):
            await admitted(server)
        alone = server.admission.redis_fallback.allowed_alone()
        assert alone is not None
        assert alone.unreported == 20


async def test_another_agent_charges_nothing(limits: redis.Redis, redis_url: str):
    async with serving(redis_url, KINDS["window"]) as server, serving(redis_url, KINDS["window"]) as other:
        permit = await admitted(server)
        other.admission.charging.charge_again(permit, 9)
        other.admission.settlements.flush()
        assert await left(other) == 19


async def test_the_agent_takes_a_whole_number(limits: redis.Redis, redis_url: str):
    payments = replace(POLICY.dependencies[0], vendor_limits=(KINDS["window"],))
    publish(limits, replace(POLICY, dependencies=(payments,), tuning=PATIENT), revision=1)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=None)) as agent:
        await eventually(lambda: agent.mode is Mode.SHARED)
        permit = await agent.admit_call("payments")
        agent.charge_again(permit, 0)
        for wrong in (-1, 1.5, True, "2"):
            with pytest.raises(Misconfigured):
                agent.charge_again(permit, wrong)  # type: ignore[arg-type]
        agent.charge_again(permit, 19)

        async def refused() -> bool:
            try:
                agent.give_back(await agent.admit_call("payments"))
            except Refused:
                return True
            return False

        assert await eventually(refused)


def test_threads_and_the_fake_take_it_too(limits: redis.Redis, redis_url: str):
    publish(limits, replace(POLICY, tuning=PATIENT), revision=1)
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=None)) as agent:
        agent.charge_again(agent.admit_call("payments"), 1)
    fake = FakeAgent()
    fake.charge_again(fake.permit_unasked("payments"), 1)
    with pytest.raises(Misconfigured):
        fake.charge_again(fake.permit_unasked("payments"), -1)
