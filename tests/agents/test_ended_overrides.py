"""An override that was ended in Redis while no newer configuration could be made."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract import keys
from fuseboard.contract.words import BreakerState, Mode, OverrideMode, Reason
from fuseboard.errors import Refused
from tests.agents.servers import POLICY, Server, configured, give, running
from tests.agents.test_local_breaker import held_open
from tests.waiting import eventually

OVERRIDE = keys.override("production", "payments")


@pytest.fixture
async def server(limits: redis.Redis, redis_url: str) -> AsyncIterator[Server]:
    """Its document says that payments is held since revision 8."""
    async with running(redis_url, configuration=configured(held_open(POLICY, 600), revision=8)) as server:
        await eventually(lambda: server.admission.mode is Mode.SHARED)
        await refused(server)
        yield server


async def refused(server: Server) -> None:
    with pytest.raises(Refused) as caught:
        await server.admission.admit_call("payments")
    assert caught.value.decision.reason is Reason.FORCED_OPEN


async def admitted(server: Server) -> None:
    """Wait: an empty Redis may be one that lost its data, and grants nothing for one window."""

    async def is_admitted() -> bool:
        try:
            await server.admission.admit_call("payments")
        except Refused as refusal:
            if refusal.decision.reason is Reason.FORCED_OPEN:
                raise
            return False
        return True

    await eventually(is_admitted, "an admission", every_s=0.05)


async def looked(server: Server) -> None:
    """Have it look at Redis, as after a message."""
    server.admission.breaker_opened(b"payments 1 0")
    await eventually(lambda: not server.admission._ended_overrides._wake.is_set())
    await asyncio.sleep(0.05)  # the answer of a Redis that is here


def held(server: Server) -> OverrideMode | None:
    return server.admission.breaker_views()[0].override


async def test_a_reset_through_redis_alone_ends_an_override(server: Server, limits: redis.Redis):
    limits.set(OVERRIDE, "none 0 9")
    server.admission.breaker_opened(b"payments 1 0")
    await eventually(lambda: held(server) is None)
    await admitted(server)
    # The same document from any source changes nothing. A later override does.
    give(server.configuration, held_open(POLICY, 600), revision=8)
    assert held(server) is None
    later = held_open(POLICY, 600)
    give(server.configuration, later, revision=9)
    assert held(server) is None
    await admitted(server)


@pytest.mark.parametrize("text", [None, "none 0 8", "none 0 7", "none 0", "none 0 9 9", "closed 0 9", "\xff"])
async def test_an_override_that_redis_lost_or_contradicts_stays(
    server: Server, limits: redis.Redis, text: str | None
):
    if text is None:
        limits.flushall()
    else:
        limits.set(OVERRIDE, text)
    await looked(server)
    assert held(server) is OverrideMode.FORCED_OPEN
    await refused(server)


async def test_an_override_through_redis_alone_is_reported_and_survives_redis(valkey: Valkey):
    async with running(valkey.url) as server:
        with redis.Redis.from_url(valkey.url, decode_responses=True) as limits:
            ends_us = int((time.time() + 600) * 1_000_000)
            limits.set(OVERRIDE, f"forced_open {ends_us} 9")
            limits.set(keys.breaker("production", "payments"), f"open 99 {ends_us} 5 0 0 forced")
            server.admission.breaker_opened(b"payments 99 0")
            await refused(server)
        view = server.admission.breaker_views()[0]
        assert (view.state, view.generation) == (BreakerState.OPEN, 99)
        assert view.remaining_ms > 500_000
        valkey.stop()
        await eventually(lambda: server.admission.mode is Mode.LOCAL)
        with pytest.raises(Refused) as caught:
            await server.admission.admit_call("payments")
        assert caught.value.decision.reason is Reason.BREAKER_OPEN


async def test_a_lost_message_costs_time_only(
    server: Server, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fuseboard.breaker.ended_overrides.LOOK_S", 0.05)
    await looked(server)
    limits.set(OVERRIDE, "none 0 9")
    await eventually(lambda: held(server) is None)
