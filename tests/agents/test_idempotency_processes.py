"""``Idempotency-Key`` where the process that runs a request is killed or stopped."""

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import redis

from fuseboard import Agent, AgentSettings
from tests.agents.shop import Shop, client_of, order
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def hasty(shop: Shop, limits: redis.Redis, redis_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """The lease of a process that died is over before the test loses patience."""
    settings = AgentSettings(redis_url=redis_url, server="shop-1")
    async with Agent(settings=settings) as agent, client_of(shop, agent, lease_s=2) as client:
        yield client


class TestProcesses:
    async def test_a_killed_request_is_not_replayed_as_done(
        self, hasty: httpx.AsyncClient, shop: Shop, redis_url: str
    ):
        with other_process(redis_url) as process:
            process.kill()
        answer = await order(hasty)
        assert (answer.status_code, shop.runs) == (409, 0)
        assert answer.json()["type"] == "urn:fuseboard:problem:idempotency-in-progress"
        answer = await eventually(lambda: order(hasty), accept=lambda answer: answer.status_code == 201)
        assert "idempotency-replayed" not in answer.headers
        assert shop.runs == 1

    async def test_a_process_stopped_past_its_lease_replaces_no_answer(
        self, hasty: httpx.AsyncClient, shop: Shop, redis_url: str
    ):
        with other_process(redis_url) as process:
            process.send_signal(signal.SIGSTOP)
            await eventually(lambda: order(hasty), accept=lambda answer: answer.status_code == 201)
            process.send_signal(signal.SIGCONT)
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            assert await asyncio.to_thread(process.wait) == 0
        assert (await order(hasty)).content == b"order 1"
        assert process.fence < shop.fences[0]


class Other(subprocess.Popen[str]):
    fence: int


@contextmanager
def other_process(redis_url: str) -> Iterator[Other]:
    """Another process that runs the same request."""
    command = [sys.executable, "-m", "tests.agents.idempotency_process", redis_url, "2"]
    process = Other(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        process.fence = int(process.stdout.readline())
        yield process
    finally:
        process.kill()
        process.communicate()
