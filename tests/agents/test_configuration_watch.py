"""Following the configuration in Redis: notified, up to date, and never in the application's way."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.configuration import watch as watching
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.watch import Watch
from fuseboard.contract import keys
from fuseboard.contract.policy import TenantRecord, Tuning, encode_policy
from fuseboard.contract.words import ConfigSource, ConfigStatus
from tests.agents.published import publish
from tests.agents.test_configuration import POLICY, offer, with_limit
from tests.waiting import eventually

#: Long enough for a busy machine: what is tested is that the record came, not how fast.
PATIENT = msgspec.structs.replace(POLICY, tuning=Tuning(store_deadline_us=50_000))


@asynccontextmanager
async def watched(
    url: str, configuration: Configuration | None = None
) -> AsyncIterator[tuple[Configuration, Watch]]:
    configuration = configuration or Configuration(environment="production")
    watch = Watch(url=url, configuration=configuration)
    watch.start()
    try:
        await asyncio.wait_for(watch.looked.wait(), 30)
        yield configuration, watch
    finally:
        await watch.stop()


def revision(configuration: Configuration) -> int:
    return configuration.snapshot.head.revision


async def held(configuration: Configuration, tenants: tuple[str, ...]) -> None:
    for tenant in tenants:
        configuration.want(tenant)
    batch = configuration.fetch() if configuration.fetch else None
    assert batch is not None
    await batch


class TestFollowing:
    async def test_what_was_published_before_is_found_at_once(self, limits: redis.Redis, redis_url: str):
        publish(limits, POLICY, revision=7)
        async with watched(redis_url) as (configuration, watch):
            assert revision(configuration) == 7
            assert configuration.applied.source is ConfigSource.REDIS
            assert configuration.clock.learned
            assert watch.connected

    async def test_a_nudge_brings_the_next_revision(self, limits: redis.Redis, redis_url: str):
        publish(limits, POLICY, revision=7)
        async with watched(redis_url) as (configuration, _):
            publish(limits, with_limit(3), revision=8)
            await eventually(lambda: revision(configuration) == 8)
            assert configuration.snapshot.quotas_of("acme").quotas[0].limit == 3

    async def test_changed_tenants_follow_those_listed_and_no_others_are_fetched(
        self, limits: redis.Redis, redis_url: str
    ):
        free, pro = TenantRecord(tier="free"), TenantRecord(tier="pro")
        publish(limits, PATIENT, revision=7, tenants={"acme": free, "beta": free})
        async with watched(redis_url) as (configuration, _):
            await held(configuration, ("acme", "beta"))
            # Not listed, so it is not looked at: the list is what tells a pod what changed.
            publish(limits, PATIENT, revision=8, tenants={"acme": pro, "beta": pro}, listed=("acme", "other"))
            await eventually(lambda: revision(configuration) == 8)
            assert configuration.snapshot.quotas_of("acme").tier == "pro"
            assert configuration.snapshot.quotas_of("beta").tier == "free"
            assert "other" not in configuration.snapshot.tenants

    @pytest.mark.parametrize("lost", [{"since": 8, "listed": ()}, {"since": 7, "listed": None}])
    async def test_after_a_gap_every_tenant_held_is_fetched_again(
        self, limits: redis.Redis, redis_url: str, lost
    ):
        publish(limits, PATIENT, revision=7, tenants={"acme": TenantRecord(tier="free")})
        async with watched(redis_url) as (configuration, _):
            await held(configuration, ("acme", "ghost"))
            publish(limits, PATIENT, revision=9, tenants={"acme": TenantRecord(tier="pro")}, **lost)
            await eventually(lambda: revision(configuration) == 9)
            assert configuration.snapshot.quotas_of("acme").tier == "pro"
            assert configuration.applied.revision == 9

    async def test_a_burst_of_edits_ends_with_the_last_one(self, limits: redis.Redis, redis_url: str):
        publish(limits, POLICY, revision=1)
        async with watched(redis_url) as (configuration, _):
            for number in range(2, 60):
                publish(limits, with_limit(number), revision=number)
            await eventually(lambda: revision(configuration) == 59)
            assert configuration.snapshot.quotas_of("acme").quotas[0].limit == 59

    async def test_an_older_revision_in_redis_is_left_there(self, limits: redis.Redis, redis_url: str):
        publish(limits, with_limit(1), revision=5)
        configuration = Configuration(environment="production")
        configuration.apply(offer(POLICY, revision=9))
        async with watched(redis_url, configuration):
            assert revision(configuration) == 9
            publish(limits, with_limit(2), revision=1, epoch=2)
            await eventually(lambda: configuration.snapshot.head.epoch == 2)
            assert revision(configuration) == 1

    async def test_a_nudge_that_makes_no_sense_is_a_reason_to_look(self, limits: redis.Redis, redis_url: str):
        publish(limits, POLICY, revision=1)
        async with watched(redis_url) as (configuration, watch):
            publish(limits, POLICY, revision=2, nudge=False)
            limits.publish(keys.config_channel("production"), b"\xff not json")
            await eventually(lambda: revision(configuration) == 2)
            assert watch.failures == 0


class TestBadConfiguration:
    @pytest.mark.parametrize(
        ("document", "says"),
        [
            (b'{"tiers": "poison"}', "policy"),
            (encode_policy(msgspec.structs.replace(POLICY, environment="staging")), "staging"),
        ],
    )
    async def test_a_poisoned_policy_is_refused_and_reported_and_a_good_one_heals(
        self, limits: redis.Redis, redis_url: str, document: bytes, says: str
    ):
        publish(limits, POLICY, revision=1)
        async with watched(redis_url) as (configuration, watch):
            publish(limits, document, revision=2)
            await eventually(lambda: configuration.applied.status is ConfigStatus.REJECTED)
            assert says in configuration.applied.error
            assert revision(configuration) == 1
            publish(limits, POLICY, revision=3)
            await eventually(lambda: revision(configuration) == 3)
            assert configuration.applied.status is ConfigStatus.APPLIED
            assert watch.connected

    async def test_a_policy_whose_hash_differs_is_refused(self, limits: redis.Redis, redis_url: str):
        publish(limits, POLICY, revision=1, digest="0123456789abcdef")
        async with watched(redis_url) as (configuration, _):
            assert revision(configuration) == 0
            assert "torn" in configuration.applied.error

    async def test_a_poisoned_tenant_refuses_the_revision_that_carries_it(
        self, limits: redis.Redis, redis_url: str
    ):
        publish(limits, PATIENT, revision=1, tenants={"acme": TenantRecord(tier="free")})
        async with watched(redis_url) as (configuration, _):
            await held(configuration, ("acme",))
            publish(limits, PATIENT, revision=2, tenants={"acme": b'{"tier": 7}'}, listed=("acme",))
            await eventually(lambda: configuration.applied.status is ConfigStatus.REJECTED)
            assert "tenants.acme" in configuration.applied.error
            assert revision(configuration) == 1

    @pytest.mark.parametrize("spoil", ["flush", "half", "letters", "type"])
    async def test_a_head_that_is_gone_or_nonsense_leaves_what_is_in_force(
        self, limits: redis.Redis, redis_url: str, spoil: str
    ):
        publish(limits, POLICY, revision=5)
        async with watched(redis_url) as (configuration, _):
            head = keys.config_head("production")
            if spoil == "flush":
                limits.flushall()
            elif spoil == "half":
                limits.hdel(head, "epoch")
            elif spoil == "letters":
                limits.hset(head, "revision", "many")
            else:
                limits.set(head, "text")
            limits.publish(keys.config_channel("production"), b'{"epoch":1,"revision":6,"since":5}')
            configuration.want("acme")
            publish_again_by = asyncio.get_running_loop().time() + 0.2
            while asyncio.get_running_loop().time() < publish_again_by:
                assert revision(configuration) == 5
                await asyncio.sleep(0.01)
            limits.delete(head)
            publish(limits, POLICY, revision=6)
            await eventually(lambda: revision(configuration) == 6)


class TestTenantsMet:
    async def test_the_first_request_of_a_tenant_gets_its_own_rules(
        self, limits: redis.Redis, redis_url: str
    ):
        names = ("acme", "beta", "gamma")
        publish(limits, PATIENT, revision=1, tenants=dict.fromkeys(names, TenantRecord(tier="pro")))
        async with watched(redis_url) as (configuration, _):
            # A busy machine may miss a deadline, but hardly three in a row.
            assert "pro" in [(await configuration.load_record(name)).tier for name in names]
            await held(configuration, ("ghost",))
            ghost = await configuration.load_record("ghost")
            assert (ghost.tier, ghost.known, ghost.loaded) == ("free", False, True)

    async def test_many_met_in_one_tick_are_fetched_together(self, limits: redis.Redis, redis_url: str):
        names = [f"tenant-{number}" for number in range(300)]
        publish(limits, PATIENT, revision=1, tenants=dict.fromkeys(names, TenantRecord(tier="pro")))
        async with watched(redis_url) as (configuration, _):
            before = limits.info("commandstats")["cmdstat_exec"]["calls"]
            await asyncio.gather(*(configuration.load_record(name) for name in names))
            await eventually(lambda: all(name in configuration.snapshot.tenants for name in names))
            assert limits.info("commandstats")["cmdstat_exec"]["calls"] - before <= 2

    async def test_a_frozen_redis_delays_only_the_first_caller(self, valkey: Valkey):
        with redis.Redis.from_url(valkey.url) as limits:
            publish(limits, POLICY, revision=1)
        async with watched(valkey.url) as (configuration, _):
            assert valkey.process is not None
            os.kill(valkey.process.pid, signal.SIGSTOP)
            try:
                assert not (await configuration.load_record("first")).loaded
                await eventually(lambda: configuration.fetch is not None and configuration.fetch() is None)
                with pytest.raises(StopIteration):  # it returns without waiting for anything
                    configuration.load_record("second").send(None)
                assert configuration.wanted() == ("first", "second")
            finally:
                os.kill(valkey.process.pid, signal.SIGCONT)


class TestOutages:
    async def test_it_comes_back_by_itself_when_redis_does(
        self, valkey: Valkey, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(watching, "BACKOFF_S", (0.01, 0.05))
        with redis.Redis.from_url(valkey.url) as limits:
            publish(limits, POLICY, revision=1)
        async with watched(valkey.url) as (configuration, watch):
            valkey.stop()
            await eventually(lambda: not watch.connected)
            assert revision(configuration) == 1
            assert configuration.fetch is not None
            assert configuration.fetch() is None
            valkey.start()
            with redis.Redis.from_url(valkey.url) as limits:
                publish(limits, with_limit(3), revision=2)
            await eventually(lambda: revision(configuration) == 2)

    async def test_no_redis_at_all_is_known_at_once(self):
        configuration = Configuration(environment="production")
        watch = Watch(url="redis://127.0.0.1:1/0", configuration=configuration)
        watch.start()
        await asyncio.wait_for(watch.looked.wait(), 30)
        assert not watch.connected
        await watch.stop()
        assert configuration.fetch is None

    async def test_it_stops_although_a_library_swallows_the_first_cancellation(
        self, redis_url: str, monkeypatch: pytest.MonkeyPatch
    ):
        watch = Watch(url=redis_url, configuration=Configuration(environment="production"))
        swallowed = asyncio.Event()

        async def follow(pubsub: object) -> None:
            watch.looked.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if swallowed.is_set():
                    raise
                swallowed.set()
                raise TimeoutError from None

        monkeypatch.setattr(watch, "_follow", follow)
        watch.start()
        await asyncio.wait_for(watch.looked.wait(), 30)
        await asyncio.wait_for(watch.stop(), 30)
        assert swallowed.is_set()
