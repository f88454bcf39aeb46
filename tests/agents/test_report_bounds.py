"""When a pod sends outcomes, and what it learns from the answers (second review, 8 to 10, 12 and 15)."""

from collections.abc import Iterator

import pytest

from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.scripts import REPORT
from fuseboard.contract.words import BreakerState, Outcome, Reason
from tests.agents.models.pods import Call, Pod, VirtualTime

BREAKER = BreakerPolicy(consecutive_failures=3, open_ms=60_000, minimum_servers=1)


@pytest.fixture
def pod() -> Iterator[Pod]:
    time = VirtualTime()
    with time.applied():
        pod = Pod(BREAKER, time)
        yield pod
        pod.close()


def granted(pod: Pod, generation: int, dependency: str = "payments") -> Call:
    call = pod.call(dependency=dependency)
    answer_all(pod, generation)
    assert call.permit is not None
    return call


def answer_all(pod: Pod, generation: int) -> None:
    while pod.store.asked:
        pod.answer("closed", generation)


def reports(pod: Pod) -> int:
    """How many reports Redis has not answered."""
    return sum(asked.script is REPORT for asked in pod.store.asked)


def test_8_late_successes_of_an_older_generation_are_one_batch(pod: Pod):
    late = [granted(pod, 1) for _ in range(50)]
    granted(pod, 2)
    for call in late:
        pod.report(call, Outcome.OK)
    assert reports(pod) == 0
    pod.pass_time(5.0)
    assert reports(pod) == 1


def test_8_a_late_success_does_not_pass_for_one_of_this_generation(pod: Pod):
    late = granted(pod, 1)
    now = granted(pod, 2)
    pod.report(late, Outcome.FAILURE)
    pod.pass_time(0.01)
    answer_all(pod, 2)
    pod.report(now, Outcome.OK)
    assert reports(pod) == 1


def test_9_a_success_that_the_pod_decided_alone_sends_nothing_of_other_dependencies(pod: Pod):
    for _ in range(2):
        pod.report(granted(pod, 1), Outcome.OK)
        answer_all(pod, 1)
    assert pod.breaker.scheduled
    alone = pod.call(dependency="other")
    pod.pass_time(pod.deadline_s)
    pod.report(alone, Outcome.OK)
    assert reports(pod) == 0


def test_9_the_first_success_of_a_dependency_sends_nothing_of_others(pod: Pod):
    for _ in range(2):
        pod.report(granted(pod, 1), Outcome.OK)
        answer_all(pod, 1)
    pod.report(granted(pod, 1, "other"), Outcome.OK)
    assert reports(pod) == 1


def test_10_a_report_that_was_lost_is_not_believed(pod: Pod):
    first, second, third = (granted(pod, 1) for _ in range(3))
    pod.report(first, Outcome.OK)
    assert reports(pod) == 1
    pod.fail()
    pod.report(second, Outcome.OK)
    assert reports(pod) == 1
    answer_all(pod, 1)
    pod.report(third, Outcome.OK)
    assert reports(pod) == 0


def test_12_the_delay_of_an_answer_does_not_keep_a_breaker_open(pod: Pod):
    pod.report(granted(pod, 1), Outcome.FAILURE)
    pod.pass_time(0.01)
    assert reports(pod) == 1
    pod.pass_time(5.0)
    pod.answer("open", 2, late_s=5.0)
    assert pod.breaker.state is BreakerState.OPEN
    assert pod.breaker.until == pytest.approx(pod.time.now + 55.0, abs=0.001)
    assert pod.breaker.remembered is not None
    assert pod.breaker.remembered.until == pod.breaker.until


def test_15_a_new_policy_forgets_the_refusals_of_old_demands(pod: Pod):
    demand = pod.breaker.demand((("calls", 1),))
    demand.keys = (b"counter",)
    pod.breaker.refusals.remember(demand, Reason.QUOTA, "calls", pod.time.now + 1.0)
    pod.breaker.adopt(pod.breaker.dependency)
    assert not pod.breaker.refusals.by_counter
