"""A drill: chosen pods act as without Redis, report it, and stop when the drill ends."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from time import monotonic

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings
from fuseboard.contract.sync import Drill, SyncRequest, SyncResponse
from fuseboard.contract.words import DrillKind, Mode
from fuseboard.without_redis import drain
from tests.agents.gateways import FakeGateway, gateway_running
from tests.agents.servers import POLICY, SHORT_DEADLINE, Server, configured, give, running
from tests.waiting import eventually


def pretend(server: Server, kind: DrillKind, for_ms: int = 60_000, number: int = 1) -> None:
    drill = Drill(id=number, kind=kind, remaining_ms=for_ms)
    server.admission.store.pretend(drill, asked=monotonic())


async def ask(server: Server, calls: int) -> list[bool]:
    decisions = await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(calls)))
    return [decision.allowed for decision in decisions]


async def test_a_pod_in_a_drill_spends_its_share_and_reports_it(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        pretend(server, DrillKind.GONE)
        assert server.admission.mode is Mode.DRILL
        assert "Redis is simulated as unavailable" in server.admission.mode_cause
        await eventually(lambda: server.admission.health.mode is Mode.LOCAL)
        before = server.counters.local_decisions
        assert sum(await ask(server, 50)) == 20
        assert server.counters.local_decisions - before == 50
        assert limits.keys("fb1:production:{t:*") == []  # Redis heard of none of it
        assert server.admission.mode is Mode.DRILL


async def test_it_ends_by_itself_and_comes_back_by_a_ramp(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        pretend(server, DrillKind.GONE, for_ms=200)
        seen = [server.admission.mode]
        while seen[-1] is not Mode.SHARED:
            await asyncio.sleep(0.002)
            if server.admission.mode is not seen[-1]:
                seen.append(server.admission.mode)
        assert [mode for mode in seen if mode is not Mode.LOCAL] == [Mode.DRILL, Mode.RAMPING, Mode.SHARED]


async def test_a_slow_redis_is_found_out_as_it_would_be_and_charges_nothing(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    # The report of what the pod decided alone charges the same counter, as it should. It comes later here.
    monkeypatch.setattr(drain, "SOON_S", 600)
    configuration = configured()
    async with running(redis_url, configuration=configuration) as server:
        await server.admission.admit_call("payments")  # Redis has answered, so its time is known
        give(configuration, SHORT_DEADLINE, revision=8)
        pretend(server, DrillKind.SLOW)
        assert server.admission.health.mode is Mode.SHARED
        while server.admission.health.mode is not Mode.LOCAL:
            await ask(server, 1)
        assert "timeouts" in server.admission.health.cause
        await asyncio.sleep(0.15)  # the late questions have arrived by now
        assert limits.keys("fb1:production:{t:*}:quota:requests") == []


async def test_it_can_be_ended_before_its_time(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        pretend(server, DrillKind.GONE)
        await eventually(lambda: server.admission.health.mode is Mode.LOCAL)
        server.admission.store.pretend(None, asked=monotonic())
        await eventually(lambda: server.admission.mode is Mode.SHARED)


async def test_an_answer_that_took_longer_than_the_drill_begins_nothing(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        drill = Drill(id=1, kind=DrillKind.GONE, remaining_ms=1_000)
        server.admission.store.pretend(drill, asked=monotonic() - 2)
        assert server.admission.mode is Mode.SHARED


class Director(FakeGateway):
    """Orders one drill."""

    drill: Drill | None = None

    def response(self, beat: SyncRequest) -> SyncResponse:
        return msgspec.structs.replace(super().response(beat), drill=self.drill)


@pytest.fixture
def director() -> Iterator[Director]:
    with gateway_running(Director()) as running:
        assert isinstance(running, Director)
        running.publish(POLICY, revision=7)
        running.next_ms = 50
        yield running


async def test_it_starts_with_a_heartbeat_is_reported_by_the_next_and_survives_the_control_plane(
    limits: redis.Redis, redis_url: str, director: Director, tmp_path: Path
):
    settings = AgentSettings(redis_url=redis_url, url=director.url, token="fb_sel_secret", state_dir=tmp_path)
    async with Agent(settings=settings) as agent:
        director.drill = Drill(id=4, kind=DrillKind.GONE, remaining_ms=900)
        await eventually(lambda: agent.mode is Mode.DRILL)
        await eventually(lambda: director.beats[-1].mode is Mode.DRILL)
        assert director.beats[-1].mode_cause.startswith("drill 4")
        director.always = None
        director.replies = []
        director.delay_s = 3.0  # the control plane is as good as gone
        await eventually(lambda: agent.mode in (Mode.RAMPING, Mode.SHARED))
