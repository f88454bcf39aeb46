"""``guard`` and ``LlmTransport``: which dependency, whose tenant, and what clients keep."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import redis

import fuseboard
from fuseboard import Agent, Misconfigured, Reason, Refused, blocking
from fuseboard.llm import httpx as llm_httpx
from fuseboard.llm import httpx2 as llm_httpx2
from fuseboard.llm.transport import named_by
from fuseboard.testing import FakeAgent
from tests.agents.alone import settings_with
from tests.llm.pods import RULES, billed, gpt, outcomes, pod, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ASKED: list[Any] = [{"role": "user", "content": "Who counts this?"}]
BODY = {"model": "gpt-own", "messages": ASKED, "max_completion_tokens": 500}


@pytest.fixture
def threads(tmp_path: Path) -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=settings_with(tmp_path, RULES)) as agent:
        yield agent


# The dependency of a call


@pytest.mark.parametrize(
    ("name", "model", "dependency"),
    [
        ("", "gpt-own", "gpt-own"),
        ("", "models/own", "gpt-own"),
        ("", "gpt-own-2026-01-01", "gpt-own"),
        ("", "models/own@20260101", "gpt-own"),
        ("", "hosted", "127.0.0.1"),
        ("", "gpt-unknown", "127.0.0.1"),
        ("", "gpt-own-mini", "127.0.0.1"),
        # Only a published model chooses a dependency. This is one, and no model.
        ("", "llm", "127.0.0.1"),
        ("", "not/a slug", "127.0.0.1"),
        ("llm", "gpt-own", "llm"),
    ],
)
async def test_a_call_belongs_to_the_pool_of_its_model_or_to_its_host_unless_a_name_is_given(
    tmp_path: Path, vendor: Vendor, name: str, model: str, dependency: str
):
    async with Agent(settings=settings_with(tmp_path, RULES)) as agent:
        async with gpt(agent, vendor, name) as client:
            await client.chat.completions.create(model=model, messages=ASKED)
        assert outcomes(agent, dependency) == {"ok": 1}


async def test_a_request_without_a_model_belongs_to_its_host(tmp_path: Path, vendor: Vendor):
    async with Agent(settings=settings_with(tmp_path, RULES)) as agent:
        async with gpt(agent, vendor, "") as client:
            await client.models.list()
        assert outcomes(agent, "127.0.0.1") == {"ok": 1}


@pytest.mark.parametrize(("host", "name"), [("::1", "1"), ("[fe80::2]", "fe80-2"), ("ü", "unknown-host")])
def test_a_host_that_is_no_name_gets_one(host: str, name: str):
    assert named_by(host) == name


def test_other_clients_need_a_name(threads: blocking.Agent):
    with pytest.raises(Misconfigured, match="the name of a dependency"):
        fuseboard.guard(httpx.Client(), threads)


# Transports for every library


@pytest.mark.parametrize(
    ("library", "ours"), [(httpx, llm_httpx), (httpx2, llm_httpx2)], ids=["httpx", "httpx2"]
)
async def test_a_transport_alone_counts_what_a_client_asks(
    limits: redis.Redis, redis_url: str, vendor: Vendor, library: Any, ours: Any
):
    async with pod(limits, redis_url) as agent:
        transport = ours.LlmTransport(agent)
        async with library.AsyncClient(transport=transport) as client:
            answer = await client.post(f"{vendor.url}/v1/chat/completions", json=BODY)
            assert answer.json()["usage"]["completion_tokens"] == vendor.usual.words
            async with client.stream(
                "POST", f"{vendor.url}/v1/chat/completions", json={**BODY, "stream": True}
            ) as streamed:
                text = (await streamed.aread()).decode()
        # A body that is read while it is handed on must not be compressed.
        assert {one.headers["accept-encoding"] for one in vendor.bill} == {"identity"}
        assert text.endswith("data: [DONE]\n\n")
        assert "prompt_tokens" not in text
        bill = billed(*vendor.bill, counts_cached=True)
        await eventually(lambda: spent(agent, "gpt-own"), accept=lambda found: found == bill)


@pytest.mark.parametrize(
    ("library", "ours"), [(httpx, llm_httpx), (httpx2, llm_httpx2)], ids=["httpx", "httpx2"]
)
def test_a_transport_for_threads(threads: blocking.Agent, vendor: Vendor, library: Any, ours: Any):
    with library.Client(transport=ours.BlockingLlmTransport(threads, dependency="llm")) as client:
        assert client.post(f"{vendor.url}/v1/chat/completions", json=BODY).status_code == 200
    assert vendor.requests == 1


def test_a_body_that_is_made_while_it_is_sent_costs_a_call_and_the_log_says_so(
    threads: blocking.Agent, caplog: pytest.LogCaptureFixture
):
    seen: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.read())
        return httpx.Response(200, json={})

    inner = httpx.MockTransport(answer)
    transport = llm_httpx.BlockingLlmTransport(threads, dependency="llm", transport=inner)
    with httpx.Client(transport=transport) as client:
        client.post("http://vendor/v1/messages", content=iter([b'{"model":', b' "m"}']))
    assert seen == [b'{"model": "m"}']
    assert "limits.not_counted dependency=llm limit=tokens" in caplog.text


def test_requests_that_ask_no_model_are_not_reported_as_calls_without_costs(
    threads: blocking.Agent, vendor: Vendor, caplog: pytest.LogCaptureFixture
):
    client = openai.OpenAI(api_key="made-up", base_url=f"{vendor.url}/v1")
    fuseboard.guard(client, threads, "llm").models.list()
    assert "limits.not_counted" not in caplog.text


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'{"model": 7}', b"\xff"])
async def test_a_body_that_is_wrong_is_the_business_of_the_vendor(vendor: Vendor, content: bytes):
    seen: list[bytes] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.content)
        return httpx.Response(400, json={"error": {"message": "no"}})

    agent: Any = FakeAgent()
    transport = llm_httpx.LlmTransport(agent, dependency="llm", transport=httpx.MockTransport(answer))
    async with httpx.AsyncClient(transport=transport) as client:
        assert (await client.post("http://vendor/v1/messages", content=content)).status_code == 400
    assert seen == [content]


# Settings that a client keeps


@pytest.mark.parametrize("make", [openai.OpenAI, anthropic.Anthropic])
def test_a_client_keeps_its_connections_proxies_and_timeouts(make: Any, threads: blocking.Agent):
    http = httpx2.Client(
        limits=httpx2.Limits(max_connections=7), mounts={"http://proxied": httpx2.HTTPTransport()}
    )
    client = make(api_key="made-up", http_client=http, timeout=9)
    inner, mounted = http._transport, [one for one in http._mounts.values() if one is not None]
    assert fuseboard.guard(client, threads) is client
    assert (client.timeout, client.max_retries) == (9, 0)
    assert http._transport._transport is inner
    assert inner._pool._max_connections == 7
    assert [one._transport for one in http._mounts.values() if one is not None] == mounted
    assert isinstance(http._transport, llm_httpx2.BlockingLlmTransport)
    with pytest.raises(Misconfigured, match="guarded already"):
        fuseboard.guard(client, threads)


@pytest.mark.parametrize(
    ("package", "make"), [(openai, openai.AsyncOpenAI), (anthropic, anthropic.AsyncAnthropic)]
)
async def test_a_refusal_says_why_in_the_words_of_the_client(package: Any, make: Any, vendor: Vendor):
    agent: Any = FakeAgent()
    agent.open("llm")
    client = fuseboard.guard(make(api_key="made-up", base_url=vendor.url), agent, "llm")
    ask = client.chat.completions if package is openai else client.messages
    with pytest.raises(package.APIConnectionError, match=r"refused \(breaker_open\) by llm") as caught:
        await ask.create(model="m", messages=ASKED, max_tokens=5)
    assert isinstance(caught.value, Refused)
    assert caught.value.decision.reason is Reason.BREAKER_OPEN
    assert (len(agent.refusals), vendor.requests) == (1, 0)


async def test_an_input_that_never_fits_is_refused_and_a_bound_on_the_answer_is_not(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    too_long: list[Any] = [{"role": "user", "content": "word " * 800_000}]
    async with pod(limits, redis_url) as agent, gpt(agent, vendor) as client:
        with pytest.raises(openai.APIConnectionError, match="tokens"):
            await client.chat.completions.create(model="m", messages=too_long)
        assert vendor.requests == 0
        await client.chat.completions.create(model="m", messages=ASKED, max_tokens=2_000_000)
        bill = billed(*vendor.bill, counts_cached=True)
        await eventually(lambda: spent(agent), accept=lambda found: found == bill)


async def test_a_failed_call_is_made_again_by_the_policy_and_each_attempt_pays(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent:
        client = openai.AsyncOpenAI(api_key="made-up", base_url=f"{vendor.url}/v1")
        async with fuseboard.guard(client, agent, "llm", retry=True, idempotent=True):
            vendor.will(status=500)
            with pytest.raises(openai.InternalServerError):
                await client.chat.completions.create(**BODY)
            await client.chat.completions.create(**BODY)
        bill = billed(vendor.bill[-1], counts_cached=True)
        await eventually(lambda: spent(agent), accept=lambda found: found == {**bill, "calls": 2})


def test_nothing_of_it_is_loaded_before_a_client_of_a_model_is_guarded():
    script = (
        "import sys, httpx, fuseboard; from fuseboard.testing import FakeAgent\n"
        "fuseboard.tenant; fuseboard.guard(httpx.AsyncClient(), FakeAgent(), 'api')\n"
        "print([name for name in sys.modules if name.startswith('fuseboard.llm')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
