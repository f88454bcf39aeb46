"""A user of a team of an organisation: one call is charged to all three, or to none."""

import asyncio

import msgspec
import pytest
import redis

from fuseboard.configuration.checked_config import CheckedConfig
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract import keys
from fuseboard.contract.limits import PolicyError
from fuseboard.contract.policy import ConfigHead, Limit, TenantRecord, Tier, decode_tenant
from fuseboard.contract.words import Algorithm, ConfigSource, Mode, Reason
from fuseboard.errors import Refused
from fuseboard.integrations.problem import limit_headers
from tests.agents.published import publish
from tests.agents.redis_topologies import Cluster
from tests.agents.servers import PATIENT, POLICY, configured, running
from tests.agents.test_configuration_watch import watched


def calls(limit: int, *, dependency: str = "", algorithm: Algorithm = Algorithm.SLIDING_WINDOW) -> Limit:
    return Limit(name="calls", limit=limit, window_ms=600_000, algorithm=algorithm, dependency=dependency)


RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free"), Tier(name="business", quotas=(calls(30),)), Tier(name="seat")),
    default_tier="free",
    tuning=PATIENT,
)
TENANTS = {
    "acme": TenantRecord(tier="business"),
    "acme-web": TenantRecord(tier="seat", quotas=(calls(20),), parents=("acme",)),
    "acme-ads": TenantRecord(tier="seat", quotas=(calls(20),), parents=("acme",)),
    "ann": TenantRecord(tier="seat", quotas=(calls(8),), parents=("acme", "acme-web")),
    "bob": TenantRecord(tier="seat", parents=("acme", "acme-web")),
}


def organised(**changed: TenantRecord) -> Configuration:
    return configured(RULES, tenants=TENANTS | changed)


async def allowed(server, tenant: str, times: int) -> int:
    decisions = await asyncio.gather(*[server.admission.admit_request(tenant) for _ in range(times)])
    return sum(decision.allowed for decision in decisions)


class TestRules:
    def test_the_nearest_parent_comes_first_and_says_whose_each_quota_is(self):
        rules = organised().snapshot.quotas_of("ann")
        assert rules.quotas == (calls(8),)
        assert [(quota.limit.name, quota.limit.limit) for quota in rules.inherited] == [
            ("acme-web/calls", 20),
            ("acme/calls", 30),
        ]
        assert (rules.root, rules.tier, rules.loaded) == ("acme", "seat", True)

    def test_who_belongs_to_one_parent_shares_the_same_limits(self):
        snapshot = organised().snapshot
        ann, bob = snapshot.quotas_of("ann").inherited, snapshot.quotas_of("bob").inherited
        assert all(one.limit is other.limit for one, other in zip(ann, bob, strict=True))

    def test_a_record_of_a_parent_that_changes_under_the_same_head_counts_at_once(self):
        configuration = organised()
        before = configuration.snapshot.quotas_of("ann")
        head = configuration.snapshot.head
        configuration.apply(
            CheckedConfig(
                head=head,
                source=ConfigSource.HTTP,
                policy=None,
                document=b"",
                tenants={"acme": TenantRecord(tier="business", quotas=(calls(5),))},
            )
        )
        after = configuration.snapshot.quotas_of("ann")
        assert [quota.limit.limit for quota in before.inherited] == [20, 30]
        assert [quota.limit.limit for quota in after.inherited] == [20, 5]

    def test_parents_that_were_not_looked_up_yet_are_wanted_with_their_child(self):
        configuration = Configuration(environment="production")
        configuration.want("ann")
        head = ConfigHead(epoch=1, revision=1, hash="")
        record = TENANTS["ann"]
        configuration.apply(
            CheckedConfig(
                head=head, source=ConfigSource.HTTP, policy=RULES, document=b"", tenants={"ann": record}
            )
        )
        assert not configuration.snapshot.quotas_of("ann").loaded
        assert configuration.wanted() == record.parents

    def test_records_that_go_round_in_a_circle_are_decided_all_the_same(self):
        circle = {
            "a": TenantRecord(tier="business", parents=("b",)),
            "b": TenantRecord(tier="business", parents=("a",)),
        }
        rules = configured(RULES, tenants=circle).snapshot.quotas_of("a")
        assert [quota.limit.name for quota in rules.inherited] == ["b/calls"]

    @pytest.mark.parametrize("parents", ['["a","a"]', '["a","b","c"]', '[""]', '"a"'])
    def test_parents_that_cannot_be_are_refused(self, parents: str):
        with pytest.raises((msgspec.ValidationError, PolicyError)):
            decode_tenant(f'{{"tier":"seat","parents":{parents}}}'.encode())

    def test_a_child_in_use_keeps_its_parents_when_other_tenants_arrive(self):
        configuration = organised()
        tenants = configuration.snapshot.tenants
        for number in range(50_000):
            tenants.put(f"stranger-{number}", None)
            if number % 1000 == 0:
                assert configuration.snapshot.quotas_of("ann").loaded


async def test_a_parents_use_is_that_of_all_below_it(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=organised()) as server:
        await allowed(server, "ann", 10)
        await allowed(server, "acme-ads", 15)
        await allowed(server, "acme", 12)
        told = {row.tenant: row for row in server.counters.wire().tenants}
        assert server.counters.wire().requests == 37
        assert server.counters.wire().rules[0].asked == 37
    # What ann's own quota refused never came to her team; of the rest, the organisation refused 5.
    assert (told["ann"].allowed, told["ann"].refused) == (8, 2)
    assert (told["acme-web"].allowed, told["acme-web"].refused) == (8, 0)
    assert (told["acme"].allowed, told["acme"].refused) == (30, 5)
    assert [(rule.rule, rule.asked, rule.refused) for rule in told["acme"].rules] == [("calls", 35, 5)]


class TestDecisions:
    async def test_teams_share_what_their_organisation_has(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url, configuration=organised()) as server:
            assert await allowed(server, "acme-web", 25) == 20
            assert await allowed(server, "acme-ads", 25) == 10
            refused = await server.admission.admit_request("acme-ads")
            assert (refused.reason, refused.rule) == (Reason.QUOTA, "acme/calls")
            assert await allowed(server, "acme", 5) == 0

    async def test_what_one_level_refuses_is_spent_at_none(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url, configuration=organised()) as server:
            assert await allowed(server, "ann", 30) == 8
            assert await allowed(server, "bob", 30) == 12
            assert (await server.admission.admit_request("bob")).rule == "acme-web/calls"
            assert await allowed(server, "acme", 30) == 10

    async def test_all_levels_of_many_callers_of_one_tick_are_one_question(
        self, limits: redis.Redis, redis_url: str
    ):
        async with running(redis_url, configuration=organised()) as server:
            before = server.counters.store_answers
            names = ["ann", "bob", "acme-ads", "acme"] * 5
            decisions = await asyncio.gather(*[server.admission.admit_request(name) for name in names])
            assert server.counters.store_answers == before + 1
            assert sum(decision.allowed for decision in decisions) == 20

    async def test_a_suspended_organisation_suspends_who_belongs_to_it(
        self, limits: redis.Redis, redis_url: str
    ):
        suspended = TenantRecord(tier="business", suspended=True)
        async with running(redis_url, configuration=organised(acme=suspended)) as server:
            decision = await server.admission.admit_request("ann")
            assert decision.reason is Reason.SUSPENDED

    async def test_a_quota_on_a_dependency_applies_to_all_children(self, limits: redis.Redis, redis_url: str):
        on_payments = TenantRecord(tier="seat", quotas=(calls(3, dependency="payments"),))
        async with running(redis_url, configuration=organised(acme=on_payments)) as server:
            for tenant in ("ann", "bob", "acme-ads"):
                await server.admission.admit_call("payments", tenant=tenant)
            with pytest.raises(Refused) as refused:
                await server.admission.admit_call("payments", tenant="acme")
            assert refused.value.decision.reason is Reason.QUOTA

    async def test_slots_of_every_level_are_free_again_when_the_call_ended(
        self, limits: redis.Redis, redis_url: str
    ):
        one = calls(1, algorithm=Algorithm.CONCURRENCY)
        async with running(
            redis_url, configuration=organised(acme=TenantRecord(tier="seat", quotas=(one,)))
        ) as server:
            held = await server.admission.admit_request("ann")
            assert (await server.admission.admit_request("acme-ads")).reason is Reason.CONCURRENCY
            server.admission.finish(held)
            patiently = await server.admission.admit_request("acme-ads", wait_s=20)
            assert patiently.allowed

    async def test_without_redis_they_share_this_servers_part_of_it(self):
        strict = msgspec.structs.replace(calls(6), failure_policy="local_share")
        alone = organised(acme=TenantRecord(tier="seat", quotas=(strict,)))
        async with running("redis://127.0.0.1:1", configuration=alone, connected=False) as server:
            assert server.admission.mode is Mode.LOCAL
            assert await allowed(server, "acme-web", 4) == 4
            assert await allowed(server, "acme-ads", 4) == 2

    async def test_headers_can_carry_whatever_a_tenant_is_called(self, limits: redis.Redis, redis_url: str):
        named = {
            'Zoë "Z" & Söhne': TenantRecord(tier="business"),
            "zoe-web": TenantRecord(tier="seat", parents=('Zoë "Z" & Söhne',)),
        }
        async with running(redis_url, configuration=configured(RULES, tenants=named)) as server:
            headers = dict(limit_headers(await server.admission.admit_request("zoe-web")))
            assert headers["ratelimit-policy"] == '"Zo%C3%AB %22Z%22 & S%C3%B6hne/calls";q=30;w=600'


async def test_parents_are_fetched_within_the_first_request(limits: redis.Redis, redis_url: str):
    publish(limits, RULES, revision=1, tenants=dict(TENANTS))
    async with watched(redis_url) as (configuration, _):
        for _ in range(5):  # a busy machine may miss a deadline
            rules = await configuration.load_record("ann")
        assert rules.loaded
        assert rules.root == "acme"
        assert [quota.tenant for quota in rules.inherited] == ["acme-web", "acme"]


async def test_on_a_cluster_all_levels_are_on_one_shard(cluster: Cluster):
    cluster.settle()
    cluster.flush()
    chain = [
        keys.tenant_quota("production", "acme", "calls"),
        keys.member_quota("production", "acme", "acme-web", "calls"),
        keys.member_quota("production", "acme", "ann", "calls"),
    ]
    assert len({cluster.primary_of(key) for key in chain}) == 1
    async with running(cluster.url, configuration=organised()) as server:
        assert await allowed(server, "ann", 12) == 8
        assert await allowed(server, "bob", 30) == 12
        assert (await server.admission.admit_request("bob")).rule == "acme-web/calls"
    assert cluster.primary_of(chain[0]).client.exists(*chain) == 3
