"""Decisions, attempts and figures in OpenTelemetry, with the real SDK and exporters in memory."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import Event, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from fuseboard import Agent, Refused, blocking
from fuseboard.contract.policy import Dependency, Limit, Policy, Tier
from fuseboard.contract.protection import Bulkhead, CallProtection, Retry
from fuseboard.contract.words import Algorithm, CallTier, Jitter, Outcome
from fuseboard.integrations.problem import refusal
from fuseboard.settings import AgentSettings
from fuseboard.telemetry.observe import pod_metrics
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY
from tests.waiting import eventually

RETRY = Retry(base_ms=1, cap_ms=1, jitter=Jitter.NONE, floor_milli=0, budget_percent=100, idempotent=True)
ONE_SLOT = Bulkhead(max_concurrent=1, queues=(5, 5, 5), queue_timeout_ms=60_000)
RULES = Policy(
    environment=POLICY.environment,
    default_tier="free",
    tiers=(
        Tier(
            name="free",
            quotas=(
                Limit(name="requests", limit=1, window_ms=3_600_000, algorithm=Algorithm.SLIDING_WINDOW),
            ),
        ),
    ),
    dependencies=(
        Dependency(name="llm", protection=CallProtection(retry=RETRY)),
        Dependency(name="mail", protection=CallProtection(tier=CallTier.CRITICAL, bulkhead=ONE_SLOT)),
    ),
)
Points = dict[tuple[tuple[str, str], ...], Any]


class Collected:
    """What an application's SDK has got."""

    def __init__(self) -> None:
        self.spans, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = provider.get_tracer("shop")
        metrics.set_meter_provider(MeterProvider(metric_readers=[self.reader]))

    def events(self) -> list[tuple[str, dict[str, Any]]]:
        """Of all spans that ended since the last call."""
        found: list[Event] = [event for span in self.spans.get_finished_spans() for event in span.events]
        self.spans.clear()
        return [(event.name, dict(event.attributes or {})) for event in found]

    def points(self, name: str) -> Points:
        """Attributes -> value, or count of a histogram."""
        data = self.reader.get_metrics_data()
        return {
            tuple(sorted((key, str(value)) for key, value in point.attributes.items())): getattr(
                point, "value", getattr(point, "count", None)
            )
            for resource in (data.resource_metrics if data is not None else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        }

    def attributes(self) -> dict[str, set[str]]:
        """Metric -> the names of its attributes."""
        data = self.reader.get_metrics_data()
        assert data is not None
        return {
            metric.name: {key for point in metric.data.data_points for key in point.attributes}
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@pytest.fixture(scope="module")
def sdk() -> Collected:
    """A process has one provider of meters."""
    return Collected()


@pytest.fixture
def collected(sdk: Collected) -> Iterator[Collected]:
    sdk.spans.clear()
    pod_metrics()._forget()
    yield sdk
    pod_metrics()._forget()


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return replace(settings_with(tmp_path, RULES), otel=True)


async def test_decisions_are_events_of_the_callers_span(collected: Collected, settings: AgentSettings):
    async with Agent(settings=settings) as agent:
        with collected.tracer.start_as_current_span("order") as span:
            assert (await agent.admit_request("acme")).allowed
            refused = await agent.admit_request("acme")
            problem = msgspec.json.decode(refusal(refused)[2])
        trace_id = format(span.get_span_context().trace_id, "032x")
    first, second = collected.events()
    allowed = {
        "fuseboard.kind": "request",
        "fuseboard.allowed": True,
        "fuseboard.mode": "local",
        "fuseboard.revision": 0,
    }
    assert first == ("fuseboard.decision", allowed)
    assert second[1] == allowed | {
        "fuseboard.allowed": False,
        "fuseboard.reason": "quota",
        "fuseboard.rule": "requests",
        "fuseboard.retry_after_ms": refused.retry_after_ms,
    }
    assert problem["trace_id"] == trace_id


async def test_each_attempt_has_its_number(collected: Collected, settings: AgentSettings):
    calls = 0
    async with Agent(settings=settings) as agent:
        with collected.tracer.start_as_current_span("order"):
            async for attempt in agent.retrying("llm"):
                async with attempt:
                    calls += 1
                    if calls == 1:
                        raise ConnectionResetError("lost")
            await agent.admit_call("llm")
    events = collected.events()
    assert [(name, found.get("fuseboard.attempt")) for name, found in events] == [
        ("fuseboard.decision", 1),
        ("fuseboard.outcome", 1),
        ("fuseboard.retry", 1),
        ("fuseboard.decision", 2),
        ("fuseboard.outcome", 2),
        # No attempt of a repeated call.
        ("fuseboard.decision", None),
    ]
    outcomes = [found for name, found in events if name == "fuseboard.outcome"]
    assert [(one["fuseboard.outcome"], one.get("error.type")) for one in outcomes] == [
        ("failure", "ConnectionResetError"),
        ("ok", None),
    ]
    retry = events[2][1]
    assert (retry["fuseboard.dependency"], retry["fuseboard.wait_ms"]) == ("llm", 1.0)
    assert collected.points("fuseboard.retries") == {(("fuseboard.dependency", "llm"),): 1}


async def test_a_call_that_waits_for_a_slot_shows_for_how_long(collected: Collected, settings: AgentSettings):
    async def second() -> None:
        with collected.tracer.start_as_current_span("second"):
            agent.report(await agent.admit_call("mail"), Outcome.OK, 0.001)

    def bulkhead(what: str) -> int:
        return sum(collected.points(f"fuseboard.bulkhead.{what}").values())

    async with Agent(settings=settings) as agent:
        first = await agent.admit_call("mail")
        waiting = asyncio.create_task(second())
        await eventually(lambda: bulkhead("waiting") == 1)
        assert (bulkhead("in_use"), bulkhead("size")) == (1, 1)
        agent.report(first, Outcome.OK, 0.001)
        await waiting
    decision, outcome = collected.events()
    assert decision[1]["fuseboard.queue_wait_ms"] > 0
    assert outcome[1] == {
        "fuseboard.dependency": "mail",
        "fuseboard.outcome": "ok",
        "fuseboard.duration_ms": 1.0,
    }
    # The gauges end with the agent, and the totals stay.
    assert collected.points("fuseboard.bulkhead.size") == {}
    assert sum(collected.points("fuseboard.calls").values()) == 2


def test_threads_show_the_same_in_their_own_span(collected: Collected, settings: AgentSettings):
    with blocking.Agent(settings=settings) as agent, collected.tracer.start_as_current_span("order"):
        with agent.call("llm"):
            pass
        with pytest.raises(Refused), agent.request("acme"), agent.request("acme"):
            pass
    names = [(name, found.get("fuseboard.allowed")) for name, found in collected.events()]
    assert names == [
        ("fuseboard.decision", True),
        ("fuseboard.outcome", None),
        ("fuseboard.decision", True),
        ("fuseboard.decision", False),
    ]


async def test_metrics_are_sums_and_name_no_tenant(collected: Collected, settings: AgentSettings):
    for _ in range(2):  # the second run goes on where the first ended
        async with Agent(settings=settings) as agent:
            for number in range(20):
                await agent.admit_request(f"tenant-{number}")
                await agent.admit_request(f"tenant-{number}")
            agent.report(await agent.admit_call("llm"), Outcome.FAILURE)
            with pytest.raises(Refused):
                await agent.admit_call("llm", deadline_s=1e-9)
            await asyncio.sleep(0)  # counted on the loop, by a callback
    assert collected.points("fuseboard.requests") == {(): 80}
    assert collected.points("fuseboard.refusals") == {
        (("fuseboard.kind", "request"), ("fuseboard.reason", "quota")): 40,
        (
            ("fuseboard.dependency", "llm"),
            ("fuseboard.kind", "call"),
            ("fuseboard.reason", "queue_timeout"),
        ): 2,
    }
    assert collected.points("fuseboard.calls") == {
        (("fuseboard.dependency", "llm"), ("fuseboard.outcome", "failure")): 2
    }
    assert sum(collected.points("fuseboard.decision.duration").values()) >= 82
    known = {"kind", "allowed", "mode", "reason", "dependency", "outcome", "tier", "event"}
    for name, attributes in collected.attributes().items():
        assert attributes <= {f"fuseboard.{word}" for word in known}, name


async def test_without_a_recording_span_only_metrics_are_written(
    collected: Collected, settings: AgentSettings
):
    async with Agent(settings=settings) as agent:
        permit = await agent.admit_call("llm")
        assert trace.get_current_span() is trace.INVALID_SPAN
        agent.report(permit, Outcome.OK)
        await agent.admit_request("acme")
    assert collected.events() == []
    assert sum(collected.points("fuseboard.calls").values()) == 1


async def test_what_opentelemetry_raises_fails_no_call(
    collected: Collected, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object) -> None:
        raise RuntimeError("a defect of an exporter")

    async with Agent(settings=settings) as agent:
        for name in ("decided", "permitted", "reported"):
            monkeypatch.setattr(agent._runtime.observer, name, broken)
        assert (await agent.admit_request("acme")).allowed
        agent.report(await agent.admit_call("llm"), Outcome.OK)
        assert agent.defects == 3


async def test_a_span_that_fails_ends_no_repeated_call(
    collected: Collected, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
):
    def broken(*_: object) -> None:
        raise RuntimeError("a span of another library")

    attempts = 0
    async with Agent(settings=settings) as agent:
        monkeypatch.setattr(agent._runtime.observer, "attempt_failed", broken)
        async for attempt in agent.retrying("llm"):
            async with attempt:
                attempts += 1
                if attempts == 1:
                    raise ConnectionResetError("lost")
    assert attempts == 2


async def test_a_cancelled_attempt_leaves_no_number(collected: Collected, settings: AgentSettings):
    async with Agent(settings=settings) as agent:

        async def endless() -> None:
            async with asyncio.timeout(0.01):
                async for attempt in agent.retrying("llm"):
                    async with attempt:
                        await asyncio.Event().wait()

        with collected.tracer.start_as_current_span("order"):
            with pytest.raises(TimeoutError):
                await endless()
            await agent.admit_call("llm")
    decisions = [found for name, found in collected.events() if name == "fuseboard.decision"]
    assert [found.get("fuseboard.attempt") for found in decisions] == [1, None]


async def test_an_agent_made_before_a_fork_is_counted_in_the_child(
    collected: Collected, settings: AgentSettings
):
    agent = Agent(settings=settings)
    pod_metrics()._forget()  # in the child, after the fork
    async with agent:
        await agent.admit_request("acme")
    assert collected.points("fuseboard.requests") == {(): 1}


def test_a_decision_without_an_observer_makes_no_variables_for_it():
    for decide in (Agent.admit_request, Agent.admit_call):
        assert decide.__code__.co_cellvars == ()


def test_an_agent_without_it_imports_no_opentelemetry():
    program = (
        "import asyncio, sys\n"
        "import fuseboard, fuseboard.blocking, fuseboard.integrations.asgi, fuseboard.integrations.problem\n"
        "from fuseboard.settings import AgentSettings\n"
        "async def decide():\n"
        "    settings = AgentSettings(redis_url='redis://127.0.0.1:1/0')\n"
        "    async with fuseboard.Agent(settings=settings) as agent:\n"
        "        await agent.admit_request('acme')\n"
        "        agent.report(await agent.admit_call('llm'), fuseboard.Outcome.OK)\n"
        "asyncio.run(decide())\n"
        "print([name for name in sys.modules\n"
        "       if name.startswith(('opentelemetry', 'fuseboard.telemetry', 'redis'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
