"""Hot-key mode begins at 5,000 calls per second of the fleet, and ends after 60 s below 40 % of that."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from random import Random
from statistics import median
from typing import Any, cast

import msgspec
import pytest
import redis

from fuseboard.batching import fleet_leases
from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.batching.fleet_leases import COOL_AFTER_S, DemandSupply, Lease, Leases
from fuseboard.batching.redis_question import ADMITS, Domain, RedisAnswer, Reply
from fuseboard.contract.policy import Limit, Policy, Tier
from tests.agents.servers import PATIENT, Server, configured, running

#: 5,000 calls per second over 20 pods.
THRESHOLD = 250.0

#: Pods that run here, of a fleet in which a pod is hot from 25 calls per second on. A machine that is a tenth
#: as fast as usual makes that many.
PLAYED, FLEET = 4, 200

BUSY = Policy(
    environment="production",
    default_tier="free",
    tiers=(
        Tier(
            name="free", quotas=(Limit(name="requests", limit=1_000_000, window_ms=1_000, burst=1_000_000),)
        ),
    ),
    tuning=msgspec.structs.replace(PATIENT, store_deadline_us=1_000_000),
)


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(fleet_leases, "monotonic", clock)
    return clock


@pytest.fixture
def measure(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], bool]:
    """Take one measurement of the rate; whether the key is hot then."""
    given: Any = None
    leases = Leases(batcher=given, settlements=given, live_servers=lambda: 20, usable=lambda: True)
    limit = Limit(name="requests", limit=1_000_000, window_ms=1_000, burst=1_000)
    demand = Demand((LimitRef(limit, "requests"),), (1,), 0)
    supply = DemandSupply(cast(Domain, given), demand, given, given)

    def measured(rate: float) -> bool:
        supply.rate = 0.0  # without smoothing
        leases._measure(supply, rate)
        return clock.now - supply.hot_at < COOL_AFTER_S

    return measured


def run(clock: Clock, measure: Callable[[float], bool], rate: float, seconds: float) -> bool:
    hot = False
    for _ in range(int(seconds * 2)):
        hot = measure(rate)
        clock.now += 0.5
    return hot


def test_a_rate_between_40_percent_and_the_threshold_keeps_a_key_hot_and_makes_none(
    clock: Clock, measure: Callable[[float], bool]
) -> None:
    assert not run(clock, measure, 249, 200)
    assert measure(250)
    assert run(clock, measure, 100, 200)


def test_below_40_percent_it_ends_after_60_seconds(clock: Clock, measure: Callable[[float], bool]) -> None:
    assert measure(250)
    assert run(clock, measure, 99, 59.5)
    assert not run(clock, measure, 99, 2)
    assert not run(clock, measure, 200, 5)
    assert measure(250)


def test_a_call_that_a_spent_lease_sends_to_redis_does_not_end_leases(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While a key is leased, no call is asked: its silence there says nothing about its rate."""
    given: Any = None
    leases = Leases(batcher=given, settlements=given, live_servers=lambda: 20, usable=lambda: False)
    supply = DemandSupply(cast(Domain, given), Demand((), (), 0), given, given)
    monkeypatch.setattr(leases, "_threshold", lambda demand: THRESHOLD)
    while supply.rate < 490 or supply.asked:
        clock.now += 0.002
        leases.note(supply)
    for _ in range(20):
        clock.now += 0.6
        leases._measure(supply, 500.0, sustained=500.0)
    leases.note(supply)
    assert supply.rate >= 250


async def test_a_rate_that_falls_is_measured_once_at_the_renewal_of_a_lease(clock: Clock) -> None:
    given: Any = None
    leases = Leases(batcher=given, settlements=given, live_servers=lambda: 1, usable=lambda: True)
    limit = Limit(name="requests", limit=1_000_000, window_ms=1_000, burst=1_000)
    supply = DemandSupply(
        cast(Domain, given), Demand((LimitRef(limit, "requests"),), (1,), 0), given, lambda *_: None
    )
    answer = RedisAnswer(Reply(ADMITS, 0, 0, 0, "", []), granted=True, left=())
    answer.calls, supply.rate = 600, 1_000.0
    supply.lease = lease = Lease(supply, answer, clock.now, 1.0, given)
    clock.now += 0.5
    lease.tokens -= 100
    leases._at_renewal_time(supply, lease)
    # 200 calls per second are half of the way to 600, not three quarters to 400.
    assert supply.rate == 600
    assert supply.timer is not None
    supply.timer.cancel()


def test_a_model_agrees(clock: Clock, measure: Callable[[float], bool]) -> None:
    """The model remembers every rate since the start, and decides from the definition."""
    random = Random(7)
    hot, seen_above_at = False, float("-inf")
    for _ in range(5_000):
        rate = random.choice((0, 50, 99.9, 100, 180, 249.9, 250, 5_000))
        clock.now += random.choice((0.25, 1, 20, 59.9, 60.1))
        if hot and clock.now - seen_above_at >= 60:
            hot = False
        if rate >= THRESHOLD or (hot and rate >= 0.4 * THRESHOLD):
            hot, seen_above_at = True, clock.now
        assert measure(rate) == hot


async def test_a_hot_tenant_asks_redis_a_tenth_as_often(limits: redis.Redis, redis_url: str):
    async with AsyncExitStack() as stack:
        servers = [
            await stack.enter_async_context(
                running(redis_url, f"web-{number}", configured(BUSY, live_servers=FLEET))
            )
            for number in range(PLAYED)
        ]
        # One call after the other asks once for each call if nothing is leased. Leases begin when half a
        # second was measured, after more or fewer calls by the speed of the machine.
        for _ in range(20):
            if await questions_per_call(limits, servers) <= 0.1:
                break
        assert median([await questions_per_call(limits, servers) for _ in range(5)]) <= 0.1


async def questions_per_call(limits: redis.Redis, servers: list[Server]) -> float:
    """Each pod makes 1,000 calls, one after the other."""
    limits.config_resetstat()

    async def one_second(server: Server) -> None:
        for _ in range(1_000):
            assert (await server.admission.admit_request("acme")).allowed
            await asyncio.sleep(0)

    await asyncio.gather(*(one_second(server) for server in servers))
    asked: int = limits.info("commandstats")["cmdstat_evalsha"]["calls"]
    return asked / (1_000 * len(servers))
