"""An account that a vendor does not serve stops its pools: first in the pod that recorded it, then in all."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import monotonic

import pytest
import redis
from msgspec.structs import replace
from redis.asyncio import Redis

from fuseboard.admission import account_stops
from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract import keys
from fuseboard.contract.budgets import Account
from fuseboard.contract.policy import Dependency
from fuseboard.contract.sync import Drill
from fuseboard.contract.words import BreakerState, DrillKind, Mode, Outcome, Reason, is_slug
from fuseboard.errors import Refused
from tests.agents.servers import PATIENT, POLICY, Server, configured, give, running
from tests.agents.test_classification import of_anthropic, of_openai
from tests.waiting import eventually

NO_CREDIT = "Your credit balance is too low to access the Anthropic API."
ACCOUNT = [
    of_openai(429, "insufficient_quota", retry_after="86400"),
    of_openai(429, "rate_limit_exceeded", retry_after="86400"),
    of_openai(400, "billing_hard_limit_reached"),
    of_anthropic(400, "invalid_request_error", NO_CREDIT),
]


async def fail(server: Server, error: Exception) -> None:
    permit = await server.admission.admit_call("payments")
    outcome, cooldown_ms = judge_permitted(permit, error)
    server.admission.report(permit, outcome, cooldown_ms)


async def is_refused(server: Server) -> Refused | None:
    try:
        server.admission.report(await server.admission.admit_call("payments"), Outcome.OK)
    except Refused as refused:
        return refused
    return None


@pytest.mark.parametrize("error", ACCOUNT, ids=repr)
async def test_the_pod_that_heard_it_stops_and_the_others_go_on(
    limits: redis.Redis, redis_url: str, error: Exception
):
    async with running(redis_url, "web-1") as one, running(redis_url, "web-2") as other:
        for _ in range(2):
            await is_refused(other)
        await fail(one, error)
        refused = await is_refused(one)
        assert refused is not None
        assert refused.decision.reason is Reason.COOLING_DOWN
        assert 0 < refused.decision.retry_after_ms <= 60_000
        assert await is_refused(other) is None
        assert not limits.keys("*cooldown*")


async def test_a_429_without_a_time_stops_the_fleet_for_a_second_and_opens_nothing(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url, "web-1") as one, running(redis_url, "web-2") as other:
        for number in range(10):
            await fail((one, other)[number % 2], of_openai(429, "rate_limit_exceeded"))
            for breaker in (
                *one.admission.calls.breakers.values(),
                *other.admission.calls.breakers.values(),
            ):
                breaker.remembered = None
            limits.delete(*limits.keys("*cooldown*") or ["none"])
        await fail(one, of_openai(429, "rate_limit_exceeded"))
        await eventually(lambda: limits.keys("*cooldown*"))
        refused = await is_refused(other)
        assert refused is not None
        assert refused.decision.reason is Reason.COOLING_DOWN
        assert refused.decision.retry_after_ms <= 1000
        assert one.admission.breaker_views()[0].state is BreakerState.CLOSED


WITH_ACCOUNTS = replace(
    POLICY,
    dependencies=tuple([Dependency(name=name) for name in ("gpt", "mini", "claude")]),
    accounts=(Account(name="openai", pools=("gpt", "mini")), Account(name="anthropic", pools=("claude",))),
    tuning=PATIENT,
)
NO_QUOTA, WRONG_KEY = of_openai(429, "insufficient_quota"), of_openai(401, "invalid_api_key")


@asynccontextmanager
async def fleet(redis_url: str, number: int = 3) -> AsyncIterator[list[Server]]:
    """Pods that listen to the channel of breakers, as those of ``fuseboard.from_env`` do."""
    async with AsyncExitStack() as stack:
        every = [
            await stack.enter_async_context(
                running(redis_url, f"web-{place}", configured(WITH_ACCOUNTS, live_servers=number))
            )
            for place in range(number)
        ]
        client = await stack.enter_async_context(Redis.from_url(redis_url))
        channel = await stack.enter_async_context(client.pubsub())
        await channel.subscribe(keys.breaker_channel("production"))

        async def listen() -> None:
            async for message in channel.listen():
                if message["type"] == "message":
                    for pod in every:
                        pod.admission.breaker_opened(message["data"])

        task = asyncio.create_task(listen())
        stack.callback(task.cancel)
        yield every


async def call(pod: Server, pool: str, error: Exception | None = None) -> Refused | None:
    try:
        permit = await pod.admission.admit_call(pool)
    except Refused as refused:
        return refused
    if error is None:
        pod.admission.report(permit, Outcome.OK)
    else:
        pod.admission.report(permit, *judge_permitted(permit, error))
    return None


async def refused_everywhere(every: list[Server]) -> bool:
    return all([await call(pod, pool) is not None for pod in every for pool in ("gpt", "mini")])


async def test_two_pods_that_record_it_stop_all_pools_of_the_account_in_all_pods(
    limits: redis.Redis, redis_url: str
):
    async with fleet(redis_url) as every:
        await call(every[0], "gpt", NO_QUOTA)
        refused = await call(every[0], "mini")
        assert refused is not None
        assert (refused.decision.reason, refused.decision.rule) == (Reason.COOLING_DOWN, "openai")
        assert 50_000 < refused.decision.retry_after_ms <= 60_001
        assert await call(every[1], "gpt") is None, "one pod alone may be wrong"
        await call(every[1], "mini", NO_QUOTA)
        await eventually(lambda: refused_everywhere(every))
        assert await call(every[2], "claude") is None, "another account works"


async def test_calls_that_were_under_way_do_not_prolong_the_stop_of_their_pod(
    limits: redis.Redis, redis_url: str
):
    async with fleet(redis_url) as (pod, *_):
        permits = [await pod.admission.admit_call("gpt") for _ in range(2)]
        stops = pod.admission.calls.stops
        ends = []
        for permit in permits:
            pod.admission.report(permit, *judge_permitted(permit, NO_QUOTA))
            ends.append(stops.stopped["gpt"].until)
        assert ends[0] == ends[1]


async def test_a_wrong_key_stops_one_pool_of_one_pod(limits: redis.Redis, redis_url: str):
    async with fleet(redis_url) as every:
        for _ in range(3):
            await call(every[0], "gpt", WRONG_KEY)
        assert await call(every[0], "gpt") is not None
        assert await call(every[0], "mini") is None
        for pod in every[1:]:
            assert await call(pod, "gpt") is None
        assert not limits.exists(keys.account_stop("production", "openai"))


async def test_the_only_pod_stops_at_once(limits: redis.Redis, redis_url: str):
    async with fleet(redis_url, 1) as every:
        await call(every[0], "gpt", NO_QUOTA)
        await eventually(lambda: limits.hexists(keys.account_stop("production", "openai"), "until"))
        assert await refused_everywhere(every)


def end_the_stop(limits: redis.Redis, every: list[Server]) -> None:
    """As if the minute had passed."""
    for pod in every:
        for stop in pod.admission.calls.stops.stopped.values():
            stop.until = stop.trying_until = 0.0
    limits.hset(keys.account_stop("production", "openai"), mapping={"until": 1, "probe": 1})


async def test_after_a_minute_one_call_of_the_fleet_tries_the_account(limits: redis.Redis, redis_url: str):
    async with fleet(redis_url) as every:
        for pod in every[:2]:
            await call(pod, "gpt", NO_QUOTA)
        await eventually(lambda: refused_everywhere(every))
        for _ in range(2):
            end_the_stop(limits, every)
            # All at once: one may, and it is refused by the vendor again.
            asked = [(pod, pool) for pod in every for pool in ("gpt", "mini", "gpt")]
            ended = await asyncio.gather(
                *[pod.admission.admit_call(pool) for pod, pool in asked], return_exceptions=True
            )
            probes = [
                (pod, one) for (pod, _), one in zip(asked, ended, strict=True) if not isinstance(one, Refused)
            ]
            assert len(probes) == 1
            pod, permit = probes[0]
            assert not isinstance(permit, BaseException)
            pod.admission.report(permit, *judge_permitted(permit, NO_QUOTA))
            until = await eventually(
                lambda: int(limits.hget(keys.account_stop("production", "openai"), "until") or 1),
                accept=lambda until: until > 1,
            )
            assert until > 10**15
            assert await refused_everywhere(every)
        end_the_stop(limits, every)
        assert await call(every[2], "mini") is None
        await eventually(lambda: not any(pod.admission.calls.stops.stopped for pod in every))
        for pod in every:
            assert await call(pod, "gpt") is None


async def test_without_redis_each_pod_tries_the_account_once_a_minute(limits: redis.Redis, redis_url: str):
    async with fleet(redis_url, 1) as (pod,):
        await call(pod, "gpt", NO_QUOTA)
        pod.admission.store.pretend(Drill(id=1, kind=DrillKind.GONE, remaining_ms=60_000), asked=monotonic())
        await eventually(lambda: pod.admission.health.mode is Mode.LOCAL)
        assert await refused_everywhere([pod])
        for stop in pod.admission.calls.stops.stopped.values():
            stop.until = 0.0
        ended = await asyncio.gather(*[call(pod, "mini", NO_QUOTA) for _ in range(5)])
        assert [one is None for one in ended].count(True) == 1
        assert await refused_everywhere([pod])


async def test_a_pod_that_comes_back_learns_of_the_stop(limits: redis.Redis, redis_url: str):
    async with fleet(redis_url, 1) as (pod,):
        await call(pod, "gpt", NO_QUOTA)
        await eventually(lambda: limits.hexists(keys.account_stop("production", "openai"), "until"))
        async with running(redis_url, "web-9", configured(WITH_ACCOUNTS, live_servers=2)) as other:
            await eventually(lambda: refused_everywhere([other]))


async def test_a_pool_that_leaves_the_account_is_called_again(limits: redis.Redis, redis_url: str):
    async with fleet(redis_url, 1) as (pod,):
        await call(pod, "gpt", NO_QUOTA)
        moved = replace(WITH_ACCOUNTS, accounts=(Account(name="openai", pools=("gpt", "claude")),))
        give(pod.configuration, moved, revision=8)
        assert await call(pod, "mini") is None
        assert await call(pod, "claude") is not None


def test_no_dependency_is_named_like_a_message_about_an_account():
    assert not is_slug(account_stops.PREFIX.decode() + "openai")
