"""A span for each call to a model: its tokens, cost and model, by the names of the semantic conventions."""

import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace as changed
from pathlib import Path
from typing import Any

import openai
import pytest
from msgspec.structs import replace
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import fuseboard
from fuseboard import Agent, Refused, blocking
from fuseboard.contract.models import Model, Price
from fuseboard.contract.policy import Policy
from fuseboard.telemetry.observe import pod_metrics
from tests.agents.alone import settings_with
from tests.agents.limit_kinds import window
from tests.llm.pods import MONTH_S, RULES, claude, gpt
from tests.llm.vendor import Vendor
from tests.waiting import eventually

PROMPT = "Who has made this secret client?"
ASKED: Any = [{"role": "user", "content": PROMPT}]
PRICE = Price(starts_at_s=0, input=3_000_000, cached=300_000, written=3_750_000, output=15_000_000)
PRICED = replace(RULES, models=(Model(name="large", aliases=("m",), prices=(PRICE,)),))


class Spans:
    """What an application's SDK has got."""

    def __init__(self, provider: TracerProvider) -> None:
        self.tracer, self._exporter = provider.get_tracer("shop"), InMemorySpanExporter()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def ended(self, *, named: str = "") -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if not named or span.name == named]

    async def one(self, *, named: str = "") -> ReadableSpan:
        (span,) = await eventually(lambda: self.ended(named=named))
        return span


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Iterator[Spans]:
    provider = TracerProvider()
    # A process can set its provider only once, and other tests have none.
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    pod_metrics()._forget()
    yield Spans(provider)
    pod_metrics()._forget()


@asynccontextmanager
async def pod(folder: Path, rules: Policy = PRICED) -> AsyncIterator[Agent]:
    """A pod without Redis, with OpenTelemetry on."""
    async with Agent(settings=changed(settings_with(folder, rules), otel=True)) as agent:
        yield agent


async def ask(client: Any, *, stream: bool = False) -> Any:
    if hasattr(client, "messages"):
        answer = await client.messages.create(model="m", messages=ASKED, max_tokens=500, stream=stream)
    else:
        answer = await client.chat.completions.create(model="m", messages=ASKED, stream=stream)
    if stream:
        async for _ in answer:
            """Read."""
    return answer


def usages(span: ReadableSpan) -> list[dict[str, Any]]:
    return [dict(event.attributes or {}) for event in span.events if event.name == "fuseboard.usage"]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("make", [gpt, claude])
async def test_a_span_has_the_tokens_the_cost_and_the_model_of_its_call(
    spans: Spans, tmp_path: Path, vendor: Vendor, make: Any, stream: bool
):
    """The client of Anthropic makes a span itself, which gets what it does not say."""
    ours = make is gpt
    async with pod(tmp_path) as agent, make(agent, vendor) as client:
        with spans.tracer.start_as_current_span("order") as order, fuseboard.tenant("acme"):
            await ask(client, stream=stream)
        span = await spans.one(named="chat m" if ours else "anthropic.messages.create")
        (row,) = [row for part in agent.counters.usage.next(leaving=True) for row in part.rows]
    (bill,) = vendor.bill
    named = {"gen_ai.request.model": "m", "fuseboard.model": "large"}
    used = {
        "gen_ai.usage.input_tokens": bill.input,
        "gen_ai.usage.cache_read.input_tokens": bill.cached,
        "gen_ai.usage.cache_write.input_tokens": bill.written,
        "gen_ai.usage.output_tokens": bill.output,
        "fuseboard.cost_micro_usd": row.micro_usd,
        "fuseboard.estimated": False,
        "fuseboard.wasted": False,
    }
    said = dict(span.attributes or {})
    assert said | named | used == said
    assert usages(span) == [named | used]
    assert row.micro_usd > 0
    if ours:
        assert {name: value for name, value in said.items() if name not in named | used} == {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "openai",
            "server.address": "127.0.0.1",
            "fuseboard.dependency": "llm",
        }
        assert span.status.status_code is StatusCode.UNSET
    assert span.kind is SpanKind.CLIENT
    assert [one.name for one in spans.ended() if usages(one)] == [span.name]
    assert span.parent is not None
    assert span.parent.span_id == order.get_span_context().span_id


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_no_span_has_a_text_or_a_tenant(spans: Spans, tmp_path: Path, vendor: Vendor, stream: bool):
    async with pod(tmp_path) as agent, gpt(agent, vendor) as client:
        with spans.tracer.start_as_current_span("order"), fuseboard.tenant("acme"):
            vendor.will(words=30)
            await ask(client, stream=stream)
        await spans.one(named="chat m")
    for span in spans.ended():
        for word in (PROMPT, "secret", "word", "acme", "made-up"):
            assert word not in span.to_json()


async def test_a_stream_that_breaks_off_is_estimated_and_wasted(spans: Spans, tmp_path: Path, vendor: Vendor):
    async with pod(tmp_path) as agent, gpt(agent, vendor) as client:
        vendor.will(words=30, after=10, cuts=True)
        with pytest.raises(Exception):  # noqa: B017, PT011 - the error of the client's library
            await ask(client, stream=True)
        span = await spans.one()
    (used,) = usages(span)
    assert used["fuseboard.estimated"] is used["fuseboard.wasted"] is True
    assert span.status.status_code is StatusCode.ERROR
    assert (span.attributes or {})["error.type"]


async def test_an_error_event_names_itself(spans: Spans, tmp_path: Path, vendor: Vendor):
    async with pod(tmp_path) as agent, claude(agent, vendor) as client:
        vendor.will(words=30, after=10)
        with pytest.raises(Exception):  # noqa: B017, PT011
            await ask(client, stream=True)
        span = await spans.one()
    assert span.status.status_code is StatusCode.ERROR
    assert len(usages(span)) == 1


async def test_an_answered_error_has_used_nothing(spans: Spans, tmp_path: Path, vendor: Vendor):
    async with pod(tmp_path) as agent, gpt(agent, vendor) as client:
        vendor.will(status=500)
        with pytest.raises(openai.InternalServerError):
            await ask(client)
        span = await spans.one()
    assert (span.attributes or {})["error.type"] == "HTTP 500"
    assert usages(span) == []


async def test_a_refused_call_says_why(spans: Spans, tmp_path: Path, vendor: Vendor):
    spent = window(1, MONTH_S, name="calls")
    rules = replace(
        PRICED, dependencies=tuple(replace(one, vendor_limits=(spent,)) for one in PRICED.dependencies)
    )
    async with pod(tmp_path, rules) as agent, gpt(agent, vendor) as client:
        await ask(client)
        with pytest.raises(Refused) as refused:
            await ask(client)
        _, span = await eventually(spans.ended, accept=lambda found: len(found) == 2)
    assert (span.attributes or {})["error.type"] == str(refused.value.decision.reason)
    assert usages(span) == []


async def test_a_span_of_the_client_is_not_doubled(spans: Spans, tmp_path: Path, vendor: Vendor):
    """An instrumentation of OpenAI's client makes a span with the same names."""
    theirs = {"gen_ai.operation.name": "chat", "gen_ai.usage.output_tokens": 9}
    async with pod(tmp_path) as agent, gpt(agent, vendor) as client:
        with spans.tracer.start_as_current_span("chat m", attributes=theirs):
            await ask(client)
        span = await spans.one()
    (used,) = usages(span)
    assert used["gen_ai.usage.output_tokens"] == vendor.bill[0].output
    said = dict(span.attributes or {})
    assert said["gen_ai.usage.output_tokens"] == 9, "what it says stays"
    assert said["fuseboard.cost_micro_usd"] == used["fuseboard.cost_micro_usd"] > 0


def test_threads_have_the_same_spans(spans: Spans, tmp_path: Path, vendor: Vendor):
    settings = changed(settings_with(tmp_path, PRICED), otel=True)
    with blocking.Agent(settings=settings) as agent:
        plain = openai.OpenAI(api_key="made-up", base_url=f"{vendor.url}/v1", max_retries=0)
        with fuseboard.guard(plain, agent, "llm") as client:
            client.chat.completions.create(model="m", messages=ASKED)
            for _ in client.chat.completions.create(model="m", messages=ASKED, stream=True):
                """Read."""
    assert [usage["gen_ai.usage.input_tokens"] for span in spans.ended() for usage in usages(span)] == [
        one.input for one in vendor.bill
    ]


async def test_a_call_without_a_price_has_no_cost(spans: Spans, tmp_path: Path, vendor: Vendor):
    async with pod(tmp_path, RULES) as agent, gpt(agent, vendor) as client:
        await ask(client)
        (used,) = usages(await spans.one())
    assert "fuseboard.cost_micro_usd" not in used
    assert used["fuseboard.model"] == "m"


@pytest.mark.parametrize("method", ["model_called", "used", "end"])
async def test_what_opentelemetry_raises_fails_no_call(
    spans: Spans, tmp_path: Path, vendor: Vendor, monkeypatch: pytest.MonkeyPatch, method: str
):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a defect of an exporter")

    owner = "ModelSpans" if method == "model_called" else "CallSpan"
    monkeypatch.setattr(f"fuseboard.telemetry.model_spans.{owner}.{method}", broken)
    async with pod(tmp_path) as agent, gpt(agent, vendor) as client:
        await ask(client)
        await ask(client, stream=True)
        rows = [row for part in agent.counters.usage.next(leaving=True) for row in part.rows]
    assert sum(row.calls for row in rows) == 2


def test_an_agent_without_it_imports_no_opentelemetry():
    program = (
        "import sys, fuseboard\n"
        "assert not [name for name in sys.modules if name.startswith('fuseboard.llm')]\n"
        "import fuseboard.llm.httpx\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry', 'fuseboard.telemetry'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
