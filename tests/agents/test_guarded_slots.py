"""Every path of a guarded call frees its slot, also when the settings change."""

import asyncio
import gc
from typing import Any

import msgspec
import pytest

from fuseboard.admission.call_guard import RECLAIM_S
from fuseboard.admission.pod_breakers import PodBreakers
from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.contract.protection import CallProtection, LocalRate, Observe, PodProtection
from fuseboard.contract.words import CallTier, Outcome
from tests.agents.guarded_pods import (
    CRITICAL,
    SMALL,
    Make,
    admitted,
    answer_all,
    guard_of,
    slots,
    tokens,
)
from tests.agents.models.pods import NAME, Call, Pod
from tests.agents.servers import give


class TestEveryPathFreesTheSlot:
    @pytest.mark.parametrize("outcome", list(Outcome))
    def test_a_report_and_a_second_one(self, make_pod: Make, outcome: Outcome):
        pod = make_pod()
        call, other = admitted(pod), admitted(pod, tier="standard")
        pod.report(call, outcome)
        pod.report(call, outcome)
        assert slots(pod) == 1
        assert tokens(pod) == 998  # a call that was made keeps its token
        pod.report(other, outcome)
        assert slots(pod) == guard_of(pod).in_flight == 0

    def test_a_call_that_was_not_made_also_returns_its_token(self, make_pod: Make):
        pod = make_pod()
        permit = admitted(pod).permit
        assert permit is not None
        for _ in range(2):
            pod.run(lambda: pod.admission.undo(permit))
        pod.run(lambda: pod.admission.report(permit, Outcome.NEUTRAL))
        assert slots(pod) == 0
        assert tokens(pod) == 1_000

    def test_a_call_that_was_made_cannot_be_taken_back(self, make_pod: Make):
        """``give_back`` after ``report`` put back the token of a call that was made."""
        pod = make_pod()
        call = admitted(pod)
        permit = call.permit
        assert permit is not None
        pod.report(call, Outcome.OK)
        pod.run(lambda: pod.admission.undo(permit))
        assert slots(pod) == 0
        assert tokens(pod) == 999

    def test_cancelled_while_it_waits(self, make_pod: Make):
        pod = make_pod()
        first = admitted(pod)
        waiting = pod.call()
        pod.run(waiting.task.cancel)
        pod.report(first, Outcome.OK)
        assert slots(pod) == guard_of(pod).waiting == 0

    def test_cancelled_while_redis_is_asked(self, make_pod: Make):
        pod = make_pod()
        call = pod.call()
        pod.run(call.task.cancel)
        assert slots(pod) == 0
        assert tokens(pod) == 1_000
        answer_all(pod)

    def test_a_defect_in_the_question(self, make_pod: Make, monkeypatch: pytest.MonkeyPatch):
        pod = make_pod()

        def defect(*_: object) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(pod.admission.calls.batcher, "ask", defect)
        call = pod.call()
        assert isinstance(call.task.exception(), ZeroDivisionError)
        assert slots(pod) == 0
        assert tokens(pod) == 1_000

    def test_a_forgotten_permit(self, make_pod: Make):
        pod = make_pod()
        waiting: list[Call] = []

        def forget() -> None:
            call = pod.call()
            answer_all(pod)
            assert call.permit is not None
            waiting.append(pod.call())
            assert waiting[0].waits

        forget()
        gc.collect()
        pod.run(lambda: None)
        answer_all(pod)
        assert waiting[0].permit is not None
        assert slots(pod) == 1

    def test_a_permit_that_is_kept_and_never_reported(self, make_pod: Make):
        pod = make_pod()
        kept = admitted(pod)
        pod.pass_time(RECLAIM_S - 10)
        pod.call()
        assert guard_of(pod).reclaimed == 0
        pod.pass_time(11)
        admitted(pod)  # finds no slot, and looks for such calls
        assert guard_of(pod).reclaimed == pod.admission.guards.loads()[0].reclaimed == 1
        pod.report(kept, Outcome.OK)
        assert slots(pod) == 1  # the late report moves nothing

    def test_a_stop_lets_waiting_calls_pass(self, make_pod: Make):
        pod = make_pod()
        first = admitted(pod)
        waiting = [pod.call(), pod.call()]
        pod.run(lambda: pod.admission.guards.stop())
        answer_all(pod)
        assert all(call.permit is not None for call in waiting)
        for call in (first, *waiting):
            pod.report(call, Outcome.OK)

    def test_after_a_stop_a_new_configuration_makes_no_call_wait(self, make_pod: Make):
        """A new configuration switched bulkheads on again for the last calls."""
        pod = make_pod()
        pod.run(lambda: pod.admission.guards.stop())
        policy = pod.configuration.snapshot.policy
        pod.run(lambda: give(pod.configuration, policy, revision=8))
        assert all(admitted(pod).permit is not None for _ in range(5))

    def test_a_patient_call_holds_no_slot_while_it_sleeps(
        self, make_pod: Make, monkeypatch: pytest.MonkeyPatch
    ):
        """Nothing sleeps while it holds a slot."""
        pod = make_pod()
        held: list[int] = []
        sleep = asyncio.sleep

        async def observed(delay: float, *rest: Any) -> Any:
            if delay:
                held.append(slots(pod))
            return await sleep(delay, *rest)

        call = pod.call(wait_s=2.0)
        monkeypatch.setattr(asyncio, "sleep", observed)
        pod.answer("closed", 1, cooling=True)
        assert call.waits
        assert held == [0]
        assert tokens(pod) == 1_000
        pod.pass_time(1.2)
        answer_all(pod)
        assert call.permit is not None
        assert slots(pod) == 1


class TestSettings:
    def publish(self, pod: Pod, protection: CallProtection | None, revision: int = 8) -> None:
        policy = pod.configuration.snapshot.policy
        payments = msgspec.structs.replace(policy.dependencies[0], protection=protection)
        policy = msgspec.structs.replace(policy, dependencies=(payments,))
        pod.run(lambda: give(pod.configuration, policy, revision=revision))

    def test_more_slots_admit_those_that_wait(self, make_pod: Make):
        pod = make_pod()
        admitted(pod)
        waiting = [pod.call(), pod.call()]
        larger = msgspec.structs.replace(SMALL, max_concurrent=9)
        self.publish(pod, msgspec.structs.replace(CRITICAL, bulkhead=larger))
        answer_all(pod)
        assert all(call.permit is not None for call in waiting)
        assert waiting[0].permit.decision.revision == 8  # decided by the rules of now

    def test_fewer_slots_drop_none_that_waits(self, make_pod: Make):
        larger = msgspec.structs.replace(SMALL, max_concurrent=9)
        pod = make_pod(msgspec.structs.replace(CRITICAL, bulkhead=larger))
        calls = [admitted(pod) for _ in range(5)]
        waiting = [pod.call(), pod.call()]
        self.publish(pod, CRITICAL)
        for call in calls[:-1]:
            pod.report(call, Outcome.OK)
            assert all(call.waits for call in waiting)
        pod.report(calls[-1], Outcome.OK)
        assert slots(pod) == 1
        assert not waiting[0].waits or pod.store.asked

    def test_without_protection_waiting_calls_pass_and_old_ones_end(self, make_pod: Make):
        pod = make_pod()
        first, waiting = admitted(pod), pod.call()
        self.publish(pod, None)
        answer_all(pod)
        assert waiting.permit is not None
        assert pod.admission.guards.find(NAME) is None
        assert admitted(pod).permit.slot is None  # type: ignore[union-attr]
        self.publish(pod, CRITICAL, revision=9)
        assert slots(pod) == 2  # those of before still count
        for call in (first, waiting):
            pod.report(call, Outcome.OK)
        assert slots(pod) == 0

    def test_observe_mode_decides_and_counts_and_refuses_nothing(self, make_pod: Make):
        until = 2**52
        protection = CallProtection(
            tier=CallTier.CRITICAL, bulkhead=SMALL, local_rate=LocalRate(limit=4, window_ms=60_000)
        )
        observe = Observe(bulkhead_until_us=until, local_rate_until_us=until)
        pod = make_pod(protection, PodProtection(observe=observe))
        calls = [admitted(pod) for _ in range(6)]
        [load] = pod.admission.guards.loads()
        # Slot 1, places 2 and 3 of the queue, then 3 that are full; 2 above the rate.
        assert load.observed == 3 + 2
        assert load.tiers[0].full == 3
        assert (load.tiers[0].active, load.tiers[0].limit) == (6, 1)
        assert not pod.counters.wire().dependencies
        assert pod.admission.guards.queue_timeout_s(NAME) is None
        for call in calls:
            pod.report(call, Outcome.OK)
        assert slots(pod) == 0

    def test_observe_mode_ends_by_the_clock_of_the_store(self, make_pod: Make):
        observe = Observe(bulkhead_until_us=1)
        pod = make_pod(CRITICAL, PodProtection(observe=observe))
        admitted(pod)
        assert [pod.call().waits for _ in range(3)] == [True, True, False]

    def test_two_threads_that_need_a_breaker_get_the_same_one(
        self, make_pod: Make, monkeypatch: pytest.MonkeyPatch
    ):
        """``resilience()`` in a worker thread makes breakers."""
        breakers = make_pod().admission.calls.breakers
        new, made = PodBreakers.new, []

        def interrupted(self: PodBreakers, name: str, *rest: Any) -> FleetBreaker:
            if not made:  # the other thread runs in the middle of this one
                made.append(None)
                made.append(breakers[name])
            return new(self, name, *rest)

        monkeypatch.setattr(PodBreakers, "new", interrupted)
        assert breakers["other"] is breakers["other"] is made[-1]

    def test_what_a_heartbeat_says(self, make_pod: Make):
        pod = make_pod()
        call, waiting = admitted(pod), pod.call()
        pod.pass_time(0.5)
        pod.report(call, Outcome.OK)
        answer_all(pod)
        [load] = pod.admission.guards.loads()
        assert load.dependency == NAME
        assert [tier.limit for tier in load.tiers] == [1, 1, 1]
        assert (load.tiers[0].entered, load.tiers[0].active, load.tiers[0].peak) == (2, 1, 1)
        assert load.mean_ms == 500
        assert load.p95_ms is not None
        assert abs(load.p95_ms - 500) < 30
        assert load.wait_p95_ms is not None
        assert load.queue_size is None
        assert waiting.permit is not None
