"""The retry policy decides about repetitions, also if a client got its retries after it was guarded."""

from typing import Any

import anthropic
import httpx2
import openai
import pytest
import redis

import fuseboard
from fuseboard.llm.httpx2 import LlmTransport
from tests.llm.pods import billed, outcomes, pod, spent, thread_pod
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ASKED: list[Any] = [{"role": "user", "content": "Who repeats this?"}]
CLIENTS = pytest.mark.parametrize(
    ("package", "make"), [(openai, openai.AsyncOpenAI), (anthropic, anthropic.AsyncAnthropic)]
)


async def ask(client: Any) -> None:
    ways = client.chat.completions if isinstance(client, openai.AsyncOpenAI) else client.messages
    await ways.create(model="m", messages=ASKED, max_tokens=50)


@CLIENTS
async def test_an_answered_error_is_not_asked_for_again(
    limits: redis.Redis, redis_url: str, vendor: Vendor, package: Any, make: Any
):
    base = f"{vendor.url}/v1" if package is openai else vendor.url
    async with pod(limits, redis_url) as agent:
        client = fuseboard.guard(make(api_key="made-up", base_url=base, max_retries=0), agent, "llm")
        async with client.with_options(max_retries=3) as patient:
            vendor.will(status=500)
            with pytest.raises(package.InternalServerError):
                await ask(patient)
            assert (vendor.requests, outcomes(agent)) == (1, {"failure": 1})
            await ask(patient)
        await eventually(lambda: outcomes(agent) == {"failure": 1, "ok": 1})


@CLIENTS
async def test_a_lost_connection_is_not_tried_again_and_costs_one_call(
    limits: redis.Redis, redis_url: str, package: Any, make: Any
):
    nowhere = "http://127.0.0.1:1"
    async with pod(limits, redis_url) as agent:
        client = fuseboard.guard(make(api_key="made-up", base_url=nowhere, max_retries=0), agent, "llm")
        with pytest.raises(package.APIConnectionError, match="the retry policy of the dependency decides"):
            await ask(client.with_options(max_retries=1))
        assert outcomes(agent) == {"failure": 1}
        nothing = dict.fromkeys(billed(counts_cached=True), 0)
        await eventually(lambda: spent(agent), accept=lambda found: found == {**nothing, "calls": 1})


def test_threads_repeat_nothing_either(limits: redis.Redis, redis_url: str, tmp_path: Any, vendor: Vendor):
    with thread_pod(limits, redis_url, tmp_path) as agent:
        client = openai.OpenAI(api_key="made-up", base_url=f"{vendor.url}/v1")
        patient = fuseboard.guard(client, agent, "llm", retry=False).with_options(max_retries=3)
        vendor.will(status=503)
        with patient, pytest.raises(openai.InternalServerError):
            patient.chat.completions.create(model="m", messages=ASKED)
        assert vendor.requests == 1


async def test_a_client_that_takes_a_transport_keeps_its_repetitions_and_each_pays(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent:
        http = httpx2.AsyncClient(transport=LlmTransport(agent, dependency="llm"))
        url = f"{vendor.url}/v1"
        async with openai.AsyncOpenAI(
            api_key="made-up", base_url=url, http_client=http, max_retries=1
        ) as client:
            vendor.will(status=500)
            await ask(client)
        await eventually(lambda: outcomes(agent) == {"failure": 1, "ok": 1})
        bill = billed(vendor.bill[-1], counts_cached=True)
        await eventually(lambda: spent(agent), accept=lambda found: found == {**bill, "calls": 2})
