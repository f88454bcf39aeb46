"""A pod reports what it saw of its vendors, and decides by the numbers that ``learn.lua`` answers."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from fuseboard.admission import followed_limits
from fuseboard.admission.call_outcomes import MAX_TIMES
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
        followed._answered("vendor", LIMITS[0])([30, 1, 1, 2, 5_000, 0, 0])
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
        for reply in ([], [1], ["x"] * 7, ConnectionError("lost")):
            answered(reply)  # type: ignore[arg-type]
        assert numbers(server)["hour"] == 100
        answered([1, 1, 1, 2, 5_000, 0, 0])
        assert numbers(server)["hour"] == 20  # never below the floor
        answered([10**9, 1, 1, 3, 0, 0, 0])
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


def pool(rise_percent: int = 100, floor_percent: int = 20) -> Policy:
    """Own machines: calls may take twice as long as at best."""
    plain = policy(floor_percent, limits=(window(100, 3_600, name="hour"), slots(9, 3_600)))
    (dependency,) = plain.dependencies
    return replace(plain, dependencies=(replace(dependency, latency_rise_percent=rise_percent),))


async def test_slots_follow_the_time_of_calls(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level("INFO", "fuseboard.limits")
    async with serving(redis_url, monkeypatch) as (server, followed):
        give(server.configuration, pool(), revision=9)
        outcomes = server.admission.outcomes

        def calls_take(seconds: float, done: Callable[[], bool]) -> Callable[[], bool]:
            def look() -> bool:
                sees(server, 10, 0)
                outcomes.took["vendor"] += [seconds, seconds, 100 * seconds]
                followed.look()
                return done()

            return look

        # The lowest time is measured with few calls, and steps of 20 ms.
        await eventually(calls_take(0.02, lambda: numbers(server)["slots"] == 1), every_s=0.03)
        await eventually(calls_take(0.02, lambda: numbers(server)["slots"] == 9), every_s=0.03)
        assert outcomes.paces == {("vendor", "slots"): (20, 20)}
        permits = [await server.admission.admit_call("vendor", wait_s=60) for _ in range(9)]
        await eventually(calls_take(2.0, lambda: numbers(server)["slots"] < 9), every_s=0.03)
        assert numbers(server)["hour"] == 100
        assert "because calls take longer" in caplog.text
        (seen,) = [one for one in outcomes.seen() if one.limit == "slots"]
        assert (seen.followed, seen.took_ms, seen.lowest_ms) == (numbers(server)["slots"], 2_000, 20)
        assert len(permits) == 9
        # Nothing follows any more, and nothing is kept.
        give(server.configuration, pool(floor_percent=0), revision=10)
        assert numbers(server)["slots"] == 9
        assert outcomes.took == outcomes.paces == {}


async def test_the_time_of_a_call_is_reported_though_its_outcome_is_not_counted_yet(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with serving(redis_url, monkeypatch) as (server, followed):
        give(server.configuration, pool(), revision=9)
        followed.look()
        sent: list[tuple[object, ...]] = []
        monkeypatch.setattr(followed._store, "run", lambda script, keys, given, done: sent.append(given))
        server.admission.outcomes.took["vendor"].append(0.5)
        followed.look()
        assert [arguments[8] for arguments in sent if arguments[9]] == [500_000]


async def test_times_are_kept_where_limits_follow_them_only(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    async with serving(redis_url, monkeypatch) as (server, _):
        outcomes = server.admission.outcomes
        for revision, off in enumerate((policy(), pool(0), pool(floor_percent=0)), start=9):
            give(server.configuration, off, revision=revision)
            assert outcomes.took == {}
        give(server.configuration, pool(), revision=99)
        for outcome, failure, elapsed_s in (
            (Outcome.OK, None, 1.0),
            (Outcome.SLOW, None, 2.0),
            (Outcome.FAILURE, ("HTTP 503", ""), 3.0),
            (Outcome.FAILURE, ("timeout", ""), 4.0),
            (Outcome.NEUTRAL, None, 5.0),
            (Outcome.OK, None, None),
        ):
            permit = await server.admission.admit_call("vendor", wait_s=60)
            permit.failure = failure
            server.admission.report(permit, outcome, 0, elapsed_s)
        assert outcomes.took == {"vendor": [1.0, 2.0, 4.0]}
        outcomes.took["vendor"].extend([9.0] * MAX_TIMES)
        permit = await server.admission.admit_call("vendor", wait_s=60)
        server.admission.report(permit, Outcome.OK, 0, 1.0)
        assert len(outcomes.took["vendor"]) == MAX_TIMES + 3


@pytest.mark.parametrize("wrong_s", [-3_600, 3_600])
async def test_a_pod_whose_clock_is_wrong_makes_no_step_of_its_own(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch, wrong_s: int
):
    """Case L15: the script has the time of Redis alone, so a tick has one step, whatever a pod thinks."""
    monkeypatch.setattr(followed_limits, "TICK_S", 3_600.0)
    monkeypatch.setattr(FollowedLimits, "_later", lambda self: None)
    async with (
        running(redis_url, "web-1", configured(policy())) as one,
        running(redis_url, "web-2", configured(policy())) as other,
    ):
        found: list[list[int]] = []

        def report(server: Server) -> None:
            sees(server, 10, 9)
            server.admission.followed.look()

        for server in (one, other):
            await server.admission.admit_call("vendor")
            learn = server.admission.followed._learn

            def heard(name: str, limit: Limit, reply: Any, learn: Any = learn) -> None:
                found.append([len(found), reply[2]])
                learn(name, limit, reply)

            monkeypatch.setattr(server.admission.followed, "_learn", heard)
        report(one)
        await eventually(lambda: found)
        monkeypatch.setattr(followed_limits, "monotonic", lambda: monotonic() + wrong_s)
        for _ in range(5):
            before = len(found)
            report(other)
            await eventually(lambda before=before: len(found) > before)
        assert {steps for _, steps in found} == {0}, "no tick has passed"
