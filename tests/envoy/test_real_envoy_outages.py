"""What the clients of a real Envoy see while a sidecar or Redis is down, and when they return."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Policy
from tests.agents.published import publish
from tests.agents.servers import TENANTS
from tests.envoy.real_envoy import (
    Application,
    Envoy,
    application,
    config_of,
    needs_envoy,
    serving,
    sidecar,
)
from tests.envoy.rules import ACME, CALLS_ERROR, ERROR, OK, OVER, PATIENTLY, daily, policy
from tests.waiting import PATIENCE_S, eventually

pytestmark = [needs_envoy, pytest.mark.parametrize("transport", ["unix", "grpc"])]


def published(redis_url: str, rules: Policy) -> None:
    with redis.Redis.from_url(redis_url) as limits:
        limits.flushall()
        publish(limits, rules, revision=7, tenants=dict(TENANTS))


@asynccontextmanager
async def in_front(folder: Path, transport: str, *options: str) -> AsyncIterator[tuple[Envoy, Application]]:
    """An Envoy that asks the sidecar of this folder."""
    path = str(folder / "socket")
    where = ("--unix", path) if transport == "unix" else ("--grpc", f"unix:{path}")
    async with application() as app:
        config = config_of(
            *("--full", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"),
            *("--upstream", f"127.0.0.1:{app.port}", *where, *PATIENTLY, *options),
        )
        async with serving(config, folder / "envoy") as envoy:
            yield envoy, app


async def statuses(envoy: Envoy, count: int) -> list[int]:
    return [(await envoy.http.get("/", headers=ACME)).status_code for _ in range(count)]


async def test_a_sidecar_that_is_killed_stops_no_request_and_decides_when_it_is_back(
    transport: str, redis_url: str, tmp_path: Path
) -> None:
    published(redis_url, policy(daily(4)))
    async with in_front(tmp_path, transport) as (envoy, app):
        with sidecar(redis_url, tmp_path, transport) as first:
            assert await statuses(envoy, 2) == [200, 200]
            first.end(signal.SIGKILL)
        assert await statuses(envoy, 5) == [200] * 5
        assert await envoy.counters(OK, ERROR, CALLS_ERROR) == (2, 5, 5)
        with sidecar(redis_url, tmp_path, transport):

            async def decided() -> int:
                await statuses(envoy, 1)
                return (await envoy.counters(OVER))[0]

            # Two requests are left of the quota.
            await eventually(decided)
        assert (await envoy.counters(OK)) == (4,)
        assert app.served == 4 + (await envoy.counters(ERROR))[0]


async def test_a_frozen_redis_makes_no_request_wait_for_longer_than_envoy_does(
    transport: str, valkey: Valkey, tmp_path: Path
) -> None:
    requests, quota = 12, 5
    published(valkey.url, policy(daily(quota)))
    async with in_front(tmp_path, transport) as (envoy, app):
        with sidecar(valkey.url, tmp_path, transport):
            assert await statuses(envoy, 1) == [200]
            valkey.process.send_signal(signal.SIGSTOP)
            try:
                await statuses(envoy, requests)
            finally:
                valkey.process.send_signal(signal.SIGCONT)
        # Each request got a decision: the sidecar decided with its share, and waited for no answer of Redis.
        assert await envoy.counters(ERROR, CALLS_ERROR) == (0, 0)
        ok, over = await envoy.counters(OK, OVER)
        assert (ok + over, ok) == (requests + 1, app.served)
        # What was spent before is not known without Redis.
        assert 1 < ok <= 1 + quota


async def test_a_sidecar_that_stops_loses_no_decision_under_load(
    transport: str, redis_url: str, tmp_path: Path
) -> None:
    published(redis_url, policy(daily(1_000_000)))
    ended = asyncio.Event()
    answered: list[int] = []

    async def ask(envoy: Envoy) -> None:
        while not ended.is_set():
            answered.extend(await statuses(envoy, 1))

    with ExitStack() as after_envoy:
        beside = after_envoy.enter_context(sidecar(redis_url, tmp_path, transport, "--drain-s", "600"))
        async with in_front(tmp_path, transport) as (envoy, _):
            callers = [asyncio.ensure_future(ask(envoy)) for _ in range(10)]
            await eventually(lambda: len(answered) > 100)
            beside.process.send_signal(signal.SIGTERM)
            after = len(answered)
            await eventually(lambda: len(answered) > after + 300)
            ended.set()
            await asyncio.gather(*callers)
            assert set(answered) == {200}
            assert await envoy.counters(OK, ERROR, CALLS_ERROR) == (len(answered), 0, 0)
            assert beside.process.poll() is None

            await eventually(lambda: beside.figure("fuseboard_sidecar_permits") == 0)
            assert beside.figure("fuseboard_sidecar_permits_expired_total") == 0
        # Envoy has ended, as the application of a sidecar container does.
        assert await asyncio.to_thread(beside.process.wait, PATIENCE_S) == 0
