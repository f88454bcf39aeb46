"""Outcomes of calls that an earlier state of a breaker admitted change nothing."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import BreakerPolicy, Policy
from fuseboard.contract.words import BreakerState, Mode, Outcome
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from tests.agents.servers import POLICY, Server, configured, running
from tests.waiting import eventually

pytestmark = pytest.mark.both_loops

QUICK = BreakerPolicy(
    consecutive_failures=3, open_ms=100, open_max_ms=100, probes=2, successes_to_close=2, minimum_servers=1
)


def with_breaker(breaker: BreakerPolicy) -> Policy:
    payments = msgspec.structs.replace(POLICY.dependencies[0], breaker=breaker)
    return msgspec.structs.replace(POLICY, dependencies=(payments,))


async def permits(server: Server, calls: int) -> list[Permit]:
    return [await server.admission.admit_call("payments") for _ in range(calls)]


async def admitted(server: Server) -> Permit:
    """A permit, once there is one."""

    async def attempt() -> Permit | None:
        try:
            return await server.admission.admit_call("payments")
        except Refused:
            return None

    permit = await eventually(attempt)
    assert permit is not None
    return permit


def report(server: Server, given: list[Permit], outcome: Outcome) -> None:
    for permit in given:
        server.admission.report(permit, outcome)


def state(server: Server) -> BreakerState:
    return server.admission.breaker_views()[0].state


async def recover(server: Server) -> None:
    """Two good probes, one after the other."""
    while state(server) is not BreakerState.CLOSED:
        report(server, [await admitted(server)], Outcome.OK)
        server.admission.reports.flush()
        await eventually(lambda: not server.admission.calls.breakers["payments"].scheduled)


@asynccontextmanager
async def a_bad_pod_beside_a_good_one(redis_url: str) -> AsyncIterator[Server]:
    """The fleet's breaker needs failures of two pods to open. So only the own breaker of this pod opens."""
    alone = with_breaker(msgspec.structs.replace(QUICK, minimum_servers=2))
    async with (
        running(redis_url, "web-1", configured(alone)) as good,
        running(redis_url, "web-2", configured(alone)) as bad,
    ):
        report(good, await permits(good, 3), Outcome.OK)
        good.admission.reports.flush()
        yield bad


@pytest.mark.parametrize("late", [Outcome.FAILURE, Outcome.SLOW])
async def test_calls_from_before_a_trip_trip_nothing_after_the_recovery(
    limits: redis.Redis, redis_url: str, late: Outcome
):
    slow = msgspec.structs.replace(QUICK, slow_percent=1, minimum_calls=1)
    async with running(redis_url, configuration=configured(with_breaker(slow))) as server:
        held = await permits(server, 3)
        report(server, await permits(server, 3), Outcome.FAILURE)
        await eventually(lambda: state(server) is BreakerState.OPEN)
        await recover(server)

        report(server, held, late)

        assert server.admission.calls.breakers["payments"].local.state is BreakerState.CLOSED
        await server.admission.admit_call("payments")
        assert state(server) is BreakerState.CLOSED


async def test_calls_from_before_the_trip_of_a_pods_own_breaker_trip_nothing_after_its_recovery(
    limits: redis.Redis, redis_url: str
):
    async with a_bad_pod_beside_a_good_one(redis_url) as bad:
        held = await permits(bad, 3)
        report(bad, await permits(bad, 3), Outcome.FAILURE)
        local = bad.admission.calls.breakers["payments"].local
        assert local.state is BreakerState.OPEN
        for _ in range(2):
            report(bad, [await admitted(bad)], Outcome.OK)
        assert local.state is BreakerState.CLOSED

        report(bad, held, Outcome.FAILURE)

        assert local.state is BreakerState.CLOSED
        # The breaker still counts: what it admits now trips it again.
        report(bad, await permits(bad, 3), Outcome.FAILURE)
        assert local.state is BreakerState.OPEN


async def test_a_late_outcome_is_not_taken_for_a_probe(limits: redis.Redis, redis_url: str):
    async with a_bad_pod_beside_a_good_one(redis_url) as bad:
        held = await permits(bad, 4)
        report(bad, await permits(bad, 3), Outcome.FAILURE)
        local = bad.admission.calls.breakers["payments"].local
        probe = await admitted(bad)
        assert local.state is BreakerState.HALF_OPEN
        report(bad, held[:2], Outcome.OK)
        assert local.state is BreakerState.HALF_OPEN
        report(bad, held[2:], Outcome.FAILURE)
        assert local.state is BreakerState.HALF_OPEN
        report(bad, [probe], Outcome.FAILURE)
        assert local.state is BreakerState.OPEN


async def test_without_redis_calls_from_before_a_trip_trip_nothing_after_the_recovery(valkey: Valkey):
    async with running(valkey.url, configuration=configured(with_breaker(QUICK))) as server:
        valkey.stop()
        await eventually(lambda: server.admission.mode is Mode.LOCAL)
        held = await permits(server, 3)
        report(server, await permits(server, 3), Outcome.FAILURE)
        local = server.admission.calls.breakers["payments"].local
        assert local.state is BreakerState.OPEN
        for _ in range(2):
            report(server, [await admitted(server)], Outcome.OK)
        assert local.state is BreakerState.CLOSED
        report(server, held, Outcome.FAILURE)
        assert local.state is BreakerState.CLOSED
        report(server, await permits(server, 3), Outcome.FAILURE)
        assert local.state is BreakerState.OPEN


async def test_a_late_success_does_not_end_a_row_of_failures(limits: redis.Redis, redis_url: str):
    async with a_bad_pod_beside_a_good_one(redis_url) as bad:
        held = await permits(bad, 1)
        report(bad, await permits(bad, 3), Outcome.FAILURE)
        local = bad.admission.calls.breakers["payments"].local
        for _ in range(2):
            report(bad, [await admitted(bad)], Outcome.OK)
        assert local.state is BreakerState.CLOSED
        given = await permits(bad, 3)
        report(bad, given[:2], Outcome.FAILURE)
        report(bad, held, Outcome.OK)
        report(bad, given[2:], Outcome.FAILURE)
        assert local.state is BreakerState.OPEN
