"""Fleet leases of hot keys: charged in advance, spent from memory, and never more than the limit."""

import asyncio
import struct
from time import monotonic

import msgspec
import pytest
import redis

from fuseboard.batching.fleet_leases import RENEW_GRID
from fuseboard.configuration.watch import Watch
from fuseboard.contract.breaker_state import parse_breaker
from fuseboard.contract.limits import lease_length_ms
from fuseboard.contract.policy import Limit, Policy
from fuseboard.contract.words import Algorithm, BreakerState, FailurePolicy, Outcome, Reason
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from tests.agents.servers import BREAKER, PATIENT, POLICY, Server, configured, give, running
from tests.waiting import eventually

HOT = Limit(name="requests", limit=600_000, window_ms=60_000, burst=10_000, lease_above=100)
#: Fails closed: a deadline this machine misses must not let calls through uncounted.
STRICT = Limit(
    name="calls",
    limit=400,
    window_ms=2000,
    algorithm=Algorithm.SLIDING_WINDOW,
    lease_above=20,
    failure_policy=FailurePolicy.FAIL_CLOSED,
)


def with_quota(quota: Limit) -> Policy:
    tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(quota,))
    return msgspec.structs.replace(POLICY, tiers=(tier, POLICY.tiers[1]), tuning=PATIENT)


def with_vendor_limit(limit: Limit) -> Policy:
    payments = msgspec.structs.replace(POLICY.dependencies[0], vendor_limits=(limit,))
    return msgspec.structs.replace(POLICY, dependencies=(payments,), tuning=PATIENT)


#: Only a key that is asked for often gets a lease.
OFTEN_S = 0.001


async def heat_up(server: Server, tenant: str = "acme") -> None:
    """Ask until calls are answered from a lease."""
    await eventually(
        lambda: server.admission.admit_request(tenant),
        "a lease",
        every_s=OFTEN_S,
        accept=lambda decision: decision.leased,
    )


def spent_of(limits: redis.Redis, quota: Limit = HOT) -> float:
    """Calls the bucket in Redis holds as spent, now."""
    (key,) = limits.keys("fb1:production:{t:*")
    us, fraction, limit, window = struct.unpack(">dddd", limits.get(key))
    seconds, micros = limits.time()
    ahead = us + fraction / limit - (seconds * 1_000_000 + micros)
    return max(0.0, ahead * limit / window)


async def test_a_hot_tenant_costs_redis_next_to_nothing(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(with_quota(HOT))) as server:
        await heat_up(server)
        limits.config_resetstat()
        decisions = 0
        began = monotonic()
        while monotonic() - began < 1.0 or decisions < 400:
            assert (await server.admission.admit_request("acme")).allowed
            decisions += 1
            await asyncio.sleep(OFTEN_S)
        asked = limits.info("commandstats")["cmdstat_evalsha"]["calls"]
        # As often as leases end, however many calls there are.
        assert asked < 10 + 10 * (monotonic() - began)


async def test_a_leased_decision_is_there_without_waiting(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(with_quota(HOT))) as server:
        assert server.admission.spend_by_name("acme") is None
        await heat_up(server)
        decision = server.admission.spend_by_name("acme")
        assert decision is not None
        assert (decision.allowed, decision.leased, decision.revision) == (True, True, 7)
        assert server.admission.spend_by_name("somebody else") is None


async def test_every_leased_call_is_counted(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(with_quota(HOT))) as server:
        calls = 0
        began = monotonic()
        while monotonic() - began < 0.8 or calls < 400:
            await server.admission.admit_request("acme")
            calls += 1
            await asyncio.sleep(OFTEN_S)
    assert server.counters.requests == calls
    (acme,) = server.counters.wire().tenants
    (rule,) = acme.rules
    assert 0 < rule.leased < calls, "the first calls ask Redis"


async def test_what_is_unused_goes_back(limits: redis.Redis, redis_url: str):
    slow_refill = msgspec.structs.replace(HOT, limit=6_000, window_ms=600_000, burst=5_000)
    async with running(redis_url, configuration=configured(with_quota(slow_refill))) as server:
        await heat_up(server)
        calls = server.counters.requests + 1  # and the one that was leased
        assert spent_of(limits) > calls + 10  # the lease is charged
        await eventually(lambda: spent_of(limits) <= calls + 1)


async def test_stopping_gives_it_back_at_once(limits: redis.Redis, redis_url: str):
    slow_refill = msgspec.structs.replace(HOT, limit=6_000, window_ms=600_000, burst=5_000)
    async with running(redis_url, configuration=configured(with_quota(slow_refill))) as server:
        await heat_up(server)
        before = spent_of(limits)
    assert spent_of(limits) < before - 10


async def test_leases_of_many_tenants_are_renewed_together(redis_url: str):
    """Otherwise a pod with many busy tenants asks Redis about each of them alone."""
    async with running(redis_url, configuration=configured(with_quota(HOT))) as server:

        async def begin(number: int) -> None:
            await asyncio.sleep(0.007 * number)
            await heat_up(server, f"tenant-{number}")

        await asyncio.gather(*map(begin, range(12)))
        renewals = [
            supply.timer.when() for supply in server.admission.leases._supplies if supply.timer is not None
        ]
        assert len(renewals) > 6
        first_s, length_s = min(renewals), lease_length_ms(HOT) / 1000
        # As many moments as fit in the time, however many leases.
        fitting = 1 + round((max(renewals) - first_s) / (length_s * RENEW_GRID))
        assert len({round(due - first_s, 3) for due in renewals}) <= fitting


async def test_a_changed_quota_ends_the_lease(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(with_quota(HOT))) as server:
        await heat_up(server)
        give(server.configuration, with_quota(msgspec.structs.replace(HOT, limit=0)), revision=8)
        assert server.admission.spend_by_name("acme") is None
        assert not (await server.admission.admit_request("acme")).allowed


async def test_a_server_holds_no_more_than_its_share(limits: redis.Redis, redis_url: str):
    small = msgspec.structs.replace(HOT, burst=1000)
    async with running(redis_url, configuration=configured(with_quota(small), live_servers=10)) as server:
        await heat_up(server)
        held = 1
        while server.admission.spend_by_name("acme") is not None:
            held += 1
        assert held <= 20  # a tenth of a fifth of the burst


async def test_a_breaker_that_opens_ends_the_leases_on_its_calls(limits: redis.Redis, redis_url: str):
    many = msgspec.structs.replace(STRICT, limit=100_000)
    async with running(redis_url, configuration=configured(with_vendor_limit(many))) as server:

        async def leased() -> Permit | None:
            permit = await server.admission.admit_call("payments")
            if permit.decision.leased:
                return permit
            server.admission.report(permit, Outcome.OK)
            return None

        permit = await eventually(leased, "a leased call", within_s=60, every_s=OFTEN_S)
        assert permit is not None
        await fail_until_refused(server, permit)
        stored = "fb1:production:{d:payments}:breaker"
        await eventually(lambda: parse_breaker(limits.get(stored).decode()).state is BreakerState.OPEN)
        await eventually(lambda: all(demand.supply.lease is None for demand in server_demands(server)))


async def test_a_breaker_that_another_server_opened_ends_them_at_once(limits: redis.Redis, redis_url: str):
    """By push: long before the lease would have ended, or anything been asked."""
    many = msgspec.structs.replace(STRICT, limit=100_000)
    ours = configured(with_vendor_limit(many))
    other = running(redis_url, name="web-2", configuration=configured(with_vendor_limit(many)))
    async with running(redis_url, configuration=ours) as server, other as failing:
        watch = Watch(url=redis_url, configuration=ours, breaker_opened=server.admission.breaker_opened)
        watch.start()
        try:
            await asyncio.wait_for(watch.looked.wait(), 30)
            await eventually(
                lambda: server.admission.admit_call("payments"),
                "a leased call",
                within_s=60,
                every_s=OFTEN_S,
                accept=lambda permit: permit.decision.leased,
            )
            asked = server.counters.store_answers
            await fail_until_refused(failing, await failing.admission.admit_call("payments"))
            await eventually(lambda: all(demand.supply.lease is None for demand in server_demands(server)))
            with pytest.raises(Refused) as refused:
                await server.admission.admit_call("payments")
            assert refused.value.decision.reason is Reason.BREAKER_OPEN
            assert server.counters.store_answers - asked <= 1  # a renewal that was under way
        finally:
            await watch.stop()


async def test_news_of_a_breaker_that_cannot_be_read_or_are_old_change_nothing(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url, configuration=configured(with_vendor_limit(STRICT))) as server:
        generation = (await server.admission.admit_call("payments")).generation
        for news in (
            b"",
            b"payments",
            b"payments x y",
            b"\xff 1 2",
            b"payments 1 99",
            b"nobody %d 9" % 2**62,
        ):
            server.admission.breaker_opened(news)
        (breaker,) = server.admission.calls.breakers.values()
        assert (breaker.state, breaker.generation) == (BreakerState.CLOSED, generation)
        server.admission.breaker_opened(b"payments %d %d" % (generation + 1, 10**18))
        assert breaker.state is BreakerState.OPEN
        assert breaker.until - monotonic() < BREAKER.open_max_ms * 1.1 / 1000 + 1


async def fail_until_refused(server: Server, permit: Permit) -> None:
    for _ in range(6):
        server.admission.report(permit, Outcome.FAILURE)
        try:
            permit = await server.admission.admit_call("payments")
        except Refused:
            return
    pytest.fail("six failures did not open it")


def server_demands(server: Server):
    (breaker,) = server.admission.calls.breakers.values()
    return [demand for demand, _ in breaker._demands.values() if demand.supply is not None]


async def test_no_window_holds_more_than_a_strict_limit_with_many_servers(
    limits: redis.Redis, redis_url: str
):
    """Calls are timed when they are made, which is later than they were charged."""
    policy = with_vendor_limit(STRICT)
    made: list[float] = []
    leased = 0

    async def work(server: Server, until_when: float) -> None:
        nonlocal leased
        while monotonic() < until_when:
            try:
                permit = await server.admission.admit_call("payments", wait_s=0.1)
            except Exception:  # refused for longer than that
                await asyncio.sleep(0.002)
                continue
            made.append(monotonic())
            leased += permit.decision.leased
            server.admission.report(permit, Outcome.OK)
            await asyncio.sleep(0.001)

    async with (
        running(redis_url, "web-1", configured(policy, live_servers=3)) as one,
        running(redis_url, "web-2", configured(policy, live_servers=3)) as two,
        running(redis_url, "web-3", configured(policy, live_servers=3)) as three,
    ):
        end = monotonic() + 5
        await asyncio.gather(*(work(server, end) for server in (one, two, three) for _ in range(4)))
    made.sort()
    worst = max(sum(1 for moment in made[first:] if moment < made[first] + 2.0) for first in range(len(made)))
    assert worst <= STRICT.limit
    assert leased
    assert len(made) >= STRICT.limit
