"""Decisions on a real Cluster of six nodes: distributed, exact, and independent of failing nodes."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import msgspec
import pytest
import redis

from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.watch import Watch
from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency, Limit, Policy, TenantRecord, Tier
from fuseboard.contract.scripts import ADMIT, REPORT, SETTLE
from fuseboard.contract.words import Algorithm, BreakerState, FailurePolicy, Mode, Outcome, Reason
from fuseboard.errors import Refused
from fuseboard.store.cluster_slots import slot_of
from tests.agents.published import publish
from tests.agents.redis_topologies import Cluster, Member
from tests.agents.servers import BREAKER, SHORT_US, TUNING, Server, configured, running
from tests.agents.windows import worst_window
from tests.waiting import eventually

#: No decision without Redis: what is admitted was admitted there.
QUOTA = Limit(
    name="requests",
    limit=5,
    window_ms=60_000,
    algorithm=Algorithm.SLIDING_WINDOW,
    failure_policy=FailurePolicy.FAIL_CLOSED,
)
#: Eight servers, six nodes and the tests share a small machine.
PATIENT = msgspec.structs.replace(TUNING, store_deadline_us=500_000)
DEPENDENCIES = tuple(f"vendor-{number}" for number in range(12))
TENANTS = tuple(f"tenant-{number}" for number in range(60))


def policy(quota: Limit = QUOTA, *, deadline_us: int = PATIENT.store_deadline_us) -> Policy:
    return Policy(
        environment="production",
        default_tier="free",
        tiers=(Tier(name="free", quotas=(quota,)), Tier(name="unlimited")),
        dependencies=tuple(Dependency(name=name, breaker=BREAKER) for name in DEPENDENCIES),
        tuning=msgspec.structs.replace(PATIENT, store_deadline_us=deadline_us),
    )


@pytest.fixture(autouse=True)
def empty(cluster: Cluster) -> None:
    cluster.settle()
    cluster.flush()


@asynccontextmanager
async def fleet(cluster: Cluster, count: int, decided_by: Policy) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(running(cluster.url, f"web-{number}", configured(decided_by)))
            for number in range(count)
        ]


def quota_key(tenant: str) -> str:
    return keys.tenant_quota("production", tenant, QUOTA.name)


def tenants_of(cluster: Cluster, member: Member, count: int = 5) -> list[str]:
    return [tenant for tenant in TENANTS if cluster.primary_of(quota_key(tenant)) is member][:count]


def is_decided_locally(server: Server) -> int:
    return server.counters.local_decisions


def state(server: Server, dependency: str) -> BreakerState:
    return next(view.state for view in server.admission.breaker_views() if view.dependency == dependency)


def errors(cluster: Cluster) -> dict[str, int]:
    """Error replies of all nodes since their last reset: kind -> count."""
    found: dict[str, int] = {}
    for node in cluster.nodes:
        for name, count in node.client.info("errorstats").items():
            kind = name.removeprefix("errorstat_")
            found[kind] = found.get(kind, 0) + count["count"]
    return found


def forget_errors(cluster: Cluster) -> None:
    for node in cluster.nodes:
        node.client.config_resetstat()


def test_slots_are_computed_as_the_server_does(cluster: Cluster):
    client = cluster.nodes[0].client
    names = ["123456789", "{t:a}:b", "a{}b", "a{", "a}{b}c", "{{a}}", "", *map(quota_key, TENANTS)]
    for name in names:
        assert slot_of(name.encode()) == client.execute_command("CLUSTER KEYSLOT", name), name


class TestEightServers:
    async def test_every_quota_is_exact_and_every_primary_has_its_share(self, cluster: Cluster):
        forget_errors(cluster)
        async with fleet(cluster, 8, policy()) as servers:
            asked = [(server, tenant) for server in servers for tenant in TENANTS for _ in range(2)]
            Random(7).shuffle(asked)
            decisions = await asyncio.gather(
                *(server.admission.admit_request(tenant) for server, tenant in asked)
            )
            allowed = dict.fromkeys(TENANTS, 0)
            for (_, tenant), decision in zip(asked, decisions, strict=True):
                allowed[tenant] += decision.allowed
            assert set(allowed.values()) == {5}
            assert {is_decided_locally(server) for server in servers} == {0}
        assert {"CROSSSLOT", "MOVED", "ERR"}.isdisjoint(errors(cluster))
        for node in cluster.primaries():
            assert node.client.info("commandstats")["cmdstat_evalsha"]["calls"] > 8

    async def test_a_breaker_is_one_for_all_whatever_shard_it_is_on(self, cluster: Cluster):
        assert len({cluster.primary_of(keys.breaker("production", name)) for name in DEPENDENCIES}) == 3
        forget_errors(cluster)
        async with fleet(cluster, 8, policy()) as servers:
            for name in DEPENDENCIES:
                permits = [await server.admission.admit_call(name) for server in servers]
                for server, permit in zip(servers, permits, strict=True):
                    server.admission.report(permit, Outcome.FAILURE)
            for name in DEPENDENCIES:
                node = cluster.primary_of(keys.breaker("production", name)).client
                key = keys.breaker("production", name)
                await eventually(lambda: (node.get(key) or b"").startswith(b"open"))  # noqa: B023
                with pytest.raises(Refused) as caught:
                    await servers[0].admission.admit_call(name)
                assert caught.value.decision.reason is Reason.BREAKER_OPEN
        assert {"CROSSSLOT", "MOVED", "ERR"}.isdisjoint(errors(cluster))

    async def test_flushed_scripts_cost_no_decision(self, cluster: Cluster):
        async with fleet(cluster, 1, policy()) as (server,):
            for node in cluster.primaries():
                assert node.client.script_exists(ADMIT.sha, REPORT.sha, SETTLE.sha) == [True] * 3
                node.client.script_flush()
            for tenant in TENANTS[:20]:
                assert (await server.admission.admit_request(tenant)).allowed
            assert is_decided_locally(server) == 0


class Migration:
    """One slot on its way from node to node, as an operator's tool moves it."""

    def __init__(self, cluster: Cluster, key: str) -> None:
        self.cluster = cluster
        self.slot = slot_of(key.encode())
        self.key = key
        self.source = cluster.primary_of(key)
        self.target = next(node for node in cluster.primaries() if node is not self.source)

    def begin(self) -> None:
        self._set(self.target, "IMPORTING", self.source)
        self._set(self.source, "MIGRATING", self.target)

    def move_keys(self) -> None:
        found = self.source.client.execute_command("CLUSTER GETKEYSINSLOT", self.slot, 100)
        if found:
            self.source.client.execute_command(
                "MIGRATE",
                "127.0.0.1",
                self.target.port,
                "",
                0,
                5000,
                "AUTH",
                self.cluster.password,
                "KEYS",
                *found,
            )

    def end(self) -> None:
        """Returns when all nodes know the new owner and its epoch.

        The new owner raises its epoch without asking the other nodes. Until they know the new epoch, no
        other slot may move. Otherwise an old message of the former owner can take the slot back, and its
        keys are lost.
        """
        for node in (self.target, self.source):
            self._set(node, "NODE", self.target)
        self.cluster.agree()

    def _set(self, node: Member, state: str, about: Member) -> None:
        node.client.execute_command("CLUSTER SETSLOT", self.slot, state, self.cluster.id_of(about))


class TestMigration:
    async def test_no_window_sees_more_while_the_slot_moves_to_and_fro(self, cluster: Cluster):
        strict = msgspec.structs.replace(QUOTA, limit=50, window_ms=300)
        admitted: list[int] = []
        asking = True

        async def hammer(server: Server) -> None:
            while asking:
                decisions = await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(10)))
                admitted.extend(d.charges[0].at_us for d in decisions if d.allowed and not d.charges[0].local)
                await asyncio.sleep(0.003)

        async with fleet(cluster, 4, policy(strict)) as servers:
            hammers = [asyncio.create_task(hammer(server)) for server in servers]
            for _ in range(3):
                forget_errors(cluster)
                so_far = len(admitted)
                await eventually(lambda: len(admitted) > so_far)  # noqa: B023
                migration = Migration(cluster, quota_key("acme"))
                await asyncio.to_thread(migration.begin)
                await asyncio.to_thread(migration.move_keys)
                await eventually(lambda: errors(cluster).get("ASK"))
                so_far = len(admitted)
                await eventually(lambda: len(admitted) > so_far)  # noqa: B023
                await asyncio.to_thread(migration.end)
                await eventually(lambda: errors(cluster).get("MOVED"))
                await eventually(lambda: cluster.primary_of(quota_key("acme")) is migration.target)  # noqa: B023
            asking = False
            await asyncio.gather(*hammers)
            assert {server.admission.mode for server in servers} == {Mode.SHARED}
            assert sum(map(is_decided_locally, servers)) == 0
        assert len(admitted) > 150
        assert worst_window(admitted, 300_000) <= 50

    async def test_a_domain_of_many_keys_is_decided_alone_only_while_it_moves(self, cluster: Cluster):
        key = keys.breaker("production", "vendor-3")
        async with fleet(cluster, 1, policy()) as (server,):
            permit = await server.admission.admit_call("vendor-3")
            server.admission.report(permit, Outcome.FAILURE)
            client = cluster.primary_of(key).client
            await eventually(lambda: client.exists(keys.evidence("production", "vendor-3")))
            migration = Migration(cluster, key)
            migration.begin()
            migration.source.client.execute_command(
                "MIGRATE", "127.0.0.1", migration.target.port, key, 0, 5000, "AUTH", cluster.password
            )
            for _ in range(20):
                await server.admission.admit_call("vendor-3")
            alone = is_decided_locally(server)
            assert alone > 0
            # Nobody's fault: no node is held to blame for it.
            assert (server.admission.mode, server.admission.health.cause) == (Mode.SHARED, "connected")
            migration.move_keys()
            await asyncio.to_thread(migration.end)
            await eventually(lambda: cluster.primary_of(key) is migration.target)
            alone = is_decided_locally(server)
            for _ in range(3):
                server.admission.report(await server.admission.admit_call("vendor-3"), Outcome.FAILURE)
            assert is_decided_locally(server) == alone
            await eventually(lambda: state(server, "vendor-3") is BreakerState.OPEN)


class TestOneNode:
    """What becomes of the others when one primary fails."""

    async def test_a_frozen_primary_hurts_its_own_slots_only(self, cluster: Cluster):
        victim, other = cluster.primaries()[:2]
        hurt, fine = tenants_of(cluster, victim), tenants_of(cluster, other)
        async with fleet(cluster, 1, policy(deadline_us=SHORT_US)) as (server,):
            victim.send(signal.SIGSTOP)
            try:
                while not server.admission.health.cause.startswith("1 of 3"):
                    await asyncio.gather(*(server.admission.admit_request(tenant) for tenant in hurt))
                assert f"127.0.0.1:{victim.port}" in server.admission.mode_cause
                assert server.admission.mode is Mode.SHARED
                alone, timeouts = is_decided_locally(server), server.counters.store_timeouts
                for tenant in fine:
                    assert (await server.admission.admit_request(tenant)).allowed
                assert is_decided_locally(server) == alone
                refused = await server.admission.admit_request(hurt[0])
                assert (refused.allowed, refused.reason) == (False, Reason.STORE_UNAVAILABLE)
                # Nobody waits for it any more.
                assert server.counters.store_timeouts == timeouts
            finally:
                victim.send(signal.SIGCONT)
            await eventually(lambda: server.admission.health.cause == "connected")
            assert (await server.admission.admit_request(hurt[1])).allowed

    async def test_a_breaker_kept_there_goes_on_alone_and_the_others_do_not(self, cluster: Cluster):
        victim, other = cluster.primaries()[:2]
        hurt = tenants_of(cluster, victim)
        homes = {name: cluster.primary_of(keys.breaker("production", name)) for name in DEPENDENCIES}
        lost = next(name for name in DEPENDENCIES if homes[name] is victim)
        kept = next(name for name in DEPENDENCIES if homes[name] is other)
        async with fleet(cluster, 1, policy(deadline_us=SHORT_US)) as (server,):
            for name in (lost, kept):
                for _ in range(BREAKER.consecutive_failures):
                    server.admission.report(await server.admission.admit_call(name), Outcome.FAILURE)
            breakers = server.admission.calls.breakers
            await eventually(lambda: all(breakers[name].state is BreakerState.OPEN for name in (lost, kept)))
            victim.send(signal.SIGSTOP)
            try:
                while not server.admission.health.cause.startswith("1 of 3"):
                    await asyncio.gather(*(server.admission.admit_request(tenant) for tenant in hurt))
                assert breakers[lost].local.state is BreakerState.OPEN
                assert breakers[kept].local.state is BreakerState.CLOSED
            finally:
                victim.send(signal.SIGCONT)
            await eventually(lambda: server.admission.health.cause == "connected")

    async def test_a_primary_that_answers_with_errors_is_left_alone_until_it_recovers(self, cluster: Cluster):
        victim, other = cluster.primaries()[:2]
        hurt, fine = tenants_of(cluster, victim), tenants_of(cluster, other)
        async with fleet(cluster, 1, policy()) as (server,):
            victim.client.config_set("maxmemory", 1)
            try:
                for tenant in hurt[:3]:
                    assert not (await server.admission.admit_request(tenant)).allowed
                assert "answers with errors" in server.admission.mode_cause
                assert server.admission.mode is Mode.SHARED
                for tenant in fine:
                    assert (await server.admission.admit_request(tenant)).allowed
            finally:
                victim.client.config_set("maxmemory", 0)
            await eventually(lambda: server.admission.health.cause == "connected")
            assert (await server.admission.admit_request(hurt[0])).allowed

    async def test_a_killed_primary_is_replaced_and_the_others_never_notice(self, cluster: Cluster):
        victim, other = cluster.primaries()[:2]
        hurt, fine = tenants_of(cluster, victim, 20), tenants_of(cluster, other, 20)
        modes: set[Mode] = set()
        quota = msgspec.structs.replace(QUOTA, limit=10_000)
        async with fleet(cluster, 2, policy(quota)) as servers:
            for server in servers:
                for tenant in hurt[:3]:
                    assert (await server.admission.admit_request(tenant)).allowed
            before = sum(map(is_decided_locally, servers))
            victim.kill()
            await eventually(lambda: all(one.admission.health.cause.startswith("1 of 3") for one in servers))
            while any(server.admission.health.cause != "connected" for server in servers):
                for server in servers:
                    modes.add(server.admission.mode)
                    for tenant in fine:
                        assert (await server.admission.admit_request(tenant)).allowed
            assert sum(map(is_decided_locally, servers)) == before
            assert modes == {Mode.SHARED}
            successor = cluster.primary_of(quota_key(hurt[0]))
            assert successor is not victim
            successor.client.script_flush()
            for server in servers:
                for tenant in hurt[:3]:
                    decision = await server.admission.admit_request(tenant)
                    # The replica had what was counted before.
                    assert (decision.allowed, decision.limits[0].remaining) == (True, 10_000 - 3) or (
                        server is servers[1] and decision.limits[0].remaining == 10_000 - 4
                    )
            assert sum(map(is_decided_locally, servers)) == before
        victim.start()  # as a replica of its successor
        await asyncio.to_thread(cluster.settle)

    async def test_without_any_node_decisions_go_on_and_come_back(self, cluster: Cluster):
        async with fleet(cluster, 1, policy(deadline_us=SHORT_US)) as (server,):
            for node in cluster.nodes:
                node.send(signal.SIGSTOP)
            try:
                while server.admission.mode is not Mode.LOCAL:
                    await asyncio.gather(*(server.admission.admit_request(tenant) for tenant in TENANTS[:9]))
            finally:
                for node in cluster.nodes:
                    node.send(signal.SIGCONT)
            await eventually(lambda: server.admission.mode is Mode.SHARED)


class TestConfiguration:
    async def test_it_is_found_followed_and_followed_to_another_node(self, cluster: Cluster):
        configuration = Configuration(environment="production")
        watch = Watch(url=cluster.url, configuration=configuration)
        head = keys.config_head("production")

        def say(revision: int, tier: str) -> None:
            client: redis.Redis = cluster.primary_of(head).client
            publish(
                client,
                policy(deadline_us=50_000),
                revision=revision,
                tenants={"acme": TenantRecord(tier=tier)},
                listed=("acme",),
            )

        def tier() -> str | None:
            record = configuration.snapshot.tenants.as_dict()["acme"]
            return record and record.tier

        say(1, "free")
        watch.start()
        try:
            await eventually(lambda: configuration.snapshot.head.revision == 1)
            configuration.want("acme")
            batch = configuration.fetch() if configuration.fetch else None
            assert batch is not None
            await batch
            assert tier() == "free"
            say(2, "unlimited")
            await eventually(lambda: configuration.snapshot.head.revision == 2)
            assert tier() == "unlimited"
            migration = Migration(cluster, head)
            migration.begin()
            migration.move_keys()
            await asyncio.to_thread(migration.end)
            await eventually(lambda: cluster.primary_of(head) is migration.target)
            say(3, "free")
            await eventually(lambda: configuration.snapshot.head.revision == 3)
        finally:
            await watch.stop()
