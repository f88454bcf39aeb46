"""Limits of all callers: every request to a service spends from one counter."""

import asyncio

import msgspec
import redis

from fuseboard.contract.policy import Limit, TenantRecord
from fuseboard.contract.words import Algorithm, Dimension, FailurePolicy, Mode, Reason
from fuseboard.decision import Decision
from fuseboard.subject import Subject
from tests.agents.redis_topologies import Cluster
from tests.agents.servers import PATIENT, POLICY, REQUESTS, Server, configured, give, running
from tests.waiting import eventually

EVERYONE = Limit(name="everyone", limit=10, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW, service="*")
LOGINS = Limit(name="logins", limit=5, window_ms=60_000, burst=5, per=(Dimension.IP,))
LIMITED = msgspec.structs.replace(
    POLICY, service_limits=(EVERYONE,), subject_limits=(LOGINS,), tuning=PATIENT
)


def limited(*limits: Limit) -> configured:
    return configured(msgspec.structs.replace(LIMITED, service_limits=limits))


def address(number: int) -> Subject:
    return Subject(ip=f"192.0.2.{number}")


async def ask(server: Server, *callers: str | Subject) -> list[Decision]:
    admission = server.admission
    return await asyncio.gather(
        *[
            admission.admit_request(caller)
            if isinstance(caller, str)
            else admission.admit_request("", subject=caller)
            for caller in callers
        ]
    )


def allowed(decisions: list[Decision]) -> int:
    return sum(decision.allowed for decision in decisions)


async def test_tenants_and_addresses_spend_from_one_counter(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(LIMITED)) as server:
        first = await ask(server, *[f"tenant-{number}" for number in range(6)], "big")
        second = await ask(server, *[address(number) for number in range(6)])
        assert (allowed(first), allowed(second)) == (7, 3)
        refused = [decision for decision in second if not decision.allowed]
        assert {(decision.rule, decision.reason) for decision in refused} == {("*/everyone", Reason.QUOTA)}
        # The refused addresses spent nothing of their own limit.
        assert len(limits.keys("fb1:production:{i:*")) == 3 + 1


async def test_a_tenant_and_all_callers_are_one_question(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(LIMITED)) as server:
        before = server.counters.store_answers
        decisions = await ask(server, *[f"tenant-{number}" for number in range(20)])
        assert server.counters.store_answers == before + 1
    assert allowed(decisions) == EVERYONE.limit


async def test_what_all_callers_spent_costs_a_tenant_nothing(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(LIMITED)) as server:
        await ask(server, *["big"] * 10)
        assert allowed(await ask(server, *["acme"] * 5)) == 0
        give(server.configuration, POLICY, revision=8)
        assert allowed(await ask(server, *["acme"] * 30)) == REQUESTS.burst


async def test_only_pods_of_the_service_count(limits: redis.Redis, redis_url: str):
    configuration = limited(msgspec.structs.replace(EVERYONE, service="web"))
    async with (
        running(redis_url, configuration=configuration, service="web") as web,
        running(redis_url, "jobs-1", configuration=configuration, service="jobs") as jobs,
    ):
        assert allowed(await ask(jobs, *["big"] * 15)) == 15
        assert allowed(await ask(web, *["big"] * 15)) == EVERYONE.limit


async def test_endpoints_choose_the_requests_that_count(limits: redis.Redis, redis_url: str):
    configuration = limited(msgspec.structs.replace(EVERYONE, endpoints=("POST /*",)))
    async with running(redis_url, configuration=configuration) as server:
        admission = server.admission
        posts = [admission.admit_request("big", subject=Subject(endpoint="POST /x")) for _ in range(15)]
        reads = [admission.admit_request("big", subject=Subject(endpoint="GET /x")) for _ in range(15)]
        assert allowed(await asyncio.gather(*posts)) == EVERYONE.limit
        assert allowed(await asyncio.gather(*reads)) == 15


async def test_a_shadow_counts_what_it_would_have_refused(limits: redis.Redis, redis_url: str):
    async with running(
        redis_url, configuration=limited(msgspec.structs.replace(EVERYONE, shadow=True))
    ) as server:
        assert allowed(await ask(server, *[f"tenant-{number}" for number in range(15)])) == 15
        (rule,) = [rule for rule in server.counters.wire().rules if rule.rule == "*/everyone"]
    assert (rule.asked, rule.refused, rule.shadow) == (15, 0, 5)


async def test_refusals_are_counted_for_the_rule_and_not_below_tenants(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(LIMITED)) as server:
        await ask(server, *["acme"] * 8)
        await ask(server, *[address(number) for number in range(6)])
        wire = server.counters.wire()
    (rule,) = [rule for rule in wire.rules if rule.rule == "*/everyone"]
    assert (rule.asked, rule.refused) == (14, 4)
    (acme,) = [tenant for tenant in wire.tenants if tenant.tenant == "acme"]
    assert [rule.rule for rule in acme.rules] == ["requests"]
    assert wire.requests == 14


async def test_without_redis_each_pod_has_its_part():
    limit = msgspec.structs.replace(EVERYONE, limit=20, failure_policy=FailurePolicy.LOCAL_SHARE)
    policy = msgspec.structs.replace(LIMITED, service_limits=(limit,), subject_limits=())
    configuration = configured(policy, live_servers=4)
    async with running("redis://127.0.0.1:1", configuration=configuration, connected=False) as server:
        assert server.admission.mode is Mode.LOCAL
        decisions = await ask(server, *[f"tenant-{number}" for number in range(6)], *map(address, range(6)))
    assert allowed(decisions) == 5


async def test_a_hot_tenant_leases_from_the_limit_of_all_callers_too(limits: redis.Redis, redis_url: str):
    bucket = Limit(name="everyone", limit=100_000, window_ms=60_000, burst=60, lease_above=1, service="*")
    tenant = msgspec.structs.replace(REQUESTS, limit=100_000, burst=100_000, lease_above=1)
    tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(tenant,))
    policy = msgspec.structs.replace(LIMITED, tiers=(tier, POLICY.tiers[1]), service_limits=(bucket,))
    async with running(redis_url, configuration=configured(policy)) as server:

        async def leased() -> bool:
            return (await server.admission.admit_request("acme")).leased

        await eventually(leased)
        passed = allowed(await ask(server, *["big"] * 200))
    # 1,667 calls a second refill it meanwhile; without its part in the lease, 200 would pass at once.
    assert passed < 200


class TestOnACluster:
    async def test_both_must_allow_and_no_refusal_spends(self, cluster: Cluster):
        cluster.flush()
        quota = msgspec.structs.replace(REQUESTS, limit=4, algorithm=Algorithm.SLIDING_WINDOW, burst=1)
        tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(quota,))
        slow = msgspec.structs.replace(PATIENT, store_deadline_us=500_000)
        policy = msgspec.structs.replace(LIMITED, tiers=(tier, POLICY.tiers[1]), tuning=slow)
        configuration = configured(policy, tenants={"acme": TenantRecord(tier="free")})
        async with running(cluster.url, configuration=configuration) as server:
            # Six calls that the tenant's quota refuses must not stay spent for all callers.
            assert allowed(await ask(server, *["acme"] * 10)) == 4

            passed = 0

            async def rest() -> bool:
                nonlocal passed
                passed += allowed(await ask(server, address(passed)))
                return passed == EVERYONE.limit - 4

            await eventually(rest)
            others = await ask(server, *[address(number) for number in range(20, 40)])
            assert {(decision.allowed, decision.rule) for decision in others} == {(False, "*/everyone")}
            (refused,) = await ask(server, "another")
            assert (refused.rule, refused.tenant) == ("*/everyone", "another")
            wire = server.counters.wire()
        (rule,) = [rule for rule in wire.rules if rule.rule == "*/everyone"]
        assert rule.refused >= 14
