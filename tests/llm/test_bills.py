"""The settlements add up to the bill of the vendor, whatever became of the calls, with Redis and without."""

from pathlib import Path
from random import Random
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent, Refused
from fuseboard.contract.policy import BreakerPolicy
from tests.llm.pods import LIMIT, RULES, billed, claude, gpt, held, pod, pod_alone, spent, with_breaker
from tests.llm.vendor import Vendor
from tests.waiting import eventually

#: The breaker never opens, so that every call is made.
PATIENT = with_breaker(RULES, BreakerPolicy(consecutive_failures=0, minimum_calls=100_000))
ENDS = ["whole", "stream", "stream", "left", "cut", "error event", "500", "400"]


async def call(client: Any, vendor: Vendor, end: str, random: Random) -> None:
    """Make one call that ends this way. A broken stream is charged for each word that came."""
    words, at = random.randrange(1, 80), random.randrange(1, 40)
    if end in ("500", "400"):
        vendor.will(status=int(end))
    elif end in ("cut", "error event"):
        vendor.will(words=at + 1, after=at, cuts=end == "cut")
    else:
        vendor.will(words=words)
    asked: Any = [{"role": "user", "content": "x" * random.randrange(400, 4000)}]
    try:
        if isinstance(client, anthropic.AsyncAnthropic):
            answer: Any = await client.messages.create(
                model="m", messages=asked, max_tokens=500, stream=end not in ("whole", "500")
            )
        else:
            answer = await client.chat.completions.create(
                model="m", messages=asked, max_tokens=500, stream=end not in ("whole", "500")
            )
        if end == "left":
            await answer.close()
            # Nothing came, and nothing is charged for it, but the input.
            vendor.bill[-1].output = 0
        elif end != "whole":
            async for _ in answer:
                """Read."""
    except Refused:
        raise
    except (openai.APIError, anthropic.APIError, httpx2.TransportError):
        """The vendor has failed, as it was to do."""


async def made(agent: Agent, vendor: Vendor, seed: int, make: Any) -> None:
    random = Random(seed)
    async with make(agent, vendor) as client:
        for _ in range(5):  # how many letters a token has
            vendor.will(words=100)
            if make is claude:
                stream: Any = await client.messages.create(
                    model="m", messages=[{"role": "user", "content": "x"}], max_tokens=500, stream=True
                )
            else:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "x"}], max_tokens=500, stream=True
                )
            async for _ in stream:
                """Read."""
        for _ in range(25):
            await call(client, vendor, random.choice(ENDS), random)
    await eventually(lambda: held(agent) == 0)


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("make", [gpt, claude])
async def test_limits_count_the_bill_whatever_becomes_of_the_calls(
    limits: redis.Redis, redis_url: str, vendor: Vendor, seed: int, make: Any
):
    async with pod(limits, redis_url, PATIENT) as agent:
        await made(agent, vendor, seed, make)
        bill = billed(*vendor.bill, counts_cached=make is gpt)

        def near(found: dict[str, int]) -> bool:
            """Nothing of a reserve of 500 is left: only the estimates of what broke off differ."""
            output, counted = (found[kind] - bill[kind] for kind in ("output_tokens", "input_tokens"))
            return (
                found["calls"] == bill["calls"]
                and abs(output) <= 40
                and abs(counted) <= 0.1 * bill["input_tokens"]
            )

        await eventually(lambda: spent(agent), accept=near)


@pytest.mark.parametrize("make", [gpt, claude])
async def test_a_pod_without_redis_counts_the_bill_too(tmp_path: Path, vendor: Vendor, make: Any):
    rules = replace(PATIENT, tiers=(replace(PATIENT.tiers[0], quotas=()),))
    async with pod_alone(tmp_path, rules) as agent:
        await made(agent, vendor, 3, make)
        bill = billed(*vendor.bill, counts_cached=make is gpt)["output_tokens"]
        with pytest.raises(Refused, match="output_tokens"):
            await agent.admit_call("llm", costs={"output_tokens": LIMIT - bill + 41})
        await agent.admit_call("llm", costs={"output_tokens": LIMIT - bill - 40})
