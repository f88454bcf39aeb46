"""Decisions of whole pods with a real Redis: shared, refused, remembered, reported."""

import asyncio

import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard.contract.policy import Override
from fuseboard.contract.words import BreakerState, Mode, Outcome, OverrideMode, Reason
from fuseboard.errors import Misconfigured, Refused
from tests.agents.servers import POLICY, REQUESTS, Server, configured, give, running
from tests.waiting import eventually


def commands(limits: redis.Redis, name: str = "evalsha") -> int:
    return limits.info("commandstats").get(f"cmdstat_{name}", {}).get("calls", 0)


async def fail(server: Server, times: int, outcome: Outcome = Outcome.FAILURE) -> None:
    for _ in range(times):
        permit = await server.admission.admit_call("payments")
        server.admission.report(permit, outcome)


async def refusal(server: Server) -> Reason:
    with pytest.raises(Refused) as caught:
        await server.admission.admit_call("payments")
    reason = caught.value.decision.reason
    assert reason is not None
    return reason


class TestRequests:
    async def test_callers_of_one_tick_share_one_question(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            limits.config_resetstat()
            decisions = await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(30)))
        assert [decision.allowed for decision in decisions] == [True] * 20 + [False] * 10
        assert commands(limits) == 1

    async def test_two_servers_share_one_quota(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url, "web-1") as one, running(redis_url, "web-2") as two:
            decisions = await asyncio.gather(
                *(server.admission.admit_request("acme") for server in (one, two) for _ in range(15))
            )
        assert sum(decision.allowed for decision in decisions) == 20

    async def test_a_refusal_says_why_when_and_by_which_configuration(
        self, limits: redis.Redis, redis_url: str
    ):
        async with running(redis_url) as server:
            await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(20)))
            refused = await server.admission.admit_request("acme")
        assert (refused.allowed, refused.reason, refused.rule) == (False, Reason.QUOTA, "requests")
        assert 0 < refused.retry_after_ms <= 1001
        assert (refused.revision, refused.mode, refused.server) == (7, Mode.SHARED, "web-1")
        assert refused.explain().startswith("tenant 'acme': refused (quota) by requests, try again in ")

    async def test_a_spent_quota_is_not_asked_again_before_its_time(
        self, limits: redis.Redis, redis_url: str
    ):
        async with running(redis_url) as server:
            await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(21)))
            limits.config_resetstat()
            refused = [await server.admission.admit_request("acme") for _ in range(50)]
            assert not any(decision.allowed for decision in refused)
            assert commands(limits) == 0

    async def test_suspended_unlimited_and_unregistered_tenants(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            limits.config_resetstat()
            suspended = await server.admission.admit_request("late-payer")
            assert (suspended.allowed, suspended.reason) == (False, Reason.SUSPENDED)
            assert (await server.admission.admit_request("big")).allowed
            assert commands(limits) == 0
            stranger = await server.admission.admit_request("nobody knows")
            assert [limit.name for limit in stranger.limits] == ["requests"]

    async def test_a_limit_of_zero_refuses_without_asking(self, limits: redis.Redis, redis_url: str):
        nothing = msgspec.structs.replace(REQUESTS, limit=0)
        tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(nothing,))
        policy = msgspec.structs.replace(POLICY, tiers=(tier, POLICY.tiers[1]))
        async with running(redis_url, configuration=configured(policy)) as server:
            refused = await server.admission.admit_request("acme")
        assert (refused.allowed, refused.reason, refused.retry_after_ms) == (False, Reason.QUOTA, 0)

    @pytest.mark.parametrize("cost", [0, -1, 1.5, True, "1", None])
    async def test_a_wrong_cost_is_an_error_at_once(self, limits: redis.Redis, redis_url: str, cost: object):
        async with running(redis_url, connected=False) as server:
            with pytest.raises(Misconfigured, match="cost must be a whole number"):
                await server.admission.admit_request("acme", cost)  # type: ignore[arg-type]

    async def test_a_cost_that_never_fits_is_refused_for_good(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            refused = await server.admission.admit_request("acme", 21)
        assert (refused.allowed, refused.retry_after_ms) == (False, 0)

    async def test_a_raised_quota_counts_from_the_next_decision(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(21)))
            more = msgspec.structs.replace(REQUESTS, limit=6000, burst=100)
            tier = msgspec.structs.replace(POLICY.tiers[0], quotas=(more,))
            give(
                server.configuration,
                msgspec.structs.replace(POLICY, tiers=(tier, POLICY.tiers[1])),
                revision=8,
            )
            decision = await server.admission.admit_request("acme")
        assert (decision.allowed, decision.revision) == (True, 8)

    async def test_a_restarted_script_cache_costs_no_decision(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            limits.script_flush()
            decisions = await asyncio.gather(*(server.admission.admit_request("acme") for _ in range(25)))
            assert server.counters.local_decisions == 0
        assert sum(decision.allowed for decision in decisions) == 20


class TestCalls:
    async def test_failures_trip_it_for_every_server(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url, "web-1") as one, running(redis_url, "web-2") as two:
            await fail(one, 2)
            await fail(two, 2)
            await eventually(lambda: limits.get("fb1:production:{d:payments}:breaker").startswith(b"open"))
            assert await refusal(one) is Reason.BREAKER_OPEN
            assert await refusal(two) is Reason.BREAKER_OPEN

    async def test_an_open_breaker_is_not_asked_about(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            await fail(server, 4)
            await eventually(lambda: server.admission.breaker_views()[0].state is BreakerState.OPEN)
            limits.config_resetstat()
            for _ in range(50):
                await refusal(server)
            assert commands(limits) == 0
            assert server.changes

    async def test_probes_go_out_singly_and_close_it(self, limits: redis.Redis, redis_url: str):
        quick = msgspec.structs.replace(POLICY.dependencies[0].breaker, open_ms=100, probe_lease_ms=60_000)
        payments = msgspec.structs.replace(POLICY.dependencies[0], breaker=quick)
        policy = msgspec.structs.replace(POLICY, dependencies=(payments,))
        async with running(redis_url, configuration=configured(policy)) as server:
            await fail(server, 4)
            await eventually(lambda: server.admission.breaker_views()[0].state is BreakerState.OPEN)
            await eventually(lambda: limits.time() and server.admission.breaker_views()[0].remaining_ms == 0)
            answers = await asyncio.gather(
                *(server.admission.admit_call("payments") for _ in range(10)), return_exceptions=True
            )
            probes = [answer for answer in answers if not isinstance(answer, Refused)]
            assert len(probes) == 2
            assert {a.decision.reason for a in answers if isinstance(a, Refused)} <= {
                Reason.PROBE_BUSY,
                Reason.BREAKER_OPEN,
            }
            for probe in probes:
                server.admission.report(probe, Outcome.OK)
            await eventually(lambda: server.admission.breaker_views()[0].state is BreakerState.CLOSED)
            await server.admission.admit_call("payments")

    async def test_a_cancelled_probe_gives_its_slot_back(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            limits.set("fb1:production:{d:payments}:breaker", "half_open 5 0 1 0 0 test")
            asking = [asyncio.ensure_future(server.admission.admit_call("payments")) for _ in range(2)]
            await asyncio.sleep(0)
            for caller in asking:
                caller.cancel()
            await asyncio.gather(*asking, return_exceptions=True)
            await eventually(lambda: b"=" not in limits.get("fb1:production:{d:payments}:breaker"))

    async def test_a_permit_counts_once(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            permit = await server.admission.admit_call("payments")
            for _ in range(10):
                server.admission.report(permit, Outcome.FAILURE)
            await fail(server, 1)
            await eventually(lambda: server.admission.breaker_views()[0].window_calls == 2)

    async def test_the_vendor_limit_binds_the_fleet_and_a_refusal_is_remembered(
        self, limits: redis.Redis, redis_url: str
    ):
        few = msgspec.structs.replace(POLICY.dependencies[0].vendor_limits[0], limit=5, window_ms=60_000)
        payments = msgspec.structs.replace(POLICY.dependencies[0], vendor_limits=(few,))
        policy = msgspec.structs.replace(POLICY, dependencies=(payments,))
        async with (
            running(redis_url, "web-1", configured(policy)) as one,
            running(redis_url, "web-2", configured(policy)) as two,
        ):
            answers = await asyncio.gather(
                *(server.admission.admit_call("payments") for server in (one, two) for _ in range(5)),
                return_exceptions=True,
            )
            assert sum(not isinstance(answer, Refused) for answer in answers) == 5
            limits.config_resetstat()
            assert await refusal(two) is Reason.VENDOR_LIMIT
            assert commands(limits) == 0

    async def test_the_default_breaker_guards_an_unregistered_dependency(
        self, limits: redis.Redis, redis_url: str
    ):
        async with running(redis_url) as server:
            permit = await server.admission.admit_call("new-vendor")
            server.admission.report(permit, Outcome.OK)
            assert "new-vendor" in {view.dependency for view in server.admission.breaker_views()}


class TestOverrides:
    def hold(self, server: Server, mode: OverrideMode | None, *, revision: int, reset: int = 0) -> None:
        expires = server.configuration.clock.now_us() + 60_000_000
        override = mode and Override(
            mode=mode, revision=revision, expires_at_us=expires, reason="drill", actor="olga"
        )
        payments = msgspec.structs.replace(POLICY.dependencies[0], override=override, reset_revision=reset)
        give(
            server.configuration, msgspec.structs.replace(POLICY, dependencies=(payments,)), revision=revision
        )

    async def test_forced_open_in_the_configuration_stops_calls_at_once(
        self, limits: redis.Redis, redis_url: str
    ):
        async with running(redis_url) as server:
            self.hold(server, OverrideMode.FORCED_OPEN, revision=8)
            limits.config_resetstat()
            assert await refusal(server) is Reason.FORCED_OPEN
            assert commands(limits) == 0
            self.hold(server, None, revision=9)
            await server.admission.admit_call("payments")

    async def test_forced_open_in_redis_stops_a_server_whose_configuration_is_old(
        self, limits: redis.Redis, redis_url: str
    ):
        async with running(redis_url) as server:
            far = server.configuration.clock.now_us() + 60_000_000
            limits.set("fb1:production:{d:payments}:override", f"forced_open {far} 8")
            assert await refusal(server) is Reason.FORCED_OPEN

    async def test_an_ended_override_does_not_continue_when_redis_is_lost(self, valkey: Valkey):
        async with running(valkey.url) as server:
            now = server.configuration.clock.now_us()
            with redis.Redis.from_url(valkey.url) as client:
                held = f"open {now} {now + 60_000_000} {now} 0 0 forced"
                client.set("fb1:production:{d:payments}:breaker", held)
            assert await refusal(server) is Reason.BREAKER_OPEN
            self.hold(server, OverrideMode.FORCED_OPEN, revision=8)
            self.hold(server, None, revision=9)
            valkey.stop()
            await eventually(lambda: server.admission.mode is Mode.LOCAL)
            # It is this server's turn to probe soon, and not when the hold would have ended.
            await server.admission.admit_call("payments", wait_s=10)

    async def test_a_reset_makes_servers_forget_what_they_held(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url) as server:
            await fail(server, 4)
            await eventually(lambda: server.admission.breaker_views()[0].state is BreakerState.OPEN)
            limits.delete("fb1:production:{d:payments}:breaker")
            assert await refusal(server) is Reason.BREAKER_OPEN
            self.hold(server, None, revision=8, reset=8)
            await server.admission.admit_call("payments")


def test_a_registered_dependency_is_seen_before_its_first_call(redis_url: str):
    server = Server(redis_url, "web-1", configured())
    assert [view.dependency for view in server.admission.breaker_views()] == ["payments"]
