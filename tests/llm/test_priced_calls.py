"""Real clients are charged micro-USD by the price of their model, to the unit."""

import asyncio
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent, Refused
from fuseboard.contract.models import Model, Price, micro_usd
from fuseboard.contract.policy import Dependency, Policy, Tier
from fuseboard.contract.words import Outcome
from fuseboard.llm import transport
from tests.agents.limit_kinds import window
from tests.agents.published import publish
from tests.llm.pods import MONTH_S, RULES, claude, gpt, limits_of, pod, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually
from tools.demo.model_formats import Charged

ASKED: list[Any] = [{"role": "user", "content": "What does this call cost, and who pays for it? " * 3}]
GPT = Price(starts_at_s=0, input=2_500_000, cached=250_000, written=2_500_000, output=10_000_001)
CLAUDE = Price(starts_at_s=0, input=3_000_000, cached=300_000, written=3_750_000, output=15_000_000)
#: A USD per month, for the pool and for each tenant.
POOL = Dependency(name="pool", vendor_limits=limits_of("micro_usd"))
PRICED = Policy(
    environment=RULES.environment,
    default_tier="free",
    tiers=(Tier(name="free", quotas=limits_of("micro_usd", prefix="own-")),),
    dependencies=(POOL,),
    models=(
        Model(name="gpt-5.2", aliases=("large",), pool="pool", prices=(GPT,)),
        Model(name="claude-sonnet-4-6", pool="pool", prices=(CLAUDE,)),
        Model(name="gpt-new", pool="pool"),
    ),
    tuning=RULES.tuning,
)


def cost(price: Price, *charged: Charged) -> int:
    """The bill of the vendor. Each call is rounded up."""
    return sum(
        micro_usd(price, fresh=one.fresh, cached=one.cached, written=one.written, output=one.output)
        for one in charged
    )


async def ask(client: Any, model: str, *, stream: bool = False) -> None:
    answer = await client.chat.completions.create(
        model=model, messages=ASKED, max_completion_tokens=1000, stream=stream
    )
    if stream:
        async for _ in answer:
            """Read."""


async def money(agent: Agent, expected: int) -> None:
    await eventually(lambda: spent(agent, "pool"), accept=lambda found: found == {"micro_usd": expected})


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_the_pool_and_the_tenant_pay_the_bill(
    limits: redis.Redis, redis_url: str, vendor: Vendor, stream: bool
):
    async with pod(limits, redis_url, PRICED) as agent:
        async with gpt(agent, vendor, "", tenant="acme") as one, claude(agent, vendor, "") as other:
            for name in ("gpt-5.2", "large", "gpt-5.2-2026-01-01"):
                await ask(one, name, stream=stream)
            said = await other.messages.create(
                model="claude-sonnet-4-6-20260101", messages=ASKED, max_tokens=1000, stream=stream
            )
            if stream:
                async for _ in said:
                    """Read."""
        first, last = cost(GPT, *vendor.bill[:3]), cost(CLAUDE, vendor.bill[3])
        assert vendor.bill[3].written
        assert min(first, last) > 0
        await eventually(
            lambda: spent(agent, "pool", tenant="acme"),
            accept=lambda found: found == {"micro_usd": first + last, "own-micro_usd": first},
        )


async def test_a_model_without_a_price_costs_nothing(limits: redis.Redis, redis_url: str, vendor: Vendor):
    async with pod(limits, redis_url, PRICED) as agent, gpt(agent, vendor, "", tenant="acme") as client:
        await ask(client, "gpt-new")
        await ask(client, "gpt-new", stream=True)
        await ask(client, "gpt-5.2")
        await money(agent, cost(GPT, vendor.bill[2]))


async def test_a_model_of_another_pool_has_its_price_under_a_given_name(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    models = tuple(replace(model, pool="") for model in PRICED.models)
    async with pod(limits, redis_url, replace(PRICED, models=models)) as agent:
        async with gpt(agent, vendor, "pool") as client:
            await ask(client, "gpt-5.2")
        await money(agent, cost(GPT, *vendor.bill))


async def test_an_answered_error_costs_no_money(limits: redis.Redis, redis_url: str, vendor: Vendor):
    async with pod(limits, redis_url, PRICED) as agent, gpt(agent, vendor, "") as client:
        vendor.will(status=500)
        await asyncio.gather(ask(client, "gpt-5.2"), return_exceptions=True)
        await money(agent, 0)


async def test_a_call_that_costs_more_than_is_left_is_not_sent(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    # The output alone may cost 10,000 micro-USD.
    few = window(9_000, MONTH_S, name="micro_usd", measure="micro_usd")
    taken = window(9_000, MONTH_S, name="calls", measure="calls")
    rules = replace(PRICED, dependencies=(replace(POOL, vendor_limits=(few, taken)),))
    async with pod(limits, redis_url, rules) as agent, gpt(agent, vendor, "") as client:
        permit = await agent.admit_call("pool", costs={"micro_usd": 1_000})
        agent.report(permit, Outcome.OK)
        with pytest.raises(Refused, match="micro_usd"):
            await ask(client, "gpt-5.2")
        assert vendor.requests == 0


async def test_a_price_begins_at_its_instant_and_a_call_keeps_the_one_at_its_start(
    limits: redis.Redis, redis_url: str, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
):
    clock = [1_999.0]
    monkeypatch.setattr(transport, "time", lambda: clock[0])
    later = Price(starts_at_s=2_000, input=5_000_000, cached=5_000_000, written=5_000_000, output=0)
    model = replace(PRICED.models[0], prices=(GPT, later))
    async with pod(limits, redis_url, replace(PRICED, models=(model,))) as agent:
        async with gpt(agent, vendor, "") as client:
            answer = await client.chat.completions.create(
                model="gpt-5.2", messages=ASKED, max_completion_tokens=1000, stream=True
            )
            clock[0] = 2_000.0
            async for _ in answer:
                """The price changes before the end of this call."""
            first = cost(GPT, vendor.bill[0])
            await money(agent, first)
            await ask(client, "gpt-5.2")
        await money(agent, first + cost(later, vendor.bill[1]))


async def test_a_price_that_is_published_during_a_call_applies_to_the_next_one(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url, PRICED) as agent, gpt(agent, vendor, "") as client:
        answer = await client.chat.completions.create(
            model="gpt-5.2", messages=ASKED, max_completion_tokens=1000, stream=True
        )
        double = replace(GPT, output=20_000_000)
        models = (replace(PRICED.models[0], prices=(double,)),)
        publish(limits, replace(PRICED, models=models), revision=2)
        await eventually(lambda: agent.configuration.snapshot.head.revision == 2)
        async for _ in answer:
            """Read."""
        await ask(client, "gpt-5.2")
        await money(agent, cost(GPT, vendor.bill[0]) + cost(double, vendor.bill[1]))
