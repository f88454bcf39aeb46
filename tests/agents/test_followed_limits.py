"""A pod reports what it saw of its vendors, and decides by the numbers that ``learn.lua`` answers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic

import pytest
import redis
from msgspec.structs import replace

from fuseboard.admission import followed_limits
from fuseboard.admission.followed_limits import KEPT_S, FollowedLimits
from fuseboard.contract.policy import Dependency, Limit, Policy
from fuseboard.contract.sync import SeenLimit
from fuseboard.contract.words import Outcome, Reason
from fuseboard.errors import Refused
from tests.agents.limit_kinds import bucket, daily, slots, window
from tests.agents.servers import BREAKER, PATIENT, POLICY, Server, configured, give, running
from tests.waiting import eventually

LIMITS = (
    window(100, 3_600, name="hour"),
    bucket(1_000, 500, seconds=3_600, name="burst"),
    daily(100),
    slots(9),
)


def policy(floor_percent: int = 20, limits: tuple[Limit, ...] = LIMITS) -> Policy:
    return replace(
        POLICY,
        dependencies=(Dependency(name="vendor", vendor_limits=limits, breaker=BREAKER),),
        tuning=replace(PATIENT, vendor_floor_percent=floor_percent),
    )


@asynccontextmanager
async def serving(
    redis_url: str, monkeypatch: pytest.MonkeyPatch, floor_percent: int = 20, name: str = "web-1"
) -> AsyncIterator[tuple[Server, FollowedLimits]]:
    """Steps are 20 ms long, and the test says when the pod reports."""
    monkeypatch.setattr(followed_limits, "TICK_S", 0.02)
    monkeypatch.setattr(FollowedLimits, "_later", lambda self: None)
    configuration = configured(policy(floor_percent))
    async with running(redis_url, name, configuration=configuration) as server:
        server.admission.report(await server.admission.admit_call("vendor"), Outcome.OK, 0)
        yield server, server.admission.followed


def sees(server: Server, calls: int, refused: int, shortly: int = 0) -> None:
    """``shortly``: so many of the refusals name no time."""
    outcomes = server.admission.outcomes
    outcomes.limited_shortly["vendor"] = outcomes.limited_shortly.get("vendor", 0) + shortly
    for _ in range(calls):
        server.counters.call("vendor", Outcome.OK)
    outcomes.limited["vendor"] = outcomes.limited.get("vendor", 0) + refused


def numbers(server: Server) -> dict[str, int]:
    return {
        limit.name: limit.limit
        for limit in server.admission.calls.breakers["vendor"].dependency.vendor_limits
    }


async def fallen(server: Server, followed: FollowedLimits) -> None:
    """The vendor refuses half of the calls until a limit falls."""

    def look() -> bool:
        sees(server, 10, 5)
        followed.look()
        return numbers(server)["hour"] < 100

    await eventually(look, every_s=0.03)


async def test_limits_that_refill_fall_where_the_refusals_name_a_time(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "fuseboard.limits")
    async with serving(redis_url, monkeypatch) as (server, followed):
        await fallen(server, followed)
        await eventually(lambda: numbers(server)["burst"] < 1_000)

        async def decides_by_them() -> bool:
            # The answer to a report may come between.
            decision = (await server.admission.admit_call("vendor")).decision
            return {one.name: one.limit for one in decision.limits} == numbers(server)

        await eventually(decides_by_them)
        found = numbers(server)
        assert 20 <= found["hour"] < 100
        assert (found["daily"], found["slots"]) == (100, 9)
        burst = server.admission.calls.breakers["vendor"].dependency.vendor_limits[1]
        assert burst.burst == 500 * burst.limit // 1_000
        assert "limits.followed dependency=vendor limit=hour: 100 -> " in caplog.text
        assert "because the vendor refused calls (" in caplog.text
        seen = {one.limit: one.followed for one in server.admission.outcomes.seen()}
        assert seen == {name: found[name] for name in ("hour", "burst")}


async def test_slots_fall_where_refusals_name_no_time(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with serving(redis_url, monkeypatch) as (server, followed):
        # So long that none of these slots is free before its call ends.
        give(server.configuration, policy(limits=(*LIMITS[:3], slots(9, 3_600))), revision=9)

        def look() -> bool:
            sees(server, 10, 5, shortly=5)
            followed.look()
            return numbers(server)["slots"] == 1  # 20 % of 9

        await eventually(look, every_s=0.03)
        assert numbers(server)["daily"] == 100
        first = await server.admission.admit_call("vendor", wait_s=60)
        with pytest.raises(Refused) as refused:
            await server.admission.admit_call("vendor")
        assert (refused.value.decision.reason, refused.value.decision.rule) == (Reason.CONCURRENCY, "slots")
        server.admission.report(first, Outcome.OK, 0)
        await server.admission.admit_call("vendor", wait_s=60)


async def test_the_only_limit_is_of_slots_and_falls_whatever_the_refusals_name(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with serving(redis_url, monkeypatch) as (server, followed):
        give(server.configuration, policy(limits=(slots(9),)), revision=9)

        def look() -> bool:
            sees(server, 10, 5)
            followed.look()
            return numbers(server)["slots"] < 9

        await eventually(look, every_s=0.03)
        # The first other limit: from now on, refusals that name a time are not about the slots.
        give(server.configuration, policy(), revision=10)

        def look_again() -> bool:
            sees(server, 10, 5)
            for _ in range(5):
                server.counters.call_refused("vendor", Reason.CONCURRENCY)
            followed.look()
            return numbers(server)["slots"] == 9 and numbers(server)["hour"] < 100

        await eventually(look_again, every_s=0.03)


async def test_pods_share_one_number(limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch):
    async with (
        serving(redis_url, monkeypatch, name="web-1") as (one, first),
        serving(redis_url, monkeypatch, name="web-2") as (two, second),
    ):

        def look() -> bool:
            for server, followed in ((one, first), (two, second)):
                sees(server, 10, 5)
                followed.look()
            return numbers(one)["hour"] == numbers(two)["hour"] < 100

        await eventually(look, every_s=0.03)


async def test_it_is_off_by_default(limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch):
    async with serving(redis_url, monkeypatch, 0) as (server, followed):
        for _ in range(5):
            sees(server, 10, 10)
            followed.look()
        await server.admission.admit_call("vendor")
        assert numbers(server)["hour"] == 100
        assert limits.keys("*learned*") == []


async def test_zero_ends_it_at_once(limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch):
    async with serving(redis_url, monkeypatch) as (server, followed):
        await fallen(server, followed)
        give(server.configuration, policy(0), revision=9)
        assert numbers(server)["hour"] == 100
        assert server.admission.outcomes.seen() == ()
        decision = (await server.admission.admit_call("vendor")).decision
        assert {one.name: one.limit for one in decision.limits}["hour"] == 100


async def test_an_edit_keeps_what_is_followed_below_the_new_limit(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with serving(redis_url, monkeypatch) as (server, followed):
        await fallen(server, followed)
        before = numbers(server)["hour"]
        edited = policy()
        give(server.configuration, replace(edited, default_tier="unlimited"), revision=9)
        assert numbers(server)["hour"] == before


async def test_a_higher_floor_applies_at_once(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with serving(redis_url, monkeypatch) as (server, followed):
        followed._answered("vendor", LIMITS[0])([30, 1, 1, 2, 5_000])
        assert numbers(server)["hour"] == 30
        give(server.configuration, policy(60), revision=9)
        assert numbers(server)["hour"] == 60
        assert {one.limit: one.followed for one in server.admission.outcomes.seen()}["hour"] == 60


async def test_without_redis_the_last_number_applies_for_ten_minutes(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with serving(redis_url, monkeypatch) as (server, followed):
        await fallen(server, followed)
        monkeypatch.setattr(type(server.admission.health), "usable", property(lambda self: False))
        began = monotonic()
        monkeypatch.setattr(followed_limits, "monotonic", lambda: began + KEPT_S - 60)
        followed.look()
        assert numbers(server)["hour"] < 100
        monkeypatch.setattr(followed_limits, "monotonic", lambda: began + KEPT_S + 1)
        followed.look()
        assert numbers(server)["hour"] == 100


async def test_an_answer_that_cannot_be_read_changes_nothing(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with serving(redis_url, monkeypatch) as (server, followed):
        answered = followed._answered("vendor", LIMITS[0])
        for reply in ([], [1], ["x"] * 5, ConnectionError("lost")):
            answered(reply)  # type: ignore[arg-type]
        assert numbers(server)["hour"] == 100
        answered([1, 1, 1, 2, 5_000])
        assert numbers(server)["hour"] == 20  # never below the floor
        answered([10**9, 1, 1, 3, 0])
        assert numbers(server)["hour"] == 100


async def test_a_429_is_counted_and_an_outage_is_not(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(policy())) as server:
        outcomes = server.admission.outcomes
        for outcome, cooldown_ms in ((Outcome.NEUTRAL, 1), (Outcome.FAILURE, 1), (Outcome.NEUTRAL, 0)):
            permit = await server.admission.admit_call("vendor", wait_s=1.0)
            server.admission.report(permit, outcome, cooldown_ms)
        assert outcomes.limited == outcomes.limited_shortly == {"vendor": 1}
        permit = await server.admission.admit_call("vendor", wait_s=1.0)
        server.admission.report(permit, Outcome.NEUTRAL, 2_000)
        assert (outcomes.limited, outcomes.limited_shortly) == ({"vendor": 2}, {"vendor": 1})


def test_the_pod_reports_in_a_heartbeat_what_it_follows():
    assert SeenLimit(dependency="vendor", limit="hour", followed=70).said == 0
