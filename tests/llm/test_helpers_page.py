"""Runs the code in docs/llm-helpers.md as it is: real clients, a real Redis, and a vendor of the tests."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import redis
from msgspec.structs import replace

import fuseboard
from fuseboard import Cached, Mode
from fuseboard.contract.models import Model
from tests.agents.published import publish
from tests.llm.pods import RULES, dependency, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "llm-helpers.md").read_text()


@pytest.fixture
async def page(
    limits: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Any]]:
    """The names of the page's Python blocks, its agent running."""
    rules = replace(
        RULES,
        dependencies=(dependency("gpt-5.2"), dependency("own-model")),
        models=(Model(name="gpt-5.2", pool="gpt-5.2"),),
    )
    publish(limits, rules, revision=1)
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"FUSEBOARD_{name}", raising=False)
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path))
    names: dict[str, Any] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", PAGE, flags=re.MULTILINE | re.DOTALL):
        exec(compile(code, "docs/llm-helpers.md", "exec"), names)  # noqa: S102 - our own page
    async with names["agent"] as agent:
        await eventually(
            lambda: agent.mode is Mode.SHARED and agent.configuration.snapshot.head.revision == 1
        )
        yield names


@pytest.fixture
async def client(page: dict[str, Any], vendor: Vendor) -> AsyncIterator[openai.AsyncOpenAI]:
    made = openai.AsyncOpenAI(api_key="made-up", base_url=f"{vendor.url}/v1", max_retries=0)
    async with fuseboard.guard(made, page["agent"]) as client:
        yield client


async def test_an_own_model_is_settled_by_one_call(page: dict[str, Any]):
    async def generate(prompt: str) -> dict[str, Any]:
        return {"text": "answer", "prompt_tokens": 12, "output_tokens": 3}

    assert await page["ask_own_model"](generate, "a prompt") == "answer"
    await eventually(lambda: spent(page["agent"], "own-model"), accept=lambda found: found["tokens"] == 15)


async def test_a_batch_spends_the_quotas_of_its_tenant_and_no_rate(page: dict[str, Any]):
    page["charge_batch"]([{"prompt_tokens": 100, "completion_tokens": 20}] * 3)
    found = await eventually(
        lambda: spent(page["agent"], "gpt-5.2", "acme"), accept=lambda found: found["all-tokens"] == 360
    )
    assert found["tokens"] == 0


async def test_a_chain_asks_for_a_better_answer(
    page: dict[str, Any], client: openai.AsyncOpenAI, vendor: Vendor
):
    answer = await page["answered"](client, "Why?", lambda _: 0.9, lambda _: ("near", 0.95))
    assert (answer.quality, answer.tries, answer.source) == (0.9, 1, "gpt-5.2")
    assert answer.cost["output_tokens"] == vendor.usual.words
    vendor.will(status=500)
    answer = await page["answered"](client, "Why?", lambda _: 0.9, lambda _: ("near", 0.95))
    assert (answer.value, answer.similarity) == ("near", 0.95)


async def test_messages_fit_and_shrink(page: dict[str, Any], client: openai.AsyncOpenAI, vendor: Vendor):
    messages = [{"role": "user", "content": "A sentence. " * 500}]
    assert page["request_of"](messages, ["one"]) == (messages, ["one"])
    await page["ask_shrinking"](client, messages)
    assert vendor.requests == 1


async def test_a_request_that_was_asked_before_costs_nothing(
    page: dict[str, Any], client: openai.AsyncOpenAI, vendor: Vendor
):
    request = {"model": "gpt-5.2", "temperature": 0, "messages": [{"role": "user", "content": "Again?"}]}
    first = await page["ask_once"](client, request)
    assert await page["ask_once"](client, request) is first
    assert vendor.requests == 1
    assert page["cache"].saved["output_tokens"] == vendor.usual.words
    chain = page["agent"].fallback("gpt-5.2", [Cached(lambda: page["cache"].get(request), max_age_s=600)])
    vendor.will(status=500)
    assert (await chain.run(lambda: client.chat.completions.create(**request))).value is first


def test_the_page_fits_on_two_screens():
    assert PAGE.count("\n") <= 160
