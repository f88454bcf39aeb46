"""Libraries that make a client of OpenAI themselves, and take a client of httpx for it.

LangChain's ``ChatOpenAI`` is one, which ``test_langchain`` runs: it passes ``http_async_client`` and
``http_client`` to the classes of OpenAI, as is done here.
"""

from pathlib import Path
from typing import Any

import httpx2
import openai
import redis

from fuseboard.llm.httpx2 import BlockingLlmTransport, LlmTransport
from tests.llm.pods import billed, outcomes, pod, spent, thread_pod
from tests.llm.vendor import Vendor
from tests.waiting import eventually, wait_until

ASKED: list[Any] = [{"role": "user", "content": "Who has made this client?"}]


async def test_a_client_that_gets_our_transport_is_counted_streams_too(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent:
        given = httpx2.AsyncClient(transport=LlmTransport(agent))
        url = f"{vendor.url}/v1"
        async with openai.AsyncOpenAI(
            api_key="made-up", base_url=url, http_client=given, max_retries=0
        ) as client:
            await client.chat.completions.create(model="gpt-own", messages=ASKED)
            stream = await client.chat.completions.create(model="gpt-own", messages=ASKED, stream=True)
            async for part in stream:
                assert part.choices
        bill = billed(*vendor.bill, counts_cached=True)
        await eventually(lambda: spent(agent, "gpt-own"), accept=lambda found: found == bill)


def test_one_for_threads_too(limits: redis.Redis, redis_url: str, tmp_path: Path, vendor: Vendor):
    with thread_pod(limits, redis_url, tmp_path) as agent:
        given = httpx2.Client(transport=BlockingLlmTransport(agent, dependency="llm"))
        with openai.OpenAI(api_key="made-up", base_url=f"{vendor.url}/v1", http_client=given) as client:
            list(client.chat.completions.create(model="m", messages=ASKED, stream=True))
        wait_until(lambda: outcomes(agent._started()) == {"ok": 1})
