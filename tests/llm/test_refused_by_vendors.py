"""A vendor that refuses calls: what they are charged, who waits, for how long, and who goes on."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import anthropic
import openai
import pytest
import redis
from msgspec.structs import replace

import fuseboard
from fuseboard import Agent, Reason, Refused
from fuseboard.contract.words import BreakerState
from tests.agents.limit_kinds import window
from tests.llm.money import (
    CLAUDE,
    GPT,
    NEVER_OPENS,
    charge,
    of_account,
    of_tenant,
    priced,
)
from tests.llm.pods import RULES, claude, gpt, outcomes, pod, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ASKED: list[Any] = [{"role": "user", "content": "May we ask you once more? " * 8}]
TOO_LARGE = {
    "code": "rate_limit_exceeded",
    "message": "Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 30601.",
}


async def ask(client: Any, **more: Any) -> Any:
    options = {"messages": ASKED, "max_tokens": 900, **more}
    if isinstance(client, anthropic.AsyncAnthropic):
        return await client.messages.create(**{"model": CLAUDE, **options})
    return await client.chat.completions.create(**{"model": GPT, **options})


async def test_a_thousand_calls_that_the_vendor_refuses_cost_no_budget_anything(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    """Case L4: 1,000 calls answered 429, 500 and 400, streamed and not, of both clients: budgets +0."""
    async with (
        pod(limits, redis_url, priced(breaker=NEVER_OPENS)) as agent,
        gpt(agent, vendor, "", wait_s=30) as one,
        claude(agent, vendor, "", wait_s=30) as other,
    ):

        async def refused(number: int) -> None:
            with pytest.raises((openai.APIStatusError, anthropic.APIStatusError)):
                await ask((one, other)[number % 2], stream=number % 3 == 0)

        with fuseboard.tenant("acme"):
            for first in range(0, 1_000, 10):
                for number in range(10):
                    # The fleet waits as long as the vendor asks it to.
                    status = (429, 500, 400)[(first + number) % 3]
                    vendor.will(status=status, headers={"retry-after-ms": "1"} if status == 429 else {})
                await asyncio.gather(*map(refused, range(first, first + 10)))
            assert vendor.requests == 1_000
            # The same counters count what is answered.
            await ask(one)
            await ask(other)
        (gpt_bill, claude_bill) = vendor.bill[-2:]
        await eventually(lambda: of_tenant(limits), accept=lambda found: found == charge(*vendor.bill))
        assert of_tenant(limits) == charge(gpt_bill, claude_bill) > 0
        await eventually(lambda: of_account(limits, GPT), accept=lambda found: found == charge(gpt_bill))
        await eventually(
            lambda: of_account(limits, CLAUDE), accept=lambda found: found == charge(claude_bill)
        )
        tokens = gpt_bill.input + gpt_bill.output
        await eventually(lambda: spent(agent, "gpt"), accept=lambda found: found["tokens"] == tokens)


#: What a vendor of 30,000 tokens an hour has left, and the time until a call has room that costs so many. The
#: seconds that a slow test takes change nothing in an hour.
LIMIT, LEFT, LARGE, HOUR_S = 30_000, 600, 5_000, 3_600
WAIT_S = (LARGE - LEFT) / (LIMIT / HOUR_S)
FULL_S = (LIMIT - LEFT) / (LIMIT / HOUR_S)


def stated(make: Any) -> dict[str, str]:
    """A 429 with what is left, and without a time to come back."""
    if make is gpt:
        return {
            "x-ratelimit-limit-tokens": str(LIMIT),
            "x-ratelimit-remaining-tokens": str(LEFT),
            "x-ratelimit-reset-tokens": f"{FULL_S}s",
        }
    full = datetime.now(UTC) + timedelta(seconds=FULL_S)
    return {
        "anthropic-ratelimit-tokens-limit": str(LIMIT),
        "anthropic-ratelimit-tokens-remaining": str(LEFT),
        "anthropic-ratelimit-tokens-reset": f"{full:%Y-%m-%dT%H:%M:%SZ}",
    }


@pytest.mark.parametrize("make", [gpt, claude])
async def test_429s_without_a_time_open_nothing_and_small_calls_pass_while_large_ones_wait(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any
):
    """Case L16: 50 answers of 429 without a time, at once; the wait is computed from what is left."""
    per_hour = window(LIMIT, HOUR_S, name="tokens", measure="tokens")
    rules = replace(
        RULES,
        tiers=(replace(RULES.tiers[0], quotas=()),),
        dependencies=(replace(RULES.dependencies[0], vendor_limits=(per_hour,), protection=None),),
    )
    async with pod(limits, redis_url, rules) as agent, make(agent, vendor) as client:
        vendor.answers.clear()
        vendor.will(50, status=429, headers=stated(make))
        calls = [asyncio.create_task(ask(client, max_tokens=10)) for _ in range(50)]
        await eventually(lambda: vendor.requests == 50)
        vendor.answers.set()
        ended = await asyncio.gather(*calls, return_exceptions=True)
        assert {type(one) for one in ended} == {
            openai.RateLimitError if make is gpt else anthropic.RateLimitError
        }
        assert outcomes(agent) == {"neutral": 50}
        (breaker,) = [view for view in agent._runtime.admission.breaker_views() if view.dependency == "llm"]
        assert breaker.state is BreakerState.CLOSED

        async def waits_s() -> float:
            """How long a large call has to wait."""
            with pytest.raises(Refused) as caught:
                await agent.admit_call("llm", costs={"tokens": LARGE}, wait_s=0)
            decision = caught.value.decision
            return decision.retry_after_ms / 1000 if decision.rule == "tokens" else 0.0

        # The whole fleet pauses for a second only.
        wait_s = await eventually(waits_s)
        assert 0.3 * WAIT_S <= wait_s <= 1.5 * WAIT_S < 0.5 * FULL_S
        small = await ask(client, max_tokens=10)
        assert small.usage is not None
        assert vendor.requests == 51
        assert await waits_s() > 0, "the large one waits still"


@pytest.mark.parametrize("said_by", ["vendor", "limit"])
async def test_a_prompt_that_never_fits_stops_nobody_else(
    limits: redis.Redis, redis_url: str, vendor: Vendor, said_by: str
):
    """Case L17: one prompt larger than the tokens per minute: that call is degradable, and others go on."""
    small = window(4_000, 60, name="tokens", measure="tokens")
    rules = replace(
        RULES,
        tiers=(replace(RULES.tiers[0], quotas=()),),
        dependencies=(replace(RULES.dependencies[0], vendor_limits=(small,) if said_by == "limit" else ()),),
    )
    async with (
        pod(limits, redis_url, rules) as first,
        pod(limits, redis_url, rules, server="web-2") as second,
        gpt(first, vendor) as one,
        gpt(second, vendor) as other,
    ):
        too_long: list[Any] = [{"role": "user", "content": "word " * 30_000}]
        if said_by == "vendor":
            vendor.will(status=429, headers={"retry-after": "30"}, error=TOO_LARGE)
        with pytest.raises(openai.APIError) as caught:
            await ask(one, messages=too_long)
        if said_by == "vendor":
            assert fuseboard.classify(caught.value).degradable
        else:
            assert isinstance(caught.value, Refused)
        assert vendor.requests == (said_by == "vendor")
        # At once, in the same pod and in another one.
        for client in (one, other, one):
            await ask(client, max_tokens=5)
        assert not limits.keys("*cooldown*")
        for agent in (first, second):
            assert await is_open(agent) is False


async def is_open(agent: Agent) -> bool:
    try:
        agent.give_back(await agent.admit_call("llm", costs={"tokens": 1}))
    except Refused as refused:
        return refused.decision.reason in (Reason.BREAKER_OPEN, Reason.COOLING_DOWN)
    return False
