"""Streamed answers: an error inside one is a failure, and its parts have bounds of their own, not a total."""

import asyncio
import gc
from collections.abc import AsyncIterable, Iterator
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest

from fuseboard import Agent, blocking
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy
from fuseboard.contract.protection import Bulkhead, CallProtection
from fuseboard.contract.words import Outcome
from fuseboard.integrations import httpx as for_httpx
from fuseboard.integrations import httpx2 as for_httpx2
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY
from tests.agents.streaming import (
    ANTHROPIC_ERROR,
    DONE,
    OPENAI_ERROR,
    StreamingVendor,
    begin_message,
    chat,
    message,
    streaming_vendor,
)
from tests.waiting import eventually, wait_until

PARTS = [(0.0, chat("one")), (0.0, chat("two"))]


def rules(**bounds: Any) -> Policy:
    llm = Dependency(
        name="llm",
        breaker=BreakerPolicy(slow_ms=bounds.pop("slow_ms", 60_000)),
        protection=CallProtection(bulkhead=Bulkhead(max_concurrent=5)),
        **bounds,
    )
    return Policy(
        environment=POLICY.environment,
        default_tier=POLICY.default_tier,
        tiers=POLICY.tiers,
        dependencies=(llm,),
    )


@pytest.fixture
def vendor() -> Iterator[StreamingVendor]:
    with streaming_vendor() as vendor:
        yield vendor


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_with(tmp_path, rules())


def outcomes(agent: Agent) -> dict[str, int]:
    found: dict[str, int] = {}
    for dependency in agent.counters.wire().dependencies:
        for outcome in Outcome:
            if total := getattr(dependency, outcome.value):
                found[outcome.value] = found.get(outcome.value, 0) + total
    return found


def held(agent: Agent) -> int:
    guard = agent._runtime.admission.guards.find("llm")
    assert guard is not None
    return len(guard._calls)


async def read(agent: Agent, vendor: StreamingVendor, library: Any = httpx, timeout: Any = None) -> bytes:
    ours = for_httpx if library is httpx else for_httpx2
    transport = ours.GuardedTransport(agent, dependency="llm")
    async with library.AsyncClient(transport=transport, timeout=timeout) as client:
        return bytes((await client.post(vendor.url)).content)


async def read_all(parts: AsyncIterable[object]) -> None:
    async for _ in parts:
        """Read."""


class TestErrors:
    @pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
    @pytest.mark.parametrize("kind", ["text/event-stream; charset=utf-8", "text/plain", None])
    async def test_an_error_event_is_a_failure_and_the_reader_gets_every_byte(
        self, settings: AgentSettings, vendor: StreamingVendor, library: Any, kind: str | None
    ):
        vendor.headers = {"Content-Type": kind} if kind else {}
        error = OPENAI_ERROR
        vendor.parts = [*PARTS, (0.0, error[:9]), (0.0, error[9:-1]), (0.0, error[-1:])]
        async with Agent(settings=settings) as agent:
            for _ in range(3):
                assert await read(agent, vendor, library) == b"".join(part for _, part in vendor.parts)
            assert outcomes(agent) == {"failure": 3}
            assert held(agent) == 0

    async def test_the_real_client_of_openai_and_the_breaker_see_the_same(
        self, settings: AgentSettings, vendor: StreamingVendor
    ):
        vendor.parts = [*PARTS, (0.0, OPENAI_ERROR)]
        async with Agent(settings=settings) as agent:
            transport = for_httpx2.GuardedTransport(agent, dependency="llm")
            http = httpx2.AsyncClient(transport=transport)
            async with openai.AsyncOpenAI(api_key="k", base_url=vendor.url, http_client=http) as client:
                stream = await client.chat.completions.create(
                    model="m", messages=[{"role": "user", "content": "hi"}], stream=True
                )
                with pytest.raises(openai.APIError):
                    await read_all(stream)
            assert outcomes(agent) == {"failure": 1}
            assert held(agent) == 0

    def test_the_real_client_of_anthropic_and_the_breaker_see_the_same(
        self, settings: AgentSettings, vendor: StreamingVendor
    ):
        vendor.parts = [(0.0, begin_message()), (0.0, message("hi")), (0.0, ANTHROPIC_ERROR)]
        with blocking.Agent(settings=settings) as agent:
            transport = for_httpx2.BlockingGuardedTransport(agent, dependency="llm")
            http = httpx2.Client(transport=transport)
            with anthropic.Anthropic(api_key="k", base_url=vendor.url, http_client=http) as client:
                stream = client.messages.create(
                    model="m", max_tokens=9, messages=[{"role": "user", "content": "hi"}], stream=True
                )
                with pytest.raises(anthropic.APIStatusError):
                    list(stream)
            started = agent._started()
            wait_until(lambda: outcomes(started) == {"failure": 1} and held(started) == 0)

    async def test_a_wrong_request_in_a_stream_says_nothing_about_the_vendor(
        self, settings: AgentSettings, vendor: StreamingVendor
    ):
        vendor.parts = [(0.0, OPENAI_ERROR.replace(b"server_error", b"context_length_exceeded"))]
        async with Agent(settings=settings) as agent:
            await read(agent, vendor)
            assert outcomes(agent) == {"neutral": 1}

    @pytest.mark.parametrize("way", ["ends", "left", "closed", "dropped"])
    async def test_the_permit_of_a_good_stream_ends_once_however_it_ends(
        self, settings: AgentSettings, vendor: StreamingVendor, way: str
    ):
        vendor.parts = [*PARTS, (0.0 if way == "ends" else 30.0, DONE)]
        async with Agent(settings=settings) as agent:
            transport = for_httpx.GuardedTransport(agent, dependency="llm")
            client = httpx.AsyncClient(transport=transport, timeout=60)
            response = await client.send(client.build_request("POST", vendor.url), stream=True)
            assert held(agent) == 1
            if way != "closed":
                parts = response.aiter_bytes()
                await anext(parts)
                if way == "ends":
                    await read_all(parts)
            if way == "dropped":
                del parts, response
                vendor.ended.set()
            elif way != "ends":
                await response.aclose()
            await client.aclose()
            await eventually(lambda: gc.collect() >= 0 and held(agent) == 0)
            await eventually(lambda: sum(outcomes(agent).values()) == 1)
            assert "failure" not in outcomes(agent)


class TestBounds:
    """``first_part_ms`` and ``between_parts_ms``."""

    async def test_a_long_stream_outlives_the_timeout_of_the_dependency(
        self, tmp_path: Path, vendor: StreamingVendor
    ):
        vendor.parts = [(0.05, chat(str(number))) for number in range(12)]
        bounds = {"timeout_ms": 200, "first_part_ms": 30_000, "between_parts_ms": 30_000}
        async with Agent(settings=settings_with(tmp_path, rules(**bounds))) as agent:
            await read(agent, vendor)
            async with agent.call("llm"), httpx.AsyncClient(timeout=60) as client:
                await client.post(vendor.url)
            assert outcomes(agent) == {"ok": 2}

    @pytest.mark.parametrize("timeout", [None, 60.0], ids=["without", "with its own timeout"])
    @pytest.mark.parametrize("library", [httpx, httpx2], ids=["httpx", "httpx2"])
    @pytest.mark.parametrize("late", ["first part", "a part"])
    async def test_a_part_that_does_not_come_in_time_is_a_failure(
        self, tmp_path: Path, vendor: StreamingVendor, library: Any, timeout: Any, late: str
    ):
        first, between = (50, 30_000) if late == "first part" else (30_000, 50)
        vendor.parts = [(60.0, DONE)] if late == "first part" else [*PARTS, (60.0, DONE)]
        settings = settings_with(tmp_path, rules(first_part_ms=first, between_parts_ms=between))
        async with Agent(settings=settings) as agent:
            with pytest.raises(library.ReadTimeout, match=late):
                await read(agent, vendor, library, timeout)
            assert outcomes(agent) == {"failure": 1}
            assert held(agent) == 0

    def test_a_part_that_does_not_come_in_time_is_a_failure_in_threads_too(
        self, tmp_path: Path, vendor: StreamingVendor
    ):
        vendor.parts = [*PARTS, (60.0, DONE)]
        settings = settings_with(tmp_path, rules(first_part_ms=50, between_parts_ms=100))
        with blocking.Agent(settings=settings) as agent:
            transport = for_httpx.BlockingGuardedTransport(agent, dependency="llm")
            with httpx.Client(transport=transport, timeout=60) as client, pytest.raises(httpx.ReadTimeout):
                client.post(vendor.url)
            started = agent._started()
            wait_until(lambda: outcomes(started) == {"failure": 1} and held(started) == 0)

    async def test_an_answer_that_is_no_stream_keeps_its_timeout(
        self, tmp_path: Path, vendor: StreamingVendor
    ):
        vendor.headers = {"Content-Type": "application/json"}
        vendor.parts = [(0.3, b"{}")]
        settings = settings_with(tmp_path, rules(first_part_ms=50, between_parts_ms=50))
        async with Agent(settings=settings) as agent:
            assert await read(agent, vendor) == b"{}"
            assert outcomes(agent) == {"ok": 1}

    async def test_a_stream_is_slow_by_its_first_part_and_not_by_its_length(
        self, tmp_path: Path, vendor: StreamingVendor
    ):
        settings = settings_with(tmp_path, rules(slow_ms=200))
        async with Agent(settings=settings) as agent:
            vendor.parts = [(0.0, chat("at once")), (0.4, DONE)]
            await read(agent, vendor)
            assert outcomes(agent) == {"ok": 1}
            vendor.parts = [(0.0, b": still thinking\n\n"), (0.4, chat("late")), (0.0, DONE)]
            await read(agent, vendor)
            assert outcomes(agent) == {"ok": 1, "slow": 1}


async def streamed(agent: Agent, waits_s: list[float], **options: Any) -> None:
    """A block whose parts come after these waits."""
    async with agent.call("llm", **options) as permit:
        for wait_s in waits_s:
            await asyncio.sleep(wait_s)
            permit.part()


class TestBlocks:
    """A block cannot see the parts of an answer: its caller says when one has come."""

    async def test_a_part_that_does_not_come_ends_the_block(self, tmp_path: Path):
        settings = settings_with(tmp_path, rules(timeout_ms=60_000, between_parts_ms=50))
        async with Agent(settings=settings) as agent:
            with pytest.raises(TimeoutError):
                await streamed(agent, [0.0, 0.01, 60.0])
            assert outcomes(agent) == {"failure": 1}
            assert held(agent) == 0

    async def test_a_deadline_bounds_a_stream_as_well(self, tmp_path: Path):
        settings = settings_with(tmp_path, rules(between_parts_ms=60_000))
        async with Agent(settings=settings) as agent:
            with pytest.raises(TimeoutError):
                await streamed(agent, [0.0, 60.0], deadline_s=0.1)
            assert held(agent) == 0

    async def test_the_time_until_the_first_part_decides_whether_a_block_was_slow(self, tmp_path: Path):
        settings = settings_with(tmp_path, rules(slow_ms=100, first_part_ms=30_000))
        async with Agent(settings=settings) as agent:
            await streamed(agent, [0.0, 0.15])
            async with agent.call("llm"):
                await asyncio.sleep(0.15)  # how long its parts took is unknown
            assert outcomes(agent) == {"ok": 2}
            await streamed(agent, [0.15, 0.0])
            assert outcomes(agent) == {"ok": 2, "slow": 1}

    def test_the_same_in_threads(self, tmp_path: Path):
        settings = settings_with(tmp_path, rules(slow_ms=100))
        with blocking.Agent(settings=settings) as agent:
            with agent.call("llm") as permit:
                permit.part()
                wait_until(lambda: permit.began_s is not None and held(agent._started()) == 1)
            started = agent._started()
            wait_until(lambda: outcomes(started) == {"ok": 1})

    async def test_parts_of_a_block_that_has_ended_change_nothing(self, tmp_path: Path):
        async with Agent(settings=settings_with(tmp_path, rules(between_parts_ms=50))) as agent:
            async with agent.call("llm") as permit:
                permit.part()
            permit.part()
            assert outcomes(agent) == {"ok": 1}
