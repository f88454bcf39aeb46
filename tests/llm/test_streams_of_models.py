"""A stream of a model is settled however it ends, hides what was not asked for, and shows its errors."""

import asyncio
import gc
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import redis

from fuseboard import Reason, Refused
from fuseboard.contract.policy import BreakerPolicy
from tests.llm.pods import RULES, billed, claude, gpt, held, outcomes, pod, spent, with_breaker
from tests.llm.vendor import Vendor
from tests.waiting import eventually
from tools.demo.model_formats import SORRY

ASKED: list[Any] = [{"role": "user", "content": "Count the parts of this stream, wherever it is cut. " * 4}]
BUSY = {"type": "overloaded_error", "message": "busy"}


async def begin(client: Any, **more: Any) -> Any:
    if isinstance(client, anthropic.AsyncAnthropic):
        return await client.messages.create(
            model="claude", messages=ASKED, max_tokens=4000, stream=True, **more
        )
    return await client.chat.completions.create(
        model="gpt-5.2", messages=ASKED, max_completion_tokens=4000, stream=True, **more
    )


def words_in(part: Any) -> int:
    if hasattr(part, "choices"):
        return str(part.choices[0].delta.content or "").count("word")
    return str(getattr(getattr(part, "delta", None), "text", "")).count("word")


async def read_all(stream: Any) -> int:
    return sum([words_in(part) async for part in stream])


async def learn(client: Any, vendor: Vendor) -> None:
    """How many letters a token of this vendor has."""
    for _ in range(5):
        vendor.will(words=100)
        await read_all(await begin(client))


@pytest.mark.parametrize("make", [gpt, claude])
@pytest.mark.parametrize("way", ["left", "connection lost", "canceled", "error event"])
@pytest.mark.parametrize("words", [1, 2, 7, 20])
async def test_a_cut_stream_is_charged_by_what_came(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any, way: str, words: int
):
    counts_cached = make is gpt
    async with pod(limits, redis_url) as agent, make(agent, vendor) as client:
        await learn(client, vendor)
        before = await settled(agent, vendor, counts_cached=counts_cached)
        if way in ("left", "canceled"):
            vendor.will(words=60, holds_after=words)
        else:
            error = SORRY if make is gpt else BUSY
            vendor.will(words=60, after=words, cuts=way == "connection lost", error=error)
        assert await read_until(await begin(client), words, way) == words
        await eventually(lambda: held(agent) == 0)
        # The reserve was more than 100.
        far = before["output_tokens"] + 60
        used = await eventually(lambda: spent(agent), accept=lambda found: found["output_tokens"] < far)
        output, counted = (used[kind] - before[kind] for kind in ("output_tokens", "input_tokens"))
        assert abs(output - words) <= max(1, 0.2 * words)
        bill = billed(vendor.bill[-1], counts_cached=counts_cached)
        exact = 0 if make is claude else 0.2
        assert counted == pytest.approx(bill["input_tokens"], rel=exact)


async def settled(agent: Any, vendor: Vendor, *, counts_cached: bool) -> dict[str, int]:
    bill = billed(*vendor.bill, counts_cached=counts_cached)
    return await eventually(lambda: spent(agent), accept=lambda found: found == bill)


async def read_until(stream: Any, words: int, way: str) -> int:
    """Read so many words of a stream, and end it this way."""
    came, enough = 0, asyncio.Event()

    async def read() -> None:
        nonlocal came
        async for part in stream:
            came += words_in(part)
            if came == words:
                enough.set()

    if way in ("connection lost", "error event"):
        with pytest.raises((openai.APIError, anthropic.APIError, httpx2.TransportError)):
            await read()
        return came
    reading = asyncio.create_task(read())
    await enough.wait()
    reading.cancel()
    await asyncio.wait([reading])
    if way == "left":
        await stream.close()
    return came


@pytest.mark.parametrize("make", [gpt, claude])
async def test_a_stream_that_is_forgotten_is_settled_too(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any
):
    async with pod(limits, redis_url) as agent:
        async with make(agent, vendor) as client:
            vendor.will(words=60, holds_after=3)
            stream = await begin(client)
            came = 0
            async for part in stream:
                came += words_in(part)
                if came == 3:
                    break
            del stream, part
            vendor.held.set()
        await eventually(lambda: gc.collect() >= 0 and held(agent) == 0)
        await eventually(lambda: spent(agent), accept=lambda found: found["output_tokens"] in range(3, 6))


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"], ids=["LF", "CRLF", "CR"])
async def test_only_a_client_that_asks_gets_the_usage(
    limits: redis.Redis, redis_url: str, vendor: Vendor, newline: str
):
    vendor.usual.newline, vendor.usual.noise = newline, newline == "\n"
    async with pod(limits, redis_url) as agent:
        async with gpt(agent, vendor) as client:
            parts = [part async for part in await begin(client)]
            assert [part.usage for part in parts if part.usage] == []
            asked = [part async for part in await begin(client, stream_options={"include_usage": True})]
            assert asked[-1].usage.completion_tokens == vendor.usual.words
            assert len(asked) == len(parts) + 1
        assert [one.body["stream_options"] for one in vendor.bill] == [{"include_usage": True}] * 2
        await settled(agent, vendor, counts_cached=True)


async def test_a_server_that_refuses_the_option_is_not_asked_for_usage(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent, gpt(agent, vendor, add_usage=False) as client:
        assert await read_all(await begin(client)) == vendor.usual.words
        assert "stream_options" not in vendor.bill[0].body


async def test_other_options_of_a_stream_are_kept(limits: redis.Redis, redis_url: str, vendor: Vendor):
    async with pod(limits, redis_url) as agent, gpt(agent, vendor) as client:
        await read_all(await begin(client, stream_options={"include_obfuscation": False}, seed=7))
    asked = {"include_obfuscation": False, "include_usage": True}
    assert vendor.bill[0].body["stream_options"] == asked
    assert (vendor.bill[0].body["seed"], vendor.bill[0].body["messages"]) == (7, ASKED)


@pytest.mark.parametrize("make", [gpt, claude])
async def test_error_events_seen_by_two_pods_open_the_breaker(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any
):
    """Case L3: three error events, in two pods; each client gets the error of its own library."""
    rules = with_breaker(RULES, BreakerPolicy(consecutive_failures=3, minimum_servers=2))
    error = SORRY if make is gpt else BUSY
    async with (
        pod(limits, redis_url, rules) as first,
        pod(limits, redis_url, rules, server="web-2") as second,
        make(first, vendor) as one,
        make(second, vendor) as other,
    ):
        for client in (one, other, one):
            vendor.will(words=9, after=5, error=error)
            with pytest.raises(openai.APIError if make is gpt else anthropic.APIStatusError) as caught:
                await read_all(await begin(client))
            assert not isinstance(caught.value, Refused)
        assert (outcomes(first), outcomes(second)) == ({"failure": 2}, {"failure": 1})

        async def refusal() -> Reason | None:
            try:
                await read_all(await begin(other))
            except Refused as refused:
                return refused.decision.reason
            return None

        await eventually(refusal, accept=lambda reason: reason is Reason.BREAKER_OPEN)


async def test_a_wrong_request_within_a_stream_says_nothing_about_the_vendor(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent:
        async with gpt(agent, vendor) as client:
            vendor.will(words=9, after=0, error={"code": "context_length_exceeded", "message": "too long"})
            with pytest.raises(openai.APIError):
                await read_all(await begin(client))
        assert outcomes(agent) == {"neutral": 1}
