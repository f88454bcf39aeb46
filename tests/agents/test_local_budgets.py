"""Calendar limits without Redis: pods divide what was left when Redis last answered."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from fuseboard.contract.policy import Limit, TenantRecord, Tier
from fuseboard.contract.scripts import DRAIN, Script
from fuseboard.contract.sync import Drill
from fuseboard.contract.words import DrillKind, FailurePolicy, Mode, Reason
from fuseboard.decision import Decision
from fuseboard.without_redis import local_counters, local_limits, offline_counts
from tests.agents.limit_kinds import bucket, daily, slots, window
from tests.agents.servers import POLICY, Server, configured, running
from tests.waiting import eventually

DIVIDED = [FailurePolicy.RESERVED, FailurePolicy.LOCAL_SHARE]


@asynccontextmanager
async def serving(redis_url: str, quota: Limit, *, pods: int = 1, up: bool = True) -> AsyncIterator[Server]:
    policy = replace(POLICY, tiers=(Tier(name="free", quotas=(quota,)),), dependencies=())
    tenants = {"acme": TenantRecord(tier="free")}
    configuration = configured(policy, tenants=tenants, live_servers=pods)
    async with running(redis_url, configuration=configuration, connected=up) as server:
        yield server


async def lose_redis(server: Server) -> None:
    drill = Drill(id=1, kind=DrillKind.GONE, remaining_ms=60_000)
    server.admission.store.pretend(drill, asked=monotonic())
    await eventually(lambda: server.admission.health.mode is Mode.LOCAL)


async def find_redis(server: Server) -> None:
    server.admission.store.pretend(None, asked=monotonic())
    await eventually(lambda: server.admission.health.mode is Mode.SHARED)


async def ask(server: Server, cost: int = 1) -> Decision:
    return await server.admission.admit_request("acme", cost, wait_s=0)


async def spend(server: Server, calls: int) -> int:
    return sum([(await ask(server)).allowed for _ in range(calls)])


@pytest.mark.parametrize("policy", DIVIDED)
class TestWhatIsLeft:
    @pytest.mark.parametrize(("spent", "pods", "share"), [(0, 1, 100), (40, 1, 60), (40, 4, 15), (100, 4, 0)])
    async def test_each_pod_spends_its_share_of_it(
        self, limits: redis.Redis, redis_url: str, policy: FailurePolicy, spent: int, pods: int, share: int
    ):
        async with serving(redis_url, daily(100, failure_policy=policy), pods=pods) as server:
            if spent:
                assert await spend(server, spent) == spent
            else:
                server.admission.give_back(await ask(server))
            await lose_redis(server)
            assert await spend(server, 120) == share
            refused = await ask(server)
            assert (refused.reason, refused.mode) == (Reason.QUOTA, Mode.LOCAL)
            assert refused.retry_after_ms > 1_000

    async def test_a_correction_changes_it(self, limits: redis.Redis, redis_url: str, policy: FailurePolicy):
        budget = daily(100, measure="tokens", failure_policy=policy)
        async with serving(redis_url, budget) as server:
            admission = server.admission
            first = await admission.admit_request("acme", costs={"tokens": 90})
            second = await admission.admit_request("acme", costs={"tokens": 5})
            admission.settle(first, "tokens", 10)
            await lose_redis(server)
            admission.settle(second, "tokens", 30)
            assert not (await admission.admit_request("acme", costs={"tokens": 61}, wait_s=0)).allowed
            assert (await admission.admit_request("acme", costs={"tokens": 60}, wait_s=0)).allowed

    async def test_a_correction_of_what_a_pod_spent_alone_changes_it(
        self, limits: redis.Redis, redis_url: str, policy: FailurePolicy
    ):
        budget = daily(100, measure="tokens", failure_policy=policy)
        async with serving(redis_url, budget) as server:
            admission = server.admission
            await admission.admit_request("acme", costs={"tokens": 20})
            await lose_redis(server)
            alone = await admission.admit_request("acme", costs={"tokens": 70})
            admission.settle(alone, "tokens", 30)
            assert not (await admission.admit_request("acme", costs={"tokens": 51}, wait_s=0)).allowed
            assert (await admission.admit_request("acme", costs={"tokens": 50}, wait_s=0)).allowed
            await find_redis(server)
            (key,) = limits.keys("fb1:production:{t:*}:quota:daily")
            assert limits.get(key).endswith(b" 100")

    async def test_the_next_period_has_all_of_it(
        self, limits: redis.Redis, redis_url: str, policy: FailurePolicy, monkeypatch: pytest.MonkeyPatch
    ):
        async with serving(redis_url, daily(100, failure_policy=policy), pods=2) as server:
            assert await spend(server, 100) == 100
            await lose_redis(server)
            assert await spend(server, 1) == 0
            for module in (local_counters, local_limits):
                clock = module.time  # type: ignore[attr-defined]
                monkeypatch.setattr(module, "time", lambda clock=clock: clock() + 86_400)
            assert await spend(server, 120) == 50

    async def test_redis_counts_what_a_pod_spent_alone(
        self, limits: redis.Redis, redis_url: str, policy: FailurePolicy
    ):
        async with serving(redis_url, daily(100, failure_policy=policy)) as server:
            assert await spend(server, 40) == 40
            await lose_redis(server)
            assert await spend(server, 30) == 30
            await find_redis(server)
            (key,) = limits.keys("fb1:production:{t:*}:quota:daily")
            assert limits.get(key).endswith(b" 70")
            assert await spend(server, 10) == 10
            await lose_redis(server)
            assert await spend(server, 120) == 20

    async def test_a_higher_limit_has_more_left(
        self, limits: redis.Redis, redis_url: str, policy: FailurePolicy
    ):
        async with serving(redis_url, daily(100, failure_policy=policy)) as server:
            assert await spend(server, 100) == 100
            await lose_redis(server)
            demand = server.admission._requests.plain_lane("acme")
            assert demand is not None
            (ref,) = demand.demand.refs
            ref.limit = replace(ref.limit, limit=110)
            assert await spend(server, 20) == 10


async def test_a_pod_that_never_asked_redis_spends_nothing_of_a_reserved_limit(redis_url: str):
    limit = daily(100, failure_policy=FailurePolicy.RESERVED)
    async with serving("redis://127.0.0.1:1", limit, up=False) as server:
        assert (await ask(server)).reason is Reason.STORE_UNAVAILABLE


async def test_a_pod_that_never_asked_redis_spends_its_share_of_a_divided_limit(redis_url: str):
    limit = daily(100, failure_policy=FailurePolicy.LOCAL_SHARE)
    async with serving("redis://127.0.0.1:1", limit, pods=4, up=False) as server:
        assert await spend(server, 120) == 25


KINDS = {"window": window(100, 3_600), "bucket": bucket(100, seconds=3_600), "daily": daily(100)}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actual", [10, 80])
async def test_a_cost_that_is_known_during_an_outage_is_corrected_after_it(
    limits: redis.Redis, redis_url: str, kind: str, actual: int
):
    limit = replace(KINDS[kind], measure="tokens", failure_policy=FailurePolicy.FAIL_CLOSED)
    async with serving(redis_url, limit) as server:
        decision = await server.admission.admit_request("acme", costs={"tokens": 60})
        await lose_redis(server)
        server.admission.settle(decision, "tokens", actual)
        server.admission.settlements.flush()
        await find_redis(server)
        server.admission.settlements.flush()
        rest = {"tokens": 100 - actual}
        more = {"tokens": 101 - actual}
        assert not (await server.admission.admit_request("acme", costs=more, wait_s=0)).allowed
        assert (await server.admission.admit_request("acme", costs=rest, wait_s=0)).allowed


async def test_slots_of_calls_that_end_during_an_outage_are_free_after_it(
    limits: redis.Redis, redis_url: str
):
    async with serving(redis_url, slots(1, seconds=3_600)) as server:
        decision = await ask(server)
        await lose_redis(server)
        server.admission.finish(decision)
        server.admission.settlements.flush()
        await find_redis(server)
        server.admission.settlements.flush()
        assert (await ask(server)).allowed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actual", [10, 80])
async def test_a_call_that_was_reported_before_its_cost_was_known_is_corrected_in_redis(
    limits: redis.Redis, redis_url: str, kind: str, actual: int
):
    limit = replace(KINDS[kind], measure="tokens", failure_policy=FailurePolicy.LOCAL_SHARE)
    async with serving(redis_url, limit) as server:
        admission = server.admission
        admission.give_back(await admission.admit_request("acme", costs={"tokens": 1}))
        await lose_redis(server)
        decision = await admission.admit_request("acme", costs={"tokens": 60})
        assert decision.mode is Mode.LOCAL
        await find_redis(server)
        admission.settle(decision, "tokens", actual)
        admission.settlements.flush()
        rest = {"tokens": 100 - actual}
        more = {"tokens": 101 - actual}
        assert not (await admission.admit_request("acme", costs=more, wait_s=0)).allowed
        assert (await admission.admit_request("acme", costs=rest, wait_s=0)).allowed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("actual", [10, 80])
@pytest.mark.parametrize("answer", ["late", "lost", "never"])
async def test_a_cost_that_becomes_known_while_its_call_is_reported_is_corrected(
    limits: redis.Redis,
    redis_url: str,
    kind: str,
    actual: int,
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
):
    """When the call ends, Redis has the report with the estimate, or never got it; or its answer is lost."""
    limit = replace(KINDS[kind], measure="tokens", failure_policy=FailurePolicy.LOCAL_SHARE)
    async with serving(redis_url, limit) as server:
        admission = server.admission
        admission.give_back(await admission.admit_request("acme", costs={"tokens": 1}))
        await lose_redis(server)
        decision = await admission.admit_request("acme", costs={"tokens": 60})
        run, sent = admission.store.run, asyncio.Event()
        held: list[Callable[[], None]] = []

        def hold(script: Script, keys: Any, arguments: Any, on_reply: Any) -> None:
            """Keep back the answer to the first report, or the report."""
            if script is not DRAIN or sent.is_set():
                run(script, keys, arguments, on_reply)
            elif answer == "lost":
                sent.set()
            else:
                sent.set()
                run(script, keys, arguments, lambda reply: held.append(lambda: on_reply(reply)))

        monkeypatch.setattr(admission.store, "run", hold)
        admission.store.pretend(None, asked=monotonic())
        await asyncio.wait_for(sent.wait(), 30)
        if answer != "lost":
            await eventually(lambda: held)
        admission.settle(decision, "tokens", actual)
        # Another call of this outage is reported after it.
        assert (await admission.admit_request("acme", costs={"tokens": 5})).mode is Mode.LOCAL
        for reply in held if answer == "late" else ():
            reply()
        await eventually(lambda: server.admission.health.mode is Mode.SHARED)
        await eventually(lambda: not admission.redis_fallback.limits.offline.unreported)
        admission.settlements.flush()
        rest = {"tokens": 95 - actual}
        more = {"tokens": 96 - actual}
        assert not (await admission.admit_request("acme", costs=more, wait_s=0)).allowed
        assert (await admission.admit_request("acme", costs=rest, wait_s=0)).allowed


async def test_a_pod_that_nobody_told_the_time_corrects_a_call_that_another_one_followed(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(offline_counts, "NO_TIME_S", 0.0)
    limit = daily(100, measure="tokens", failure_policy=FailurePolicy.LOCAL_SHARE)
    async with serving(redis_url, limit) as server:
        admission = server.admission
        await admission.admit_request("acme", costs={"tokens": 1})
        await lose_redis(server)
        first = await admission.admit_request("acme", costs={"tokens": 60})
        await admission.admit_request("acme", costs={"tokens": 5})
        admission.settle(first, "tokens", 80)
        await find_redis(server)
        (key,) = limits.keys("fb1:production:{t:*}:quota:daily")
        assert limits.get(key).endswith(b" 86")
