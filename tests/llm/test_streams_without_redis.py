"""Redis is lost while a stream is read: the stream goes on, its slot is freed, and it is settled later."""

import asyncio
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import redis

from controlplane.embedded.valkey import Valkey
from tests.llm.pods import billed, claude, gpt, held, outcomes, pod, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ASKED: list[Any] = [{"role": "user", "content": "Does this stream end without Redis? " * 10}]
#: Far longer than a stream of this vendor takes.
PATIENCE_S = 60


@pytest.fixture
def frozen(valkey: Valkey) -> Iterator[Valkey]:
    """A server that can be stopped in the middle of whatever it does, and is woken in the end."""
    yield valkey
    if valkey.process is not None and valkey.process.poll() is None:
        valkey.process.send_signal(signal.SIGCONT)


async def started(client: Any, make: Any) -> Any:
    ways = client.chat.completions if make is gpt else client.messages
    stream = await ways.create(model="m", messages=ASKED, max_tokens=900, stream=True)
    parts = aiter(stream)
    for _ in range(3):
        await anext(parts)
    return stream, parts


@pytest.mark.parametrize("make", [gpt, claude])
async def test_a_stream_ends_while_redis_is_frozen_and_is_settled_when_it_answers(
    frozen: Valkey, vendor: Vendor, make: Any
):
    with redis.Redis.from_url(frozen.url) as limits:
        async with pod(limits, frozen.url) as agent, make(agent, vendor) as client:
            vendor.will(words=20, holds_after=10)
            _, parts = await started(client, make)
            assert held(agent) == 1
            assert frozen.process is not None
            frozen.process.send_signal(signal.SIGSTOP)
            vendor.held.set()
            async with asyncio.timeout(PATIENCE_S):
                async for _ in parts:
                    """Read."""
                await eventually(lambda: held(agent) == 0)
            await eventually(lambda: outcomes(agent) == {"ok": 1})
            frozen.process.send_signal(signal.SIGCONT)
            bill = billed(*vendor.bill, counts_cached=make is gpt)
            await eventually(lambda: spent(agent), accept=lambda found: found == bill)


async def test_a_stream_that_is_left_while_redis_is_frozen_frees_its_slot(frozen: Valkey, vendor: Vendor):
    with redis.Redis.from_url(frozen.url) as limits:
        async with pod(limits, frozen.url) as agent, gpt(agent, vendor) as client:
            vendor.will(words=20, holds_after=10)
            stream, _ = await started(client, gpt)
            assert frozen.process is not None
            frozen.process.send_signal(signal.SIGSTOP)
            async with asyncio.timeout(PATIENCE_S):
                await stream.close()
                await eventually(lambda: held(agent) == 0)
            frozen.process.send_signal(signal.SIGCONT)
            # The reserve of the output was 900, of which a few words came.
            await eventually(lambda: spent(agent), accept=lambda found: found["output_tokens"] < 50)


async def test_a_stream_ends_although_redis_dies(valkey: Valkey, vendor: Vendor):
    with redis.Redis.from_url(valkey.url) as limits:
        async with pod(limits, valkey.url) as agent, gpt(agent, vendor) as client:
            vendor.will(words=20, holds_after=10)
            _, parts = await started(client, gpt)
            valkey.stop()
            vendor.held.set()
            async with asyncio.timeout(PATIENCE_S):
                async for _ in parts:
                    """Read."""
                await eventually(lambda: held(agent) == 0)
            await eventually(lambda: outcomes(agent) == {"ok": 1})
