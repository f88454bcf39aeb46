"""What a vendor has left reaches the counter of the fleet, through every guarded client."""

import json
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent, AgentSettings, Mode, blocking
from fuseboard.admission.seen_limits import SEEN_S
from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency, Policy, Tuning
from fuseboard.contract.sync import SeenLimit
from fuseboard.integrations.httpx import BlockingGuardedTransport, GuardedTransport
from fuseboard.learning.remaining import remaining_of
from tests.agents.limit_kinds import window
from tests.agents.published import publish
from tests.agents.servers import BREAKER, PATIENT, POLICY
from tests.waiting import eventually, wait_until

#: Long enough that nothing leaves it during a test.
LIMITS = (window(100, 3_600, name="hour"), window(5_000, 86_400, name="day"))
HEADERS = {"RateLimit-Limit": "100, 100;w=3600", "RateLimit-Remaining": "30"}


def policy(tuning: Tuning = PATIENT) -> Policy:
    return replace(
        POLICY,
        dependencies=(Dependency(name="vendor", vendor_limits=LIMITS, breaker=BREAKER),),
        tuning=tuning,
    )


def spent(limits: redis.Redis, name: str = "hour") -> int:
    text = limits.get(keys.vendor_limit("production", "vendor", name))
    assert isinstance(text, bytes)
    return int(struct.unpack(">3d", text[:24])[2])


class Vendor:
    def __init__(self) -> None:
        self.status, self.headers = 200, dict(HEADERS)
        self.body: dict[str, Any] = {}

    def __call__(self, request: httpx.Request) -> httpx.Response:
        return httpx.Response(self.status, headers=self.headers, content=json.dumps(self.body))


@asynccontextmanager
async def started(redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    settings = AgentSettings(redis_url=redis_url, server="shop-1", state_dir=tmp_path)
    async with Agent(settings=settings) as agent:
        await eventually(lambda: agent.mode is Mode.SHARED)
        await eventually(lambda: agent.configuration.snapshot.head.revision == 1)
        yield agent


@asynccontextmanager
async def guarded(redis_url: str, tmp_path: Path, vendor: Vendor) -> AsyncIterator[Callable[[], Any]]:
    async with started(redis_url, tmp_path) as agent:
        transport = GuardedTransport(agent, dependency="vendor", transport=httpx.MockTransport(vendor))
        async with httpx.AsyncClient(transport=transport) as client:

            async def ask() -> None:
                (await client.get("http://vendor.test/")).read()

            yield ask


@pytest.fixture
async def ask(limits: redis.Redis, redis_url: str, tmp_path: Path, vendor: Vendor):
    publish(limits, policy(), revision=1)
    async with guarded(redis_url, tmp_path, vendor) as ask:
        yield ask


@pytest.fixture
def vendor() -> Vendor:
    return Vendor()


async def test_what_others_have_spent_is_charged(limits: redis.Redis, ask: Callable[[], Any]):
    await ask()
    await eventually(lambda: spent(limits) == 70)
    assert spent(limits, "day") == 1


async def test_a_refusal_of_the_vendor_says_it_too(
    limits: redis.Redis, ask: Callable[[], Any], vendor: Vendor
):
    vendor.status, vendor.headers["RateLimit-Remaining"] = 429, "0"
    await ask()
    await eventually(lambda: spent(limits) == 100)


async def test_a_vendor_with_more_left_changes_nothing(
    limits: redis.Redis, ask: Callable[[], Any], vendor: Vendor
):
    vendor.headers["RateLimit-Remaining"] = "99"
    await ask()
    vendor.headers["RateLimit-Remaining"] = "40"
    await ask()
    await eventually(lambda: spent(limits) == 60)


@pytest.mark.parametrize("header", ["Age", "RateLimit-Limit"])
async def test_what_is_not_of_this_moment_or_of_no_limit_of_ours_changes_nothing(
    limits: redis.Redis, ask: Callable[[], Any], vendor: Vendor, header: str
):
    vendor.headers[header] = {"Age": "5", "RateLimit-Limit": "100, 100;w=60"}[header]
    await ask()
    vendor.headers = {**HEADERS, "RateLimit-Remaining": "50"}
    await ask()
    await eventually(lambda: spent(limits) == 50)


async def test_zero_switches_it_off(limits: redis.Redis, redis_url: str, tmp_path: Path, vendor: Vendor):
    publish(limits, policy(replace(PATIENT, remaining_for_ms=0)), revision=1)
    async with guarded(redis_url, tmp_path, vendor) as ask:
        await ask()
    assert spent(limits) == 1  # the agent has sent all that it had to


async def test_a_vendor_that_contradicts_itself_is_ignored_and_named(
    limits: redis.Redis, redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    publish(limits, policy(), revision=1)
    async with started(redis_url, tmp_path) as agent:
        permit, remaining = await agent.admit_call("vendor"), remaining_of(agent)
        heard: list[dict[str, tuple[int, int]]] = []
        agent.note_left = lambda permit, stated, believed_s: heard.append(stated)  # type: ignore[method-assign]
        little = {**HEADERS, "RateLimit-Remaining": "9"}
        for _ in range(4):
            remaining.record(agent, permit, 429, little, elapsed_s=0.1)
        assert heard == [{"hour": (9, 100)}] * 4
        for _ in range(4):
            assert "limits.remaining_ignored" not in caplog.text
            remaining.record(agent, permit, 429, {**HEADERS, "RateLimit-Remaining": "10"}, elapsed_s=0.1)
        assert "limits.remaining_ignored dependency=vendor: 4 answers" in caplog.text
        remaining.record(agent, permit, 200, little, elapsed_s=0.1)
        assert len(heard) == 7


async def test_an_account_without_money_contradicts_nothing(
    limits: redis.Redis, redis_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    publish(limits, policy(), revision=1)
    async with started(redis_url, tmp_path) as agent:
        permit = await agent.admit_call("vendor")
        ample = {**HEADERS, "RateLimit-Remaining": "100"}
        for code in ("insufficient_quota", "request_too_large"):
            for _ in range(4):
                remaining_of(agent).record(agent, permit, 429, ample, code=code, elapsed_s=0.1)
        assert "remaining_ignored" not in caplog.text
        for _ in range(4):
            remaining_of(agent).record(agent, permit, 429, ample, elapsed_s=0.1)
        assert "remaining_ignored" in caplog.text


async def test_an_answer_that_took_longer_is_not_believed(
    limits: redis.Redis, redis_url: str, tmp_path: Path
):
    publish(limits, policy(), revision=1)
    async with started(redis_url, tmp_path) as agent:
        permit = await agent.admit_call("vendor")
        remaining_of(agent).record(
            agent, permit, 200, {**HEADERS, "RateLimit-Remaining": "1"}, elapsed_s=10.1
        )
        remaining_of(agent).record(agent, permit, 200, {**HEADERS, "RateLimit-Remaining": "9"}, elapsed_s=9.0)
        await eventually(lambda: spent(limits) == 91)


def test_threads_pass_it_on(limits: redis.Redis, redis_url: str, tmp_path: Path, vendor: Vendor):
    publish(limits, policy(), revision=1)
    settings = AgentSettings(redis_url=redis_url, server="shop-1", state_dir=tmp_path)
    with blocking.Agent(settings=settings) as agent:
        wait_until(lambda: agent.mode is Mode.SHARED)
        wait_until(lambda: agent.configuration.snapshot.head.revision == 1)
        transport = BlockingGuardedTransport(
            agent, dependency="vendor", transport=httpx.MockTransport(vendor)
        )
        with httpx.Client(transport=transport) as client:
            client.get("http://vendor.test/")
        wait_until(lambda: spent(limits) == 70)


async def test_a_pod_reports_the_number_of_the_vendor_for_five_minutes(
    limits: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    publish(limits, policy(), revision=1)
    async with started(redis_url, tmp_path) as agent:
        permit = await agent.admit_call("vendor")
        stated = {"RateLimit-Limit": "90, 90;w=3600", "RateLimit-Remaining": "80"}
        remaining_of(agent).record(agent, permit, 200, stated, elapsed_s=0.1)
        outcomes = agent._runtime.admission.outcomes
        (seen,) = outcomes.seen()
        assert seen == SeenLimit(
            dependency="vendor", limit="hour", said=90, answers=1, for_ms=seen.for_ms, left=80
        )
        later = monotonic() + SEEN_S + 1
        monkeypatch.setattr("fuseboard.admission.seen_limits.monotonic", lambda: later)
        assert outcomes.seen() == ()


async def test_a_pod_without_redis_charges_nothing(redis_url: str, tmp_path: Path, vendor: Vendor):
    settings = AgentSettings(redis_url="redis://127.0.0.1:1", server="shop-1", state_dir=tmp_path)
    async with Agent(settings=settings) as agent:
        transport = GuardedTransport(agent, dependency="vendor", transport=httpx.MockTransport(vendor))
        async with httpx.AsyncClient(transport=transport) as client:
            assert (await client.get("http://vendor.test/")).status_code == 200
