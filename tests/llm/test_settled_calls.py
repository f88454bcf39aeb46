"""The limits count what the vendor bills, to the token: real clients of OpenAI and Anthropic."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
import redis
from msgspec.structs import replace

import fuseboard
from fuseboard import Refused
from tests.agents.limit_kinds import window
from tests.llm.pods import (
    MONTH_S,
    RULES,
    billed,
    claude,
    gpt,
    held,
    outcomes,
    pod,
    pod_alone,
    spent,
    thread_pod,
)
from tests.llm.vendor import Vendor
from tests.waiting import eventually, wait_until

ASKED: list[Any] = [{"role": "user", "content": "Which tokens will this call use, and who counts them? " * 3}]


async def chat(client: openai.AsyncOpenAI, *, stream: bool) -> None:
    answer: Any = await client.chat.completions.create(
        model="gpt-5.2", messages=ASKED, max_completion_tokens=1000, stream=stream
    )
    if stream:
        async for part in answer:
            part.choices[0]  # an event without a choice is for those who ask for it


async def complete(client: openai.AsyncOpenAI, *, stream: bool) -> None:
    answer: Any = await client.completions.create(
        model="gpt-3.5-turbo-instruct", prompt="Which tokens? " * 20, max_tokens=1000, stream=stream
    )
    if stream:
        async for part in answer:
            part.choices[0]  # an event without a choice is for those who ask for it


async def respond(client: openai.AsyncOpenAI, *, stream: bool) -> None:
    answer: Any = await client.responses.create(
        model="gpt-5.2", input=ASKED, max_output_tokens=1000, stream=stream
    )
    if stream:
        async for _ in answer:
            """Read."""


async def embed(client: openai.AsyncOpenAI, *, stream: bool) -> None:
    await client.embeddings.create(model="text-embedding-3-small", input="Which tokens? " * 20)


async def message(client: anthropic.AsyncAnthropic, *, stream: bool) -> None:
    answer: Any = await client.messages.create(
        model="claude-sonnet-4-6", messages=ASKED, max_tokens=1000, stream=stream
    )
    if stream:
        async for _ in answer:
            """Read."""


WAYS = {
    "chat": (gpt, chat, True),
    "completions": (gpt, complete, True),
    "responses": (gpt, respond, True),
    "embeddings": (gpt, embed, True),
    "messages": (claude, message, False),
}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("way", WAYS)
async def test_limits_and_quotas_count_the_bill_of_the_vendor(
    limits: redis.Redis, redis_url: str, vendor: Vendor, way: str, stream: bool
):
    make, ask, counts_cached = WAYS[way]
    async with pod(limits, redis_url) as agent:
        async with make(agent, vendor, tenant="acme") as client:  # type: ignore[operator]
            for words in (7, 300):
                vendor.usual.words = words
                await ask(client, stream=stream)
        assert outcomes(agent) == {"ok": 2}
        assert held(agent) == 0
        bill = billed(*vendor.bill, counts_cached=counts_cached)
        # A quota on requests has counted the request that makes the call.
        quotas = {
            "all-calls": 0,
            "all-tokens": bill["tokens"],
            "llm-output_tokens": bill["output_tokens"],
        }
        await eventually(
            lambda: spent(agent, tenant="acme"), accept=lambda found: found == {**bill, **quotas}
        )


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_threads_count_the_same(
    limits: redis.Redis, redis_url: str, tmp_path: Path, vendor: Vendor, stream: bool
):
    one = openai.OpenAI(api_key="made-up", base_url=f"{vendor.url}/v1")
    other = anthropic.Anthropic(api_key="made-up", base_url=vendor.url)
    with thread_pod(limits, redis_url, tmp_path) as agent, one, other:
        fuseboard.guard(one, agent, "llm")
        fuseboard.guard(other, agent, "llm")
        answers: list[Any] = [
            one.chat.completions.create(model="gpt-5.2", messages=ASKED, stream=stream),
            other.messages.create(model="claude", messages=ASKED, max_tokens=1000, stream=stream),
        ]
        if stream:
            assert [len(list(answer)) > 20 for answer in answers] == [True, True]
        bill = billed(vendor.bill[0], counts_cached=True)
        for measure, amount in billed(vendor.bill[1], counts_cached=False).items():
            bill[measure] += amount
        started = agent._started()

        def now() -> dict[str, int]:
            return asyncio.run_coroutine_threadsafe(spent(started), started.loop).result(60)

        wait_until(now, accept=lambda found: found == bill)


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_pod_without_redis_settles_its_share_too(tmp_path: Path, vendor: Vendor, stream: bool):
    few = window(10_000, MONTH_S, name="tokens", measure="tokens")
    rules = replace(RULES, dependencies=(replace(RULES.dependencies[0], vendor_limits=(few,)),))
    async with pod_alone(tmp_path, rules) as agent:
        async with gpt(agent, vendor) as client:
            # Each reserves more than 1,000 tokens, and uses less than 100.
            for _ in range(25):
                await chat(client, stream=stream)
        used = billed(*vendor.bill, counts_cached=True)["tokens"]
        with pytest.raises(Refused, match="tokens"):
            await agent.admit_call("llm", costs={"tokens": 10_000 - used + 1})
        await agent.admit_call("llm", costs={"tokens": 10_000 - used})


@pytest.mark.parametrize("status", [429, 500, 400, 401, 529])
async def test_an_answered_error_costs_a_call_and_no_token(
    limits: redis.Redis, redis_url: str, vendor: Vendor, status: int
):
    async with pod(limits, redis_url) as agent:
        async with gpt(agent, vendor) as client:
            vendor.will(status=status)
            with pytest.raises(openai.APIStatusError):
                await chat(client, stream=False)
        assert held(agent) == 0
        nothing = dict.fromkeys(billed(counts_cached=True), 0)
        await eventually(lambda: spent(agent), accept=lambda found: found == {**nothing, "calls": 1})


async def test_a_redirect_costs_a_call_and_the_request_that_follows_it_its_bill(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent, gpt(agent, vendor) as client:
        vendor.will(status=307, headers={"Location": f"{vendor.url}/v1/responses"})
        await chat(client, stream=False)
        assert [one.path for one in vendor.bill] == ["/v1/chat/completions", "/v1/responses"]
        # This one asks no model.
        vendor.will(status=303, headers={"Location": f"{vendor.url}/v1/files"})
        await client.with_raw_response.chat.completions.create(model="m", messages=ASKED)
        assert vendor.bill[-1].path == "/v1/files"
        bill = billed(*vendor.bill, counts_cached=True)
        await eventually(lambda: spent(agent), accept=lambda found: found == bill)


async def test_a_body_that_is_wrong_for_us_alone_costs_its_bill(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent:
        async with gpt(agent, vendor) as client:
            # The vendor of this test does not read these fields.
            for wrong in ({"max_tokens": "100"}, {"n": 1.5}):
                await client.with_raw_response.chat.completions.create(
                    model="m", messages=ASKED, extra_body=wrong
                )
        bill = billed(*vendor.bill, counts_cached=True)
        await eventually(lambda: spent(agent), accept=lambda found: found == bill)


async def test_a_request_that_was_not_sent_costs_no_token(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url) as agent:
        client = openai.AsyncOpenAI(api_key="made-up", base_url="http://127.0.0.1:1/v1", max_retries=0)
        with pytest.raises(openai.APIConnectionError):
            await chat(fuseboard.guard(client, agent, "llm"), stream=True)
        await eventually(lambda: spent(agent), accept=lambda found: found["tokens"] == 0)


async def test_a_vendor_that_reports_no_usage_is_charged_by_what_came(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    vendor.usual.reports_usage = False
    async with pod(limits, redis_url) as agent:
        async with gpt(agent, vendor) as client:
            await chat(client, stream=True)
        found = await eventually(lambda: spent(agent), accept=lambda found: found["output_tokens"] < 1000)
        # 20 words of 5 letters, at 4 letters a token.
        assert found["output_tokens"] == 25
        assert 0 < found["input_tokens"] < 200


async def test_requests_that_ask_no_model_cost_a_call(limits: redis.Redis, redis_url: str, vendor: Vendor):
    async with pod(limits, redis_url) as agent:
        async with gpt(agent, vendor) as client:
            await client.models.list()
        nothing = dict.fromkeys(billed(counts_cached=True), 0)
        await eventually(lambda: spent(agent), accept=lambda found: found == {**nothing, "calls": 1})
