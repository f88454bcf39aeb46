"""After a quiet window, one faulty pod does not open the breaker of the fleet."""

import asyncio
from math import inf
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from controlplane.embedded.valkey import Valkey
from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.breaker.pending_report import PendingReport
from fuseboard.contract import keys
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy
from fuseboard.contract.scripts import REPORT, Script
from fuseboard.contract.words import BreakerState, Mode, Outcome
from fuseboard.errors import Refused
from tests.agents.servers import PATIENT, POLICY, Server, configured, give, running
from tests.waiting import eventually

pytestmark = pytest.mark.both_loops

BREAKER = BreakerPolicy(consecutive_failures=3, minimum_servers=2, window_s=10, open_ms=60_000)
#: Batches are sent much later than a test takes.
BATCHED = msgspec.structs.replace(PATIENT, report_interval_ms=5_000)


def policy(breaker: BreakerPolicy = BREAKER) -> Policy:
    payments = msgspec.structs.replace(POLICY.dependencies[0], breaker=breaker)
    return msgspec.structs.replace(POLICY, dependencies=(payments,), tuning=BATCHED)


async def call(server: Server, outcome: Outcome) -> bool:
    try:
        permit = await server.admission.admit_call("payments")
    except Refused:
        return False
    server.admission.report(permit, outcome)
    return True


def breaker(server: Server) -> FleetBreaker:
    return server.admission.calls.breakers["payments"]


def fleet_state(limits: redis.Redis) -> str:
    text = limits.get(keys.breaker("production", "payments"))
    assert text is not None
    return text.decode().split(" ")[0]


async def one_good_and_one_bad(limits: redis.Redis, good: Server, bad: Server) -> None:
    for _ in range(3):
        assert await call(good, Outcome.OK)
    for _ in range(6):
        await call(bad, Outcome.FAILURE)
    # Everything is sent: the reports of the bad pod are urgent.
    await eventually(lambda: not breaker(bad).scheduled)
    assert breaker(bad).local.state is BreakerState.OPEN
    assert not await call(bad, Outcome.OK)
    assert fleet_state(limits) == "closed"
    assert await call(good, Outcome.OK)


async def test_only_the_bad_pod_refuses(limits: redis.Redis, redis_url: str):
    async with (
        running(redis_url, "web-1", configured(policy())) as bad,
        running(redis_url, "web-2", configured(policy())) as good,
    ):
        await one_good_and_one_bad(limits, good, bad)


async def test_only_the_bad_pod_refuses_after_a_quiet_window(limits: redis.Redis, redis_url: str):
    async with (
        running(redis_url, "web-1", configured(policy())) as bad,
        running(redis_url, "web-2", configured(policy())) as good,
    ):
        assert await call(good, Outcome.OK)
        # A window passes: Redis forgets the evidence, and the pod knows when it sent it.
        limits.delete(keys.evidence("production", "payments"), keys.outcomes("production", "payments"))
        generation, at = breaker(good)._last_report
        breaker(good)._last_report = (generation, at - BREAKER.window_s)
        await one_good_and_one_bad(limits, good, bad)


async def test_only_the_bad_pod_refuses_after_a_recovery(limits: redis.Redis, redis_url: str):
    """Every change of state forgets the outcomes of all pods."""
    quick = msgspec.structs.replace(BREAKER, open_ms=50, open_max_ms=50)
    async with (
        running(redis_url, "web-1", configured(policy(quick))) as bad,
        running(redis_url, "web-2", configured(policy(quick))) as good,
    ):
        for server in (good, bad):
            for _ in range(3):
                await call(server, Outcome.FAILURE)
        await eventually(lambda: fleet_state(limits) == "open")
        while fleet_state(limits) != "closed":
            await call(good, Outcome.OK)
            await call(bad, Outcome.OK)
            await asyncio.sleep(0.005)
        assert await eventually(lambda: call(bad, Outcome.OK))
        bad.admission.reports.flush()
        for server in (bad, good):  # what opens from now on stays open
            give(server.configuration, policy(), revision=8)
        await one_good_and_one_bad(limits, good, bad)


async def test_two_bad_pods_open_the_breaker_for_all(limits: redis.Redis, redis_url: str):
    async with (
        running(redis_url, "web-1", configured(policy())) as one,
        running(redis_url, "web-2", configured(policy())) as two,
    ):
        for server in (one, two):
            assert await call(server, Outcome.OK)
        for server in (one, two):
            for _ in range(2):
                assert await call(server, Outcome.FAILURE)
        await eventually(lambda: fleet_state(limits) == "open")


async def test_only_the_first_success_of_a_window_is_sent_at_once(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with running(redis_url, configuration=configured(policy())) as server:
        asked = 0
        run = server.admission.reports._store.run

        def counted(script: Script, *arguments: Any) -> None:
            nonlocal asked
            asked += script is REPORT
            run(script, *arguments)

        monkeypatch.setattr(server.admission.reports._store, "run", counted)
        for _ in range(50):
            assert await call(server, Outcome.OK)
        assert asked == 1


async def test_a_pod_without_redis_sends_nothing_at_once(valkey: Valkey):
    async with running(valkey.url, configuration=configured(policy())) as server:
        valkey.stop()
        await eventually(lambda: server.admission.mode is Mode.LOCAL)
        for _ in range(3):
            assert await call(server, Outcome.OK)
        assert breaker(server).scheduled


@given(
    pauses=st.lists(st.floats(0.0, 15.0), min_size=1, max_size=60),
    window_s=st.integers(1, 60),
    part=st.floats(0.001, 0.5),
)
def test_redis_always_knows_a_pod_whose_calls_succeed(pauses: list[float], window_s: int, part: float):
    """From a success until its batch is sent, an earlier outcome of the pod still counts."""
    interval_s = window_s * part
    breaker: Any = SimpleNamespace(
        _last_report=(-1, 0.0),
        generation=7,
        dependency=Dependency(name="payments", breaker=BreakerPolicy(window_s=window_s)),
    )
    now, batch_at = 1000.0, inf
    with patch("fuseboard.breaker.fleet_breaker.monotonic", lambda: now):
        for pause in pauses:
            due = now + pause
            if batch_at <= due:
                now, batch_at = batch_at, inf
                FleetBreaker.note_sent(breaker, 7, PendingReport(ok=1))
            now = due
            if FleetBreaker.needs_immediate_report(breaker, interval_s):
                FleetBreaker.note_sent(breaker, 7, PendingReport(ok=1))
                batch_at = inf
            elif batch_at == inf:
                batch_at = now + interval_s
            known_until = breaker._last_report[1] + window_s
            assert min(batch_at, now) <= known_until + 1e-6
            assert batch_at == inf or batch_at <= known_until + 1e-6
