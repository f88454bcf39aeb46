"""Calls that wait for Redis while the breaker of their pod changes (second review, 5 to 7, 13 and 14)."""

from collections.abc import Iterator

import pytest

from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.words import BreakerState, Mode, Outcome, Reason
from tests.agents.models.pods import NAME, Call, Pod, VirtualTime
from tests.agents.servers import give
from tests.agents.test_local_breaker import held_open

BREAKER = BreakerPolicy(
    consecutive_failures=3, open_ms=1_000, open_max_ms=1_000, successes_to_close=2, minimum_servers=2
)


@pytest.fixture
def pod() -> Iterator[Pod]:
    time = VirtualTime()
    with time.applied():
        pod = Pod(BREAKER, time)
        yield pod
        pod.close()


def granted(pod: Pod, calls: int) -> list[Call]:
    """Calls under way, while the breaker of the fleet is closed."""
    given = []
    for _ in range(calls):
        given.append(pod.call())
        answer_all(pod)
        assert given[-1].permit is not None
    return given


def answer_all(pod: Pod) -> None:
    while pod.store.asked:
        pod.answer("closed", 1)


def end(pod: Pod, calls: list[Call], outcome: Outcome) -> None:
    for call in calls:
        pod.report(call, outcome)


def refused(call: Call) -> Reason | None:
    assert call.refused is not None
    return call.refused.decision.reason


def test_5_a_call_that_is_granted_after_the_trip_is_refused_and_gives_back(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
):
    unused: list[object] = []
    monkeypatch.setattr(pod.breaker, "unused", lambda demand, answer: unused.append(answer))
    failing = granted(pod, 3)
    waiting = [pod.call(), pod.call()]
    assert all(call.waits for call in waiting)
    end(pod, failing, Outcome.FAILURE)
    assert pod.breaker.local.state is BreakerState.OPEN
    answer_all(pod)
    assert [refused(call) for call in waiting] == [Reason.BREAKER_OPEN] * 2
    assert len(unused) == 2


def test_a_call_that_is_granted_after_its_breaker_was_forced_open_is_refused_and_gives_back(
    pod: Pod, monkeypatch: pytest.MonkeyPatch
):
    """It got its permit, after the pod had refused a later call by the override."""
    unused: list[object] = []
    monkeypatch.setattr(pod.breaker, "unused", lambda demand, answer: unused.append(answer))
    granted(pod, 1)
    waiting = [pod.call(), pod.call()]
    configuration = pod.admission.configuration
    pod.run(lambda: give(configuration, held_open(configuration.snapshot.policy, 600), revision=99))
    assert refused(pod.call()) is Reason.FORCED_OPEN
    answer_all(pod)
    assert [refused(call) for call in waiting] == [Reason.FORCED_OPEN] * 2
    assert len(unused) == 2


def test_a_refusal_by_the_pods_own_breaker_is_a_decision_of_the_pod_alone(pod: Pod):
    """It read "in mode shared", although the fleet's breaker was closed and Redis was not asked."""
    end(pod, granted(pod, 3), Outcome.FAILURE)
    call = pod.call()
    assert refused(call) is Reason.BREAKER_OPEN
    assert call.refused is not None
    assert call.refused.decision.mode is Mode.LOCAL


def test_5_a_call_that_waited_through_the_trip_may_become_the_probe_but_only_one_does(pod: Pod):
    failing = granted(pod, 3)
    waiting = [pod.call(), pod.call()]
    end(pod, failing, Outcome.FAILURE)
    pod.breaker.local.until = pod.time.now
    answer_all(pod)
    assert waiting[0].permit is not None
    assert refused(waiting[1]) is Reason.PROBE_BUSY
    end(pod, waiting[:1], Outcome.OK)
    assert pod.breaker.local.state is BreakerState.HALF_OPEN
    assert pod.breaker.local.successes == 1


def test_6_a_call_without_an_answer_is_refused_when_the_breaker_opened_meanwhile(pod: Pod):
    failing = granted(pod, 3)
    waiting = pod.call()
    end(pod, failing, Outcome.FAILURE)
    pod.pass_time(pod.deadline_s)
    assert refused(waiting) is Reason.BREAKER_OPEN


def test_6_a_call_that_loses_redis_is_refused_when_the_fleets_breaker_was_open(pod: Pod):
    granted(pod, 1)
    waiting = pod.call()
    pod.run(lambda: pod.admission.breaker_opened(f"{NAME} 2 60000000".encode()))
    pod.in_mode(Mode.LOCAL)
    assert pod.breaker.local.state is BreakerState.OPEN
    assert refused(waiting) is Reason.BREAKER_OPEN


@pytest.mark.parametrize("how", ["cancelled", "refused"])
def test_7_a_call_from_before_the_trip_does_not_free_the_probe_of_another_call(pod: Pod, how: str):
    failing = granted(pod, 3)
    waiting = pod.call()
    end(pod, failing, Outcome.FAILURE)
    pod.breaker.local.until = pod.time.now
    probe = pod.call()
    assert probe.waits
    if how == "cancelled":
        pod.run(waiting.task.cancel)
    else:
        pod.answer("closed", 1, cooling=True)
        assert refused(waiting) is Reason.COOLING_DOWN
    assert probe.waits
    assert pod.breaker.local.probing_until > pod.time.now
    # The probe itself frees its place.
    pod.run(probe.task.cancel)
    assert pod.breaker.local.probing_until == 0


def test_13_the_log_keeps_the_figures_of_a_trip_after_a_failed_probe(pod: Pod):
    end(pod, granted(pod, 3), Outcome.FAILURE)
    figures = pod.breaker.local.figures
    assert figures == (3, 3, 0, 3)
    pod.pass_time(1.2)
    end(pod, granted(pod, 1), Outcome.FAILURE)
    assert pod.breaker.local.state is BreakerState.OPEN
    assert pod.breaker.local.figures == figures


def test_14_while_the_probe_is_out_a_waiting_call_asks_again_soon(pod: Pod):
    end(pod, granted(pod, 3), Outcome.FAILURE)
    assert refused(pod.call()) is Reason.BREAKER_OPEN
    pod.pass_time(1.2)
    probes = granted(pod, 1)
    assert refused(pod.call()) is Reason.PROBE_BUSY
    patient = pod.call(wait_s=5.0)
    assert patient.waits
    end(pod, probes, Outcome.OK)
    pod.pass_time(0.03)
    pod.answer("closed", 1)
    assert patient.permit is not None


def test_an_answer_from_before_an_announced_trip_opens_nothing_again(pod: Pod):
    """The announcement overtakes the answer: they come on two connections."""
    granted(pod, 1)
    waiting = pod.call()
    pod.pass_time(0.001)
    pod.run(lambda: pod.admission.breaker_opened(f"{NAME} 2 60000000".encode()))
    pod.answer("closed", 1)
    assert refused(waiting) is Reason.BREAKER_OPEN
    assert (pod.breaker.state, pod.breaker.generation) == (BreakerState.OPEN, 2)


def test_a_redis_that_lost_its_data_and_has_an_older_clock_is_believed(pod: Pod):
    pod.call()
    pod.answer("closed", 7)
    pod.pass_time(0.001)
    call = pod.call()
    pod.answer("closed", 5)
    assert call.permit is not None
    assert pod.breaker.generation == 5


def test_a_probe_that_was_given_up_does_not_free_the_place_of_the_next_one(pod: Pod):
    end(pod, granted(pod, 3), Outcome.FAILURE)
    pod.pass_time(1.2)
    given_up = granted(pod, 1)
    # Nothing renews it, as while the loop is blocked.
    given_up[0].permit.probe.end()
    pod.pass_time(BREAKER.probe_lease_ms / 1000)
    probe = granted(pod, 1)
    end(pod, given_up, Outcome.OK)
    assert refused(pod.call()) is Reason.PROBE_BUSY
    assert pod.breaker.local.successes == 0
    end(pod, probe, Outcome.OK)
    assert pod.breaker.local.successes == 1
