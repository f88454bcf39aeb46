"""Different calls in one batch spend from the same counters."""

import asyncio
from functools import partial

import msgspec
import redis

from fuseboard.contract.policy import Dependency, Limit
from fuseboard.contract.words import Algorithm, Dimension, Outcome
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.subject import Subject
from tests.agents.servers import BREAKER, POLICY, REQUESTS, configured, running
from tests.waiting import eventually

TEN = Limit(name="calls", limit=10, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
STRICT = msgspec.structs.replace(
    POLICY, dependencies=(Dependency(name="payments", vendor_limits=(TEN,), breaker=BREAKER),)
)


async def test_callers_of_many_endpoints_share_the_tenants_quota(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        asked = [Subject(endpoint=f"GET /{number}") for number in range(60)]
        decisions = await asyncio.gather(
            *[server.admission.admit_request("acme", subject=subject) for subject in asked]
        )
    assert sum(decision.allowed for decision in decisions) == REQUESTS.burst


async def test_calls_of_different_costs_share_it_too(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        costs = [1, 2, 3] * 20
        decisions = await asyncio.gather(*[server.admission.admit_request("acme", cost) for cost in costs])
    spent = sum(cost for cost, decision in zip(costs, decisions, strict=True) if decision.allowed)
    assert REQUESTS.burst - 3 < spent <= REQUESTS.burst


async def test_tenants_share_the_vendors_limit(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(STRICT)) as server:
        calls = [server.admission.admit_call("payments", tenant=f"tenant-{number}") for number in range(40)]
        permits = await asyncio.gather(*calls, return_exceptions=True)
    refused = [permit for permit in permits if isinstance(permit, Refused)]
    assert len(permits) - len(refused) == TEN.limit


async def test_requests_of_many_tenants_in_one_tick_are_one_question(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        calls = [server.admission.admit_request(tenant) for tenant in ("acme", "big", "acme", "late-payer")]
        before = server.counters.store_answers
        decisions = await asyncio.gather(*calls)
        assert [decision.allowed for decision in decisions] == [True, True, True, False]
        more = [server.admission.admit_request(f"nobody-{number}") for number in range(40)]
        assert all(decision.allowed for decision in await asyncio.gather(*more))
        assert server.counters.store_answers == before + 2
    assert len(limits.keys("fb1:production:{t:*")) == 41  # "big" has no quota, "late-payer" is suspended


async def test_a_scarce_limit_is_shared_by_those_who_want_it_not_by_the_whole_tick(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url) as server:
        greedy = [server.admission.admit_request("acme") for _ in range(60)]
        others = [server.admission.admit_request(f"nobody-{number}") for number in range(20)]
        decisions = await asyncio.gather(*greedy, *others)
    assert sum(decision.allowed for decision in decisions[:60]) == REQUESTS.burst
    assert all(decision.allowed for decision in decisions[60:])


async def test_what_each_rule_bound_refused_and_would_have_refused_is_counted(
    limits: redis.Redis, redis_url: str
):
    trial = msgspec.structs.replace(REQUESTS, name="trial", limit=1, burst=3, shadow=True)
    some = msgspec.structs.replace(REQUESTS, name="some", limit=1_000, burst=1_000, endpoints=("GET /1*",))
    tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(REQUESTS, some, trial))
    rules = msgspec.structs.replace(POLICY, tiers=(tier, POLICY.tiers[1]))
    async with running(redis_url, configuration=configured(rules)) as server:
        asked = [Subject(endpoint=f"GET /{number}") for number in range(20)]
        calls = [server.admission.admit_request("acme", subject=subject) for subject in asked]
        allowed = sum(decision.allowed for decision in await asyncio.gather(*calls))
        [acme] = server.counters.wire().tenants
    counted = {rule.rule: rule for rule in acme.rules}
    assert (counted["requests"].asked, counted["requests"].refused) == (20, 20 - allowed)
    assert (counted["some"].asked, counted["some"].refused) == (11, 0)
    assert (counted["trial"].asked, counted["trial"].refused) == (20, 0)
    assert counted["trial"].shadow == allowed - 3
    assert {rule.rule: rule.shadow for rule in server.counters.wire().rules}["trial"] == allowed - 3


async def test_a_call_that_spent_the_tenants_quotas_frees_their_slots(limits: redis.Redis, redis_url: str):
    one = Limit(name="at-once", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
    tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(one,))
    rules = msgspec.structs.replace(POLICY, tiers=(tier, POLICY.tiers[1]))
    async with running(redis_url, configuration=configured(rules)) as server:

        async def admitted() -> Permit | None:
            try:
                return await server.admission.admit_call("payments", tenant="acme", spend_quota=True)
            except Refused:
                return None  # the slot is on its way back

        for _ in range(3):
            permit = await eventually(admitted, "a free slot", every_s=0.01)
            assert permit is not None
            assert len(permit.decision.charges) == 2
            server.admission.report(permit, Outcome.OK)


async def test_a_caller_cancelled_between_two_domains_spent_in_neither(limits: redis.Redis, redis_url: str):
    by_ip = Limit(name="by-ip", limit=1, window_ms=3_600_000, per=(Dimension.IP,))
    by_user = Limit(name="by-user", limit=1, window_ms=3_600_000, per=(Dimension.USER,))
    rules = msgspec.structs.replace(POLICY, subject_limits=(by_ip, by_user))
    callers = [Subject(ip=f"192.0.2.{number}", user=f"user-{number}") for number in range(100)]
    async with running(redis_url, configuration=configured(rules)) as server:
        for ticks, caller in enumerate(callers):
            task = asyncio.create_task(server.admission.admit_request("", subject=caller))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            (decision,) = await asyncio.gather(task, return_exceptions=True)
            if not isinstance(decision, BaseException):
                server.admission.give_back(decision)

        for caller in callers:
            asked = partial(server.admission.admit_request, "", subject=caller)
            await eventually(asked, accept=lambda decision: decision.allowed)
