"""SIGTERM while an application asks: no request is without a decision, and no report is lost."""

import asyncio
import signal
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest
import redis

from tests.agents.gateways import FakeGateway, gateway_running
from tests.agents.published import publish
from tests.sidecar.processes import Process, sidecar
from tests.sidecar.test_sidecar_calls import policy
from tests.waiting import PATIENCE_S, eventually

AT_ONCE, BEFORE, AFTER = 8, 20, 30


class Application:
    """Calls at once over several connections. A report goes over another connection than its call."""

    def __init__(self, clients: Sequence[httpx.AsyncClient]) -> None:
        self._clients = clients
        self.calls = self.reports = 0

    async def work(self, times: int) -> None:
        await asyncio.gather(*(self._one(number, times) for number in range(len(self._clients))))

    async def _one(self, number: int, times: int) -> None:
        other = self._clients[(number + 1) % len(self._clients)]
        for _ in range(times):
            call = await self._clients[number].post("/v1/calls", json={"dependency": "payments"})
            assert call.status_code == 200
            self.calls += 1
            report = [{"permit": call.json()["permit"], "status": 200}]
            answer = await other.post("/v1/reports", json=report)
            assert answer.status_code == 200
            self.reports += answer.json()["accepted"]


def counted(gateway: FakeGateway) -> int:
    """The good calls that all agents have reported, as each said last."""
    last = {beat.boot: beat for beat in gateway.beats}
    assert all(beat.leaving for beat in last.values())
    return sum(one.ok for beat in last.values() for one in beat.counters.dependencies)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("order", ["application first", "both at once"])
async def test_no_decision_fails_and_no_report_is_lost_at_the_end(
    workers: int, order: str, limits: redis.Redis, redis_url: str, tmp_path: Path
) -> None:
    publish(limits, policy(), revision=7)
    shared = ("--shared", "--unix", str(tmp_path / "sock"), "--workers", str(workers))
    with gateway_running() as gateway:
        variables = {"FUSEBOARD_URL": gateway.url, "FUSEBOARD_TOKEN": "agent"}
        with sidecar(redis_url, tmp_path, *shared, "--drain-s", "600", **variables) as one:
            async with AsyncExitStack() as stack:
                clients = [await stack.enter_async_context(client_of(one)) for _ in range(AT_ONCE)]
                application = Application(clients)
                await application.work(BEFORE)
                if order == "both at once":
                    working = asyncio.create_task(application.work(AFTER))
                    one.process.send_signal(signal.SIGTERM)
                    await eventually(lambda: one.ready() == 503)
                    await working
            if order == "application first":
                one.process.send_signal(signal.SIGTERM)
            assert await asyncio.to_thread(one.process.wait, PATIENCE_S) == 0
        assert application.reports == application.calls >= AT_ONCE * BEFORE
        assert len({beat.server for beat in gateway.beats}) == workers
        assert counted(gateway) == application.calls


def client_of(one: Process) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=one.url,
        headers={"authorization": f"Bearer {one.token}"},
        timeout=PATIENCE_S,
        trust_env=False,
        limits=httpx.Limits(max_connections=1),
    )
