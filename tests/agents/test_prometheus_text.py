"""The metrics of a pod as text for Prometheus: real decisions, and what ``promtool`` thinks of it."""

import asyncio
import re
import shutil
import subprocess
from pathlib import Path
from time import monotonic
from typing import Any
from uuid import uuid4

import httpx
import pytest

from fuseboard import Agent, LockTaken, Outcome, blocking
from fuseboard.contract import pod_figures
from fuseboard.contract.pod_figures import ATTEMPTS, CALL_SECONDS, REDIS_SECONDS
from fuseboard.contract.primitives import LOCK_EVENTS
from fuseboard.integrations import asgi, wsgi
from fuseboard.reporting.counters import MAX_DEPENDENCIES
from fuseboard.reporting.primitive_figures import PrimitiveFigures
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.test_opentelemetry import RULES

_SAMPLE = re.compile(r"([a-z_]+)\{(.*)\} (\S+)")
_LABEL = re.compile(r'([a-z]+)="((?:[^"\\]|\\.)*)"')


def samples(text: str) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Each must be unique."""
    found: dict[tuple[str, frozenset[tuple[str, str]]], float] = {}
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        matched = _SAMPLE.fullmatch(line)
        assert matched is not None, line
        key = matched[1], frozenset(_LABEL.findall(matched[2]))
        assert key not in found, line
        found[key] = float(matched[3])
    return found


def value(text: str, name: str, **labels: str) -> float | None:
    wanted = {"server": "shop-1"} | labels
    return samples(text).get((name, frozenset(wanted.items())))


@pytest.fixture
def settings(tmp_path: Path) -> Any:
    return settings_with(tmp_path, RULES)


async def decide(agent: Agent) -> None:
    assert (await agent.admit_request("acme")).allowed
    assert not (await agent.admit_request("acme")).allowed
    permit = await agent.admit_call("llm")
    agent.report(permit, Outcome.FAILURE)


async def test_a_pod_exports_what_it_decided(settings: Any):
    async with Agent(settings=settings) as agent:
        await decide(agent)
        text = agent.metrics_text()
    assert value(text, "fuseboard_requests_total") == 2
    assert value(text, "fuseboard_refusals_total", kind="request", reason="quota") == 1
    assert value(text, "fuseboard_calls_total", dependency="llm", outcome="failure") == 1
    assert value(text, "fuseboard_decisions_local_total") == 3
    assert value(text, "fuseboard_bulkhead_size", dependency="mail") == 1
    assert value(text, "fuseboard_pod_ready") == 1
    modes = {mode: value(text, "fuseboard_pod_mode", mode=mode) for mode in ("local", "shared")}
    assert modes == {"local": 1, "shared": 0}
    assert value(text, "fuseboard_pod_breaker_state", dependency="llm") == 0
    assert "acme" not in text, "no figure names a tenant"
    families = re.findall("^# TYPE (.*) (?:counter|gauge|histogram)$", text, re.MULTILINE)
    assert families == [figure.series for figure in pod_figures.EVERY]


async def test_resilience_has_the_failures_and_the_remaining_time_of_each_breaker(settings: Any):
    async with Agent(settings=settings) as agent:
        for _ in range(5):
            agent.report(await agent.admit_call("llm"), Outcome.FAILURE)
        state = agent.resilience()
    assert state["breakers"]["llm"] == "open"
    figures = state["breaker_figures"]["llm"]
    assert 0 < figures["remaining_ms"] <= 2 * 60_000
    assert figures["local"] is True
    assert {"calls", "failures", "consecutive_failures", "for_ms"} <= figures.keys()


def test_promtool_accepts_it(settings: Any):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")

    async def export() -> str:
        async with Agent(settings=settings) as agent:
            await decide(agent)
            agent._runtime.counters.store_answer(700)
            return agent.metrics_text()

    checked = subprocess.run(
        [promtool, "check", "metrics"],
        input=asyncio.run(export()),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")


async def test_response_times_of_redis_are_a_histogram(settings: Any):
    async with Agent(settings=settings) as agent:
        for latency_us in (100, 250, 251, 900_000):
            agent._runtime.counters.store_answer(latency_us)
        text = agent.metrics_text()
    name = REDIS_SECONDS.series
    assert value(text, f"{name}_bucket", le="0.00025") == 2
    assert value(text, f"{name}_bucket", le="0.0005") == 3
    assert value(text, f"{name}_bucket", le="+Inf") == value(text, f"{name}_count") == 4
    assert value(text, f"{name}_sum") == pytest.approx(0.900601)


async def test_calls_are_a_histogram_for_each_dependency(settings: Any):
    async with Agent(settings=settings) as agent:
        for seconds in (0.001, 0.2, 0.3, 400.0):
            agent.report(await agent.admit_call("llm"), Outcome.OK, elapsed_s=seconds)
        agent.report(await agent.admit_call("mail"), Outcome.OK)
        text = agent.metrics_text()
    name = CALL_SECONDS.series
    assert name == "fuseboard_call_duration_seconds"
    below = [
        value(text, f"{name}_bucket", dependency="llm", le=edge) for edge in ("0.002", "0.2", "0.5", "60.0")
    ]
    assert below == [1, 2, 3, 3]
    assert value(text, f"{name}_bucket", dependency="llm", le="+Inf") == 4
    assert value(text, f"{name}_sum", dependency="llm") == pytest.approx(400.501)
    assert not any(key[0] == f"{name}_count" and ("dependency", "mail") in key[1] for key in samples(text))


async def test_attempts_and_what_retries_did_are_exported(settings: Any):
    async with Agent(settings=settings) as agent:
        totals = agent._runtime.retries.part("llm").totals
        for attempts in (1, 1, 2, 3, 12):
            totals.ended(attempts)
        totals.helped, totals.exhausted = 2, 1
        text = agent.metrics_text()
    name = ATTEMPTS.series
    assert name == "fuseboard_call_attempts"
    below = [
        value(text, f"{name}_bucket", dependency="llm", le=edge) for edge in ("1", "2", "3", "10", "+Inf")
    ]
    assert below == [2, 3, 4, 5, 5]
    assert value(text, "fuseboard_retries_helped_total", dependency="llm") == 2
    assert value(text, "fuseboard_retries_exhausted_total", dependency="llm") == 1


async def test_series_are_bounded_whatever_callers_send(settings: Any):
    async with Agent(settings=settings) as agent:
        for number in range(MAX_DEPENDENCIES + 50):
            agent._runtime.counters.call(f"dependency-{number}", Outcome.OK)
            agent._runtime.counters.request(f"tenant-{number}", True, None)
        text = agent.metrics_text()
    calls = [key for key in samples(text) if key[0] == "fuseboard_calls_total"]
    assert len(calls) == MAX_DEPENDENCIES
    assert "tenant-" not in text


async def test_quotes_in_a_name_end_no_label(settings: Any):
    async with Agent(settings=settings) as agent:
        agent._runtime.counters.call('a"b\\c\n', Outcome.OK)
        text = agent.metrics_text()
    assert r'dependency="a\"b\\c\n"' in text


async def test_an_asgi_application_answers_a_scrape(settings: Any):
    async with Agent(settings=settings) as agent:
        await decide(agent)
        transport = httpx.ASGITransport(app=asgi.metrics(agent))
        async with httpx.AsyncClient(transport=transport, base_url="http://pod") as client:
            answer = await client.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert value(answer.text, "fuseboard_requests_total") == 2


def test_a_wsgi_application_answers_a_scrape(settings: Any):
    agent = blocking.Agent(settings=settings)
    try:
        agent.admit_request("acme")
        with httpx.Client(transport=httpx.WSGITransport(app=wsgi.metrics(agent))) as client:
            answer = client.get("http://pod/metrics")
    finally:
        agent.stop()
    assert answer.status_code == 200
    assert value(answer.text, "fuseboard_requests_total") == 1


async def test_locks_and_idempotency_are_exported(redis_url: str):
    settings = AgentSettings(redis_url=redis_url, environment="figures", server="shop-1")
    async with Agent(settings=settings) as agent:
        async with agent.lock("report"):
            with pytest.raises(LockTaken):
                async with agent.lock("report", wait_s=0):
                    pytest.fail("entered")
            assert value(agent.metrics_text(), "fuseboard_locks_held") == 1
            assert (value(agent.metrics_text(), "fuseboard_locks_longest_seconds") or 0) > 0
        async with agent.once("order-paid", uuid4()):
            pass
        text = agent.metrics_text()
    events = {event: value(text, "fuseboard_locks_total", event=event) for event in LOCK_EVENTS}
    assert events == dict.fromkeys(LOCK_EVENTS, 0) | {"acquired": 1, "taken": 1}
    assert value(text, "fuseboard_once_total", event="begun") == 1
    assert value(text, "fuseboard_once_total", event="replayed") == 0
    assert value(text, "fuseboard_locks_held") == 0
    assert value(text, "fuseboard_lock_wait_seconds_count") == 2
    assert value(text, "fuseboard_lock_hold_seconds_count") == 1
    assert "report" not in text, "no figure names a lock"


async def test_a_heartbeat_names_only_the_locks_that_are_held_longest():
    figures = PrimitiveFigures()
    now = monotonic()
    for number in range(9):
        figures.locks.held[str(number)] = f"lock-{number}-" + "x" * 100, now - number
    sent = figures.wire()
    assert (sent.holding, [lock.name[:6] for lock in sent.held]) == (
        9,
        [f"lock-{number}" for number in (8, 7, 6, 5, 4)],
    )
    assert {len(lock.name) for lock in sent.held} == {64}
    assert 8_000 <= sent.longest_ms < 9_000
    figures.locks.held = {"1": ("short", monotonic())}
    assert (figures.wire().holding, figures.wire().held) == (1, ())
