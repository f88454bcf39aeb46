"""The flow of calls to a dependency with a protection: its order, and its refusals."""

import msgspec
import pytest

from fuseboard.contract.protection import CallProtection, LocalRate
from fuseboard.contract.words import BreakerState, CallTier, Outcome, Reason
from tests.agents.guarded_pods import (
    BREAKER,
    CRITICAL,
    Make,
    admitted,
    answer_all,
    decision,
    permit_of,
    reason,
    slots,
    tokens,
)
from tests.agents.models.pods import NAME


class TestTheOrder:
    def test_without_a_protection_a_call_has_no_guard(self, make_pod: Make):
        pod = make_pod(None)
        call = admitted(pod)
        assert call.permit is not None
        assert call.permit.slot is None
        assert pod.admission.guards.loads() == ()

    def test_a_slot_comes_before_the_shared_question(self, make_pod: Make):
        pod = make_pod()
        admitted(pod)
        waiting = pod.call()
        assert waiting.waits
        assert not [asked for asked in pod.store.asked if asked.script.name == "admit"]
        assert slots(pod) == 1

    def test_an_open_breaker_refuses_before_a_slot_is_taken(self, make_pod: Make):
        pod = make_pod()
        calls = [admitted(pod, tier=tier) for tier in ("critical", "standard", "optional")]
        for call in calls:
            pod.report(call, Outcome.FAILURE)
        assert pod.breaker.local.state is BreakerState.OPEN
        refused = pod.call()
        assert reason(refused) is Reason.BREAKER_OPEN
        assert slots(pod) == 0
        assert tokens(pod) == 997

    def test_a_breaker_that_opens_while_a_call_waits_refuses_it(self, make_pod: Make):
        pod = make_pod()
        calls = [admitted(pod, tier=tier) for tier in ("critical", "standard", "optional")]
        waiting = pod.call()
        paying = pod.call(tenant="acme", spend_quota=True)
        for call in reversed(calls):
            pod.report(call, Outcome.FAILURE)
        assert reason(waiting) is reason(paying) is Reason.BREAKER_OPEN
        assert slots(pod) == 0
        # Also the quota of the tenant is not asked about.
        assert not [asked for asked in pod.store.asked if asked.script.name == "admit"]

    def test_each_tier_has_its_own_slots(self, make_pod: Make):
        pod = make_pod()
        admitted(pod, tier="optional")
        full = pod.call(tier="optional")
        assert reason(full) is Reason.BULKHEAD_FULL
        admitted(pod, tier="critical")
        admitted(pod, tier="standard")

    def test_a_tenant_and_other_costs_have_a_slot_too(self, make_pod: Make):
        pod = make_pod()
        for options in ({"tenant": "acme"}, {"cost": 2}, {"spend_quota": True, "tenant": "acme"}):
            call = pod.call(**options)
            while call.waits:
                pod.fail()  # decided locally
            assert call.permit is not None
            assert slots(pod) == 1
            pod.report(call, Outcome.OK)
            assert slots(pod) == 0


class TestRefusals:
    def test_a_shared_limit_knows_that_the_call_had_a_slot(self, make_pod: Make):
        """Only such a call comes back before those that wait. One that never held a slot overtook them."""
        pod = make_pod()
        asked = pod.call()
        pod.answer("open", 2)
        assert asked.refused is not None
        assert asked.refused.had_slot
        before = pod.call()
        assert before.refused is not None
        assert not before.refused.had_slot

    @pytest.mark.parametrize(
        ("took_s", "sla_ms", "expected_s"),
        [
            # No call was measured yet: the SLA, or else the time from which a call is slow.
            (None, 4_000, 8.0),
            (None, 0, 2 * BREAKER.slow_ms / 1000),
            (3.0, 4_000, 6.0),
            # The wait is never less than 1 s.
            (0.1, 4_000, 1.0),
        ],
    )
    def test_a_full_bulkhead_says_when_those_that_wait_have_ended(
        self, make_pod: Make, took_s: float | None, sla_ms: int, expected_s: float
    ):
        """Two calls wait for one slot."""
        pod = make_pod(msgspec.structs.replace(CRITICAL, sla_ms=sla_ms))
        if took_s is not None:
            call = admitted(pod)
            pod.pass_time(took_s)
            pod.report(call, Outcome.OK)
        admitted(pod)
        waiting = [pod.call(), pod.call()]
        refused = pod.call()
        assert reason(refused) is Reason.BULKHEAD_FULL
        assert expected_s * 1000 <= decision(refused).retry_after_ms <= expected_s * 1100 + 1
        assert decision(refused).rule == decision(refused).dependency == NAME
        assert all(call.waits for call in waiting)

    def test_after_an_idle_time_the_last_measured_duration_counts(self, make_pod: Make):
        pod = make_pod(msgspec.structs.replace(CRITICAL, sla_ms=100))
        call = admitted(pod)
        pod.pass_time(30.0)
        pod.report(call, Outcome.OK)
        pod.admission.guards.loads()
        pod.pass_time(60.0)
        admitted(pod)
        refused = [pod.call() for _ in range(3)][-1]
        assert 60_000 <= decision(refused).retry_after_ms <= 66_001

    def test_a_call_that_waits_too_long_is_refused_with_another_reason(self, make_pod: Make):
        pod = make_pod()
        admitted(pod)
        waiting = pod.call()
        pod.pass_time(4.99)
        assert waiting.waits
        behind = [pod.call(), pod.call()]
        pod.pass_time(0.01)
        assert reason(waiting) is Reason.QUEUE_TIMEOUT
        expected_ms = BREAKER.slow_ms  # one waits for one slot
        assert expected_ms <= decision(waiting).retry_after_ms <= 1.1 * expected_ms + 1
        assert sum(call.waits for call in behind) == 1

    def test_a_deadline_bounds_the_wait(self, make_pod: Make):
        pod = make_pod()
        admitted(pod)
        waiting = pod.call(until=pod.time.now + 1.0)
        pod.pass_time(1.0)
        assert reason(waiting) is Reason.QUEUE_TIMEOUT

    def test_a_slot_that_comes_after_the_deadline_is_not_used(self, make_pod: Make):
        """The call gets the slot in time, but the event loop is busy until the deadline has passed."""
        pod = make_pod()
        ending = admitted(pod)
        waiting = pod.call(until=pod.time.now + 1.0)

        def frees_the_slot() -> None:
            pod.admission.report(permit_of(ending), Outcome.OK)
            pod.time.now += 1.5

        pod.run(frees_the_slot)
        assert reason(waiting) is Reason.QUEUE_TIMEOUT
        assert slots(pod) == 0

    def test_the_local_rate_refuses_at_once_and_says_when(self, make_pod: Make):
        protection = CallProtection(local_rate=LocalRate(limit=2, window_ms=60_000))
        pod = make_pod(protection)
        for _ in range(2):
            pod.report(admitted(pod), Outcome.OK)
        refused = pod.call(wait_s=60.0)  # nobody waits for this bucket
        assert reason(refused) is Reason.LOCAL_RATE
        assert 29_000 < decision(refused).retry_after_ms <= 33_001
        pod.pass_time(30.0)
        admitted(pod)

    def test_they_say_nothing_about_the_dependency(self, make_pod: Make):
        pod = make_pod()
        admitted(pod)
        refused = [pod.call(tier="optional") for _ in range(50)]
        answer_all(pod)
        assert sum(call.refused is not None for call in refused) == 49
        pod.pass_time(6.0)
        assert pod.breaker.local.state is pod.breaker.state is BreakerState.CLOSED
        [counts] = pod.counters.wire().dependencies
        assert counts.refused == {Reason.BULKHEAD_FULL: 49}
        assert counts.failure == counts.slow == counts.neutral == 0

    def test_a_call_refused_by_a_shared_limit_keeps_neither_slot_nor_token(self, make_pod: Make):
        pod = make_pod()
        call = pod.call()
        assert slots(pod) == 1
        pod.answer("open", 2)
        assert reason(call) is Reason.BREAKER_OPEN
        assert slots(pod) == 0
        assert tokens(pod) == 1_000

    def test_the_shedder_of_calls_refuses_first(self, make_pod: Make):
        pod = make_pod()
        pod.admission.guarded.shed = lambda guard, tier, now: 2.0 if tier is CallTier.OPTIONAL else None
        refused = pod.call(tier="optional")
        assert reason(refused) is Reason.SHED
        assert 2000 <= decision(refused).retry_after_ms <= 2201
        admitted(pod)
