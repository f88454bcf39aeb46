"""The models that the vendor of the demo sells: its bill, its limit, and its failures on request."""

from collections.abc import AsyncIterator
from typing import Any

import anthropic
import httpx2
import openai
import pytest

from tools.demo import model_scenario
from tools.demo.model_scenario import GPT, SONNET
from tools.demo.scenario import TENANTS
from tools.demo.vendor import Vendor

ASKED: Any = [{"role": "user", "content": "How long does a parcel take to reach its customer?"}]


@pytest.fixture
async def vendor() -> AsyncIterator[httpx2.AsyncClient]:
    transport = httpx2.ASGITransport(app=Vendor())
    async with httpx2.AsyncClient(transport=transport, base_url="http://vendor") as client:
        yield client


def gpt(vendor: httpx2.AsyncClient) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        api_key="made-up", base_url="http://vendor/v1", http_client=vendor, max_retries=0
    )


def claude(vendor: httpx2.AsyncClient) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        api_key="made-up", base_url="http://vendor", http_client=vendor, max_retries=0
    )


async def bill(vendor: httpx2.AsyncClient, model: str) -> dict[str, Any]:
    return dict((await vendor.get("/models")).json()[model])


async def test_both_clients_understand_the_answers_and_the_bill_has_their_usage(vendor: httpx2.AsyncClient):
    answer = await gpt(vendor).chat.completions.create(model=GPT, messages=ASKED, max_completion_tokens=40)
    assert answer.usage is not None
    found = await bill(vendor, GPT)
    assert found["output"] == answer.usage.completion_tokens == len(answer.choices[0].message.content.split())
    assert 20 <= found["output"] <= 40
    assert found["fresh"] + found["cached"] == answer.usage.prompt_tokens
    async with claude(vendor).messages.stream(model=SONNET, messages=ASKED, max_tokens=30) as stream:
        message = await stream.get_final_message()
    found = await bill(vendor, SONNET)
    assert found["calls"] == 1
    assert (found["output"], found["fresh"]) == (message.usage.output_tokens, message.usage.input_tokens)
    assert found["cached"] == message.usage.cache_read_input_tokens


async def test_a_model_states_what_is_left_of_its_limit_and_refuses_what_exceeds_it(
    vendor: httpx2.AsyncClient,
):
    assert (await vendor.put(f"/models/{GPT}", json={"calls_per_minute": 2})).status_code == 200
    body = {"model": GPT, "messages": ASKED}
    answers = [await vendor.post("/v1/chat/completions", json=body) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 429, 429]
    assert [answer.headers["x-ratelimit-remaining-requests"] for answer in answers] == ["1", "0", "0", "0"]
    assert 0 < int(answers[-1].headers["retry-after-ms"]) <= 30_000
    found = await bill(vendor, GPT)
    assert (found["received"], found["limited"], found["calls"]) == (4, 2, 2)


async def test_a_stream_fails_after_so_many_words_on_request_and_costs_those(vendor: httpx2.AsyncClient):
    told = await vendor.put(f"/models/{GPT}", json={"fails_after": 3, "code": "server_error"})
    assert told.status_code == 200
    stream = await gpt(vendor).chat.completions.create(model=GPT, messages=ASKED, stream=True)
    words = []
    with pytest.raises(openai.APIError):
        [words.append(part.choices[0].delta.content) async for part in stream]
    assert len([word for word in words if word]) == (await bill(vendor, GPT))["output"] == 3
    wrong = await vendor.put(f"/models/{GPT}", json={"status": 20})
    assert wrong.status_code == 422


def test_every_job_is_for_a_tenant_and_a_model_of_the_demo():
    models = {model.name: model.pool for model in model_scenario.MODELS}
    pools = {pool.name for pool in model_scenario.POOLS}
    assert set(models.values()) <= pools
    assert pools == {pool for owned in model_scenario.ACCOUNTS.values() for pool in owned}
    for job in model_scenario.JOBS:
        assert job.model in models
        assert set(job.tenants) <= {tenant.key for tenant in TENANTS}
