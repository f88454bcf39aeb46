"""Hypothesis drives one pod, whose calls wait for Redis while both breakers change."""

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.agents.models.pod_machine import POLICY, PodMachine
from tests.agents.models.pods import Pod, VirtualTime

THOROUGH = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_the_pods_own_breaker_is_right_whenever_redis_answers():
    run_state_machine_as_test(PodMachine, settings=THOROUGH)


def test_a_loop_that_waits_for_an_answer_of_redis_names_it():
    time = VirtualTime()
    with time.applied():
        pod = Pod(POLICY, time)
        call = pod.call()
        with pytest.raises(AssertionError, match=r"answers to \['admit'\], for the tasks \['Task-"):
            pod.loop.run_until_complete(call.task)
        pod.close()
