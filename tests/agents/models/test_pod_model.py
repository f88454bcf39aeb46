"""Hypothesis drives one pod, whose calls wait for Redis while both breakers change."""

from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.agents.models.pod_machine import PodMachine

THOROUGH = settings(
    max_examples=100,
    stateful_step_count=30,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_the_pods_own_breaker_is_right_whenever_redis_answers():
    run_state_machine_as_test(PodMachine, settings=THOROUGH)
