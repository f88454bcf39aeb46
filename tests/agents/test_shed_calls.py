"""Calls to an slow dependency are shed from the least important tier on. And what they say of the pod."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Outcome, Reason, Refused
from fuseboard.admission.call_guard import CallGuard
from fuseboard.contract.policy import Dependency
from fuseboard.contract.protection import Bulkhead, CallProtection, Observe, PodProtection, Shedding
from fuseboard.contract.words import WhenFull
from fuseboard.decision import Permit
from tests.agents.pressed import pod_of, press
from tests.agents.published import publish
from tests.agents.servers import POLICY
from tests.waiting import eventually

WAITS = (WhenFull.QUEUE,) * 3
PAYMENTS = Dependency(
    name="payments",
    protection=CallProtection(
        sla_ms=1000,
        bulkhead=Bulkhead(max_concurrent=3, queues=(10, 10, 10), when_full=WAITS, queue_timeout_ms=600_000),
    ),
)
RULES = msgspec.structs.replace(
    POLICY, dependencies=(PAYMENTS,), protection=PodProtection(shedding=Shedding(queue_max=2))
)


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    publish(limits, RULES, revision=1)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await eventually(lambda: agent.configuration.snapshot.head.revision == 1)
        press(agent, 0.1)
        yield agent


def guard_of(agent: Agent) -> CallGuard:
    guard = agent._runtime.admission.guards.find("payments")
    assert guard is not None
    return guard


def look_now(agent: Agent) -> None:
    """The next call looks at the figures, however little time has passed."""
    calls = agent._runtime.inbound._call_shedding
    assert calls is not None
    for shedder in calls._shedders.values():
        shedder._look_at = shedder.quiet_until = float("-inf")


async def waiting_calls(agent: Agent, count: int) -> list[asyncio.Task[Permit]]:
    """One critical call has the slot of its tier, and so many wait for it."""
    permit = await agent.admit_call("payments", tier="critical")
    asking = [asyncio.create_task(agent.admit_call("payments", tier="critical")) for _ in range(count)]
    await eventually(lambda: guard_of(agent).waiting == count)
    asking.insert(0, asyncio.create_task(_already(permit)))
    return asking


async def _already(permit: Permit) -> Permit:
    return permit


async def end(agent: Agent, asking: list[asyncio.Task[Permit]]) -> None:
    for task in asking:
        agent.report(await task, Outcome.OK)


async def refusal(agent: Agent, tier: str) -> Reason | None:
    try:
        permit = await agent.admit_call("payments", tier=tier)
    except Refused as refused:
        decision = refused.decision
        return decision.reason if decision.retry_after_ms >= 1000 else None
    agent.report(permit, Outcome.OK)
    return None


async def test_while_too_many_calls_wait_optional_calls_are_shed(agent: Agent):
    asking = await waiting_calls(agent, 2)
    look_now(agent)
    assert await refusal(agent, "optional") is None
    asking += await waiting_calls_more(agent)
    look_now(agent)
    assert await refusal(agent, "optional") is Reason.SHED
    assert await refusal(agent, "standard") is None
    assert agent.resilience()["dependencies"]["payments"]["shed"] == "optional"
    # The pod's own shortage is no failure of the vendor.
    counted = agent.counters.wire().dependencies[0]
    assert (counted.failure, counted.refused) == (0, {Reason.SHED: 1})
    await end(agent, asking)


async def waiting_calls_more(agent: Agent) -> list[asyncio.Task[Permit]]:
    before = guard_of(agent).waiting
    task = asyncio.create_task(agent.admit_call("payments", tier="critical"))
    await eventually(lambda: guard_of(agent).waiting == before + 1)
    return [task]


async def test_a_shed_call_holds_nothing(agent: Agent):
    asking = await waiting_calls(agent, 3)
    look_now(agent)
    for _ in range(10):
        assert await refusal(agent, "optional") is Reason.SHED
    bulkhead = guard_of(agent).bulkhead
    assert bulkhead is not None
    assert [tier.active for tier in bulkhead.tiers] == [1, 0, 0]
    await end(agent, asking)
    assert bulkhead.in_flight == 0


async def test_observe_mode_sheds_no_call_and_counts(agent: Agent, limits: redis.Redis):
    observing = PodProtection(shedding=Shedding(queue_max=2), observe=Observe(shedding_until_us=2**52))
    publish(limits, msgspec.structs.replace(RULES, protection=observing), revision=2)
    await eventually(lambda: agent.configuration.snapshot.head.revision == 2)
    asking = await waiting_calls(agent, 3)
    look_now(agent)
    assert await refusal(agent, "optional") is None
    load = agent._runtime.inbound.load()
    assert load is not None
    assert load.observed == 1
    await end(agent, asking)


async def test_without_the_pods_shedding_calls_are_not_asked_about(agent: Agent, limits: redis.Redis):
    assert agent._runtime.admission.guarded.shed is not None
    publish(limits, msgspec.structs.replace(RULES, protection=None), revision=2)
    await eventually(lambda: agent.configuration.snapshot.head.revision == 2)
    assert agent._runtime.admission.guarded.shed is None
    asking = await waiting_calls(agent, 3)
    assert await refusal(agent, "optional") is None
    await end(agent, asking)


async def test_a_slow_dependency_sheds_by_its_sla(agent: Agent):
    guard = guard_of(agent)
    for _ in range(30):
        guard.latency.add(1.2, guard.clock())
    assert await refusal(agent, "optional") is Reason.SHED
    assert await refusal(agent, "standard") is None
    # It is not pressure of the pod: otherwise a bad vendor would make all pods unready.
    press(agent, 0.1)
    assert agent.pressure().value == 0


async def test_waiting_calls_are_pressure_of_the_pod(agent: Agent):
    asking = await waiting_calls(agent, 2)
    press(agent, 0.1)
    assert agent.pressure().explain() == "1.00 because 2 calls wait (limit 2)"
    assert pod_of(agent).load().waiting == 2
    await end(agent, asking)


async def test_one_full_bulkhead_of_several_is_no_pressure_by_its_slots(agent: Agent, limits: redis.Redis):
    other = msgspec.structs.replace(
        PAYMENTS, name="search", protection=CallProtection(bulkhead=Bulkhead(max_concurrent=97))
    )
    many = msgspec.structs.replace(
        RULES, dependencies=(PAYMENTS, other), protection=PodProtection(shedding=Shedding())
    )
    publish(limits, many, revision=2)
    await eventually(lambda: agent.configuration.snapshot.head.revision == 2)
    asking = await waiting_calls(agent, 3)
    press(agent, 0.1)
    assert agent.pressure().value == 0
    slots = next(one for one in agent.pressure().signals if one.name == "slots")
    assert slots.measured == pytest.approx(1 / 100)
    await end(agent, asking)


async def test_bulkheads_shrink_while_the_cpu_is_short(agent: Agent, limits: redis.Redis):
    bulkhead = Bulkhead(max_concurrent=20, resize_under_pressure=True)
    shrinking = msgspec.structs.replace(PAYMENTS, protection=CallProtection(bulkhead=bulkhead))
    publish(limits, msgspec.structs.replace(RULES, dependencies=(shrinking,)), revision=2)
    await eventually(lambda: agent.configuration.snapshot.head.revision == 2)
    press(agent, 0.95)
    tiers = agent.resilience()["dependencies"]["payments"]["tiers"]
    assert {name: tier["limit"] for name, tier in tiers.items()} == {
        "critical": 10,
        "standard": 2,
        "optional": 1,
    }
