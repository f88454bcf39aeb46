"""A stream that ends early, at every event of it, is charged by what came, and frees its slot at once."""

import asyncio
from dataclasses import dataclass
from typing import Any

import anthropic
import httpx2
import openai
import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent
from tests.agents.limit_kinds import slots
from tests.llm.money import NEVER_OPENS
from tests.llm.pods import RULES, billed, claude, gpt, held, limits_of, pod, spent
from tests.llm.test_streams_of_models import begin, learn, read_all, words_in
from tests.llm.vendor import Vendor
from tests.waiting import eventually

#: Words of an answer. A call reserves 4,000 for it.
WORDS = 12
#: Events before the first word and after the last one, as each client gets them.
EVENTS = {gpt: (1, 1), claude: (2, 3)}
#: One call at a time: the next call shows that the slot is free.
LIMITS = (*limits_of("calls", "input_tokens", "output_tokens"), slots(1, seconds=3_600))
ONE_AT_A_TIME = replace(
    RULES,
    tiers=(replace(RULES.tiers[0], quotas=()),),
    dependencies=(replace(RULES.dependencies[0], vendor_limits=LIMITS, breaker=NEVER_OPENS),),
)


@dataclass
class Books:
    """What the limits have counted when nothing is under way."""

    agent: Agent
    vendor: Vendor
    counts_cached: bool
    counted: dict[str, int]

    async def add(self, words: int, *, exact_input: bool) -> None:
        """The last call is counted with this output, within 20 %."""
        off = max(1, int(0.2 * words))
        asked = billed(self.vendor.bill[-1], counts_cached=self.counts_cached)["input_tokens"]
        before = self.counted

        def near(found: dict[str, int]) -> bool:
            added = found["input_tokens"] - before["input_tokens"]
            return (
                found["calls"] == before["calls"] + 1
                and abs(found["output_tokens"] - before["output_tokens"] - words) <= off
                and (added == asked if exact_input else abs(added - asked) <= 0.2 * asked)
            )

        self.counted = await eventually(lambda: spent(self.agent), accept=near)


async def begun(agent: Agent, client: Any, vendor: Vendor, make: Any) -> Books:
    """The pod knows how many letters a token has, and too few answers to reserve less than is allowed."""
    await learn(client, vendor)
    bill = billed(*vendor.bill, counts_cached=make is gpt)
    names = ("calls", "input_tokens", "output_tokens")
    expected = {name: bill[name] for name in names}
    counted = await eventually(
        lambda: spent(agent), accept=lambda found: {name: found[name] for name in names} == expected
    )
    return Books(agent, vendor, make is gpt, counted)


@pytest.mark.parametrize("make", [gpt, claude])
@pytest.mark.parametrize("ends", ["left", "canceled"])
async def test_a_reader_may_stop_after_every_event(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any, ends: str
):
    """Case L2: cut by its reader, or its task cancelled, after k events, for all k."""
    lead, rest = EVENTS[make]
    async with (
        pod(limits, redis_url, ONE_AT_A_TIME) as agent,
        make(agent, vendor, wait_s=30) as client,
    ):
        books = await begun(agent, client, vendor, make)
        for events in range(0 if ends == "left" else 1, lead + WORDS + rest + 1):
            words = min(max(0, events - lead), WORDS)
            # Not one more word comes than is read.
            vendor.held.clear()
            vendor.will(words=WORDS, holds_after=words if events <= lead + WORDS else None)
            stream = await begin(client)
            assert await stopped_after(stream, events, ends) == words
            assert held(agent) == 0, "the slot of the pod is free at once"
            vendor.held.set()
            # The first event of Anthropic names the input.
            await books.add(words, exact_input=make is claude and events > 0)


async def stopped_after(stream: Any, events: int, ends: str) -> int:
    """The words that came."""
    words, read, enough = 0, 0, asyncio.Event()

    async def take() -> None:
        nonlocal words, read
        async for part in stream:
            words, read = words + words_in(part), read + 1
            if read == events:
                enough.set()
                if ends == "left":
                    return

    if ends == "left":
        if events:
            await take()
        await stream.close()
        return words
    reading = asyncio.create_task(take())
    waits = asyncio.create_task(enough.wait())
    await asyncio.wait([reading, waits], return_when=asyncio.FIRST_COMPLETED)
    reading.cancel()
    # A stream that ends early must not keep the test.
    waits.cancel()
    await asyncio.wait([reading, waits])
    return words


@pytest.mark.parametrize("make", [gpt, claude])
async def test_a_connection_may_be_lost_before_every_word(
    limits: redis.Redis, redis_url: str, vendor: Vendor, make: Any
):
    """Case L2: the connection is lost after k words, for all k."""
    async with (
        pod(limits, redis_url, ONE_AT_A_TIME) as agent,
        make(agent, vendor, wait_s=30) as client,
    ):
        books = await begun(agent, client, vendor, make)
        for words in range(WORDS):
            vendor.will(words=WORDS, after=words, cuts=True)
            stream = await begin(client)
            with pytest.raises((openai.APIError, anthropic.APIError, httpx2.TransportError)):
                await read_all(stream)
            # They came before the loss.
            assert vendor.bill[-1].sent == words
            assert held(agent) == 0
            await books.add(words, exact_input=make is claude)
