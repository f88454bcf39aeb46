"""Breakers without Redis, or after Redis has lost them: an open breaker stays open until its time."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard import Agent, AgentSettings
from fuseboard.contract.policy import BreakerPolicy, Override, Policy
from fuseboard.contract.words import BreakerState, Mode, Outcome, OverrideMode, Reason
from fuseboard.errors import Refused
from tests.agents.gateways import gateway_running
from tests.agents.servers import POLICY, Server, configured, running
from tests.waiting import eventually

SHORT = BreakerPolicy(open_ms=100)


def opening_for(milliseconds: int) -> Policy:
    breaker = msgspec.structs.replace(POLICY.dependencies[0].breaker, open_ms=milliseconds)
    payments = msgspec.structs.replace(POLICY.dependencies[0], breaker=breaker)
    return msgspec.structs.replace(POLICY, dependencies=(payments,))


async def trip(server: Server) -> None:
    for _ in range(4):
        server.admission.report(await server.admission.admit_call("payments"), Outcome.FAILURE)

    def fleet_is_open() -> bool:
        view = server.admission.breaker_views()[0]
        return view.state is BreakerState.OPEN and not view.local

    await eventually(fleet_is_open)


async def admitted(server: Server, calls: int) -> int:
    found = await asyncio.gather(
        *(server.admission.admit_call("payments") for _ in range(calls)), return_exceptions=True
    )
    assert all(isinstance(each, Refused) for each in found if isinstance(each, BaseException))
    return sum(not isinstance(each, BaseException) for each in found)


async def test_an_open_breaker_that_redis_forgot_stays_open_until_its_time(
    limits: redis.Redis, redis_url: str
):
    # Longer than a machine pauses.
    async with running(redis_url, configuration=configured(opening_for(3_000))) as server:
        await trip(server)
        limits.flushall()
        loops = 0
        while True:
            calls = await admitted(server, 20)
            if server.admission.breaker_views()[0].remaining_ms <= 0:
                break
            assert calls == 0
            loops += 1
            await asyncio.sleep(0.01)
        assert loops
        assert server.admission.mode is Mode.SHARED


async def test_without_redis_each_server_probes_alone_and_servers_do_not_probe_together(valkey: Valkey):
    async with running(valkey.url, "web-1") as one, running(valkey.url, "web-2") as two:
        await trip(one)
        assert await admitted(two, 1) == 0
        valkey.stop()
        for server in (one, two):
            await eventually(lambda server=server: server.admission.mode is Mode.LOCAL)
        local = [server.admission.calls.breakers["payments"].local for server in (one, two)]
        assert local[0].until != local[1].until
        for server, breaker in zip((one, two), local, strict=True):
            breaker.until = time.monotonic()  # the minute passes at once
            assert await admitted(server, 20) == 1


async def test_a_cooldown_applies_without_redis_too(valkey: Valkey):
    async with running(valkey.url) as server:
        permit = await server.admission.admit_call("payments")
        server.admission.report(permit, Outcome.FAILURE, cooldown_ms=60_000)
        valkey.stop()
        await eventually(lambda: server.admission.mode is Mode.LOCAL)
        assert await admitted(server, 5) == 0


def held_open(policy: Policy, seconds: float, breaker: BreakerPolicy = SHORT) -> Policy:
    override = Override(
        mode=OverrideMode.FORCED_OPEN,
        revision=8,
        expires_at_us=int((time.time() + seconds) * 1_000_000),
        reason="vendor asked us to stop",
        actor="olga",
    )
    payments = msgspec.structs.replace(policy.dependencies[0], override=override, breaker=breaker)
    return msgspec.structs.replace(policy, dependencies=(payments,))


async def test_an_override_reaches_pods_over_http_while_redis_is_down_and_ends_by_their_clock(tmp_path: Path):
    with gateway_running() as gateway:
        gateway.publish(POLICY, revision=7)
        gateway.next_ms = 50
        settings = AgentSettings(
            redis_url="redis://127.0.0.1:1/0", url=gateway.url, token="fb_sel_secret", state_dir=tmp_path
        )
        async with Agent(settings=settings) as agent:
            assert agent.mode is Mode.LOCAL
            await agent.admit_call("payments")
            gateway.publish(held_open(POLICY, 3.0), revision=8)
            await eventually(lambda: agent.configuration.snapshot.head.revision == 8)
            with pytest.raises(Refused) as caught:
                await agent.admit_call("payments")
            assert caught.value.decision.reason is Reason.FORCED_OPEN
            # Confirmed with a beat, and let go of by itself although no server can be asked any more.
            await eventually(lambda: gateway.beats[-1].breakers[0].override is OverrideMode.FORCED_OPEN)
            gateway.delay_s = 5.0
            await eventually(lambda: agent.views()[0].override is None)
            await agent.admit_call("payments")
