"""Pods whose calls to models are limited, and what is left of their limits."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import redis
from msgspec.structs import replace

import fuseboard
from fuseboard import Agent, AgentSettings, Mode, blocking
from fuseboard.contract.models import Model
from fuseboard.contract.policy import BreakerPolicy, Dependency, Limit, Policy, Tier
from fuseboard.contract.protection import Bulkhead, CallProtection
from fuseboard.contract.words import Outcome
from fuseboard.llm.usage import MEASURES, SETTLED
from tests.agents.alone import settings_with
from tests.agents.limit_kinds import window
from tests.agents.published import publish
from tests.agents.servers import PATIENT, POLICY
from tests.llm.vendor import Vendor
from tests.waiting import eventually, wait_until
from tools.demo.model_formats import Charged

#: No limit is reached, and nothing leaves its window.
LIMIT = 1_000_000
MONTH_S = 30 * 86_400.0
#: Clients wait 5 s for a connection by default. A busy loop that opens hundreds at once takes longer.
CONNECT_S = 60.0


def limits_of(*measures: str, prefix: str = "", **more: Any) -> tuple[Limit, ...]:
    return tuple(
        window(LIMIT, MONTH_S, name=f"{prefix}{measure}", measure=measure, **more) for measure in measures
    )


def dependency(name: str, **more: Any) -> Dependency:
    return Dependency(
        name=name,
        vendor_limits=limits_of("calls", *MEASURES),
        breaker=more.pop("breaker", BreakerPolicy(consecutive_failures=3, minimum_servers=1)),
        protection=CallProtection(bulkhead=Bulkhead(max_concurrent=50)),
        **more,
    )


#: A quota of the tenant on all its requests, and one on its calls to the model.
QUOTAS = (
    *limits_of("calls", "tokens", prefix="all-"),
    *limits_of("output_tokens", prefix="llm-", dependency="llm"),
)
RULES = Policy(
    environment=POLICY.environment,
    default_tier="free",
    tiers=(Tier(name="free", quotas=QUOTAS),),
    dependencies=(dependency("llm"), dependency("gpt-own")),
    models=(Model(name="gpt-own", aliases=("models/own",), pool="gpt-own"), Model(name="hosted")),
    tuning=PATIENT,
)


@asynccontextmanager
async def pod(
    limits: redis.Redis, redis_url: str, rules: Policy = RULES, server: str = "web-1"
) -> AsyncIterator[Agent]:
    publish(limits, rules, revision=1)
    async with Agent(settings=AgentSettings(redis_url=redis_url, server=server)) as agent:
        await eventually(
            lambda: agent.mode is Mode.SHARED and agent.configuration.snapshot.head.revision == 1
        )
        yield agent


@contextmanager
def thread_pod(
    limits: redis.Redis, redis_url: str, folder: Path, rules: Policy = RULES
) -> Iterator[blocking.Agent]:
    publish(limits, rules, revision=1)
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=folder)) as agent:
        wait_until(lambda: agent.mode is Mode.SHARED and agent.configuration.snapshot.head.revision == 1)
        yield agent


@asynccontextmanager
async def pod_alone(folder: Path, rules: Policy = RULES) -> AsyncIterator[Agent]:
    """A pod without Redis."""
    async with Agent(settings=settings_with(folder, rules)) as agent:
        yield agent


def gpt(agent: Any, vendor: Vendor, name: str = "llm", **options: Any) -> openai.AsyncOpenAI:
    timeout = openai.Timeout(600.0, connect=CONNECT_S)
    client = openai.AsyncOpenAI(
        api_key="made-up", base_url=f"{vendor.url}/v1", max_retries=0, timeout=timeout
    )
    return fuseboard.guard(client, agent, name, **options)


def claude(agent: Any, vendor: Vendor, name: str = "llm", **options: Any) -> anthropic.AsyncAnthropic:
    timeout = anthropic.Timeout(600.0, connect=CONNECT_S)
    client = anthropic.AsyncAnthropic(api_key="made-up", base_url=vendor.url, max_retries=0, timeout=timeout)
    return fuseboard.guard(client, agent, name, **options)


async def spent(agent: Agent, name: str = "llm", tenant: str = "") -> dict[str, int]:
    """What is spent of each limit of the vendor, and of the quotas of the tenant."""
    agent._runtime.admission.settlements.flush()  # answers come in the order of questions
    costs = dict.fromkeys(SETTLED, 1)
    # A vendor that has answered a 429 is not called for a moment.
    permit = await agent.admit_call(name, costs=costs, tenant=tenant, wait_s=30)
    agent.give_back(permit)
    found = {limit.name: LIMIT - (limit.remaining or 0) - 1 for limit in permit.decision.limits}
    if tenant:
        decision = await agent.admit_request(tenant, costs=costs)
        agent.give_back(decision)
        found |= {limit.name: LIMIT - (limit.remaining or 0) - 1 for limit in decision.limits}
    agent._runtime.admission.settlements.flush()
    return found


def billed(*charged: Charged, counts_cached: bool) -> dict[str, int]:
    """What the limits of the vendor must have counted of its bill."""
    counted = sum(one.fresh + one.written + (one.cached if counts_cached else 0) for one in charged)
    output = sum(one.output for one in charged)
    return {
        "calls": len(charged),
        "tokens": counted + output,
        "input_tokens": counted,
        "output_tokens": output,
        "fresh_tokens": sum(one.fresh for one in charged),
        "cached_tokens": sum(one.cached for one in charged),
        "written_tokens": sum(one.written for one in charged),
    }


def outcomes(agent: Agent, name: str = "llm") -> dict[str, int]:
    found = {}
    for counted in agent.counters.wire().dependencies:
        if counted.dependency == name:
            found = {kind.value: getattr(counted, kind.value) for kind in Outcome}
    return {kind: total for kind, total in found.items() if total}


def held(agent: Agent, name: str = "llm") -> int:
    guard = agent._runtime.admission.guards.find(name)
    assert guard is not None
    return len(guard._calls)


def with_breaker(rules: Policy, breaker: BreakerPolicy) -> Policy:
    return replace(rules, dependencies=tuple(replace(one, breaker=breaker) for one in rules.dependencies))
