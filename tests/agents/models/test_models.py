"""Hypothesis drives the shipped scripts against the oracles."""

import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import read_script
from tests.agents.models.machines import breaker_machine, limits_machine
from tests.agents.scripts import VIRTUAL_CLOCK

THOROUGH = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def test_limits_are_exact_under_any_interleaving(limits: redis.Redis):
    admit = read_script("admit", clock=VIRTUAL_CLOCK)
    run_state_machine_as_test(limits_machine(limits, admit), settings=THOROUGH)


def test_the_breaker_is_right_under_any_interleaving(limits: redis.Redis):
    admit, report = read_script("admit", clock=VIRTUAL_CLOCK), read_script("report", clock=VIRTUAL_CLOCK)
    run_state_machine_as_test(breaker_machine(limits, admit, report), settings=THOROUGH)
