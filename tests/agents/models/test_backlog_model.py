"""Hypothesis drives the scripts of the backlog against an exact model; and bugs in them are noticed."""

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import Script, read_script
from tests.agents.backlog_scripts import NAMES
from tests.agents.models.backlog_machine import backlog_machine
from tests.agents.models.backlog_mutants import BACKLOG_MUTANTS
from tests.agents.models.mutant import Mutant
from tests.agents.models.test_mutants import HUNT
from tests.agents.scripts import VIRTUAL_CLOCK

THOROUGH = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def scripts() -> dict[str, Script]:
    return {name: read_script(f"backlog_{name}", clock=VIRTUAL_CLOCK) for name in NAMES}


def test_no_job_is_lost_and_none_overtakes_under_any_interleaving(limits: redis.Redis):
    run_state_machine_as_test(backlog_machine(limits, scripts()), settings=THOROUGH)


def test_the_lease_of_a_last_try_ends_exactly_now(limits: redis.Redis):
    """No job is ready then, and still the slot of the dead job is free."""
    machine = backlog_machine(limits, scripts())()
    machine.begin(offset=0)
    machine.submit(priority=1, tokens=0, delay_s=0, deadline_s=0, size=1, max_tries=1)
    machine.take(most=1)
    assert len(machine.slots()) == 1
    machine.something_is_due(delta=0)
    machine.take(most=1)
    assert [job.tries for job in machine.those("dead")] == [1]
    assert machine.slots() == {}
    machine.every_job_is_in_exactly_one_place()


@pytest.mark.slow
@pytest.mark.parametrize("mutant", BACKLOG_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_in_any_script_is_noticed(limits: redis.Redis, mutant: Mutant):
    text = scripts()[mutant.script].text
    assert mutant.old in text, f"{mutant.name!r} no longer matches the script"
    bug = Script(name=mutant.script, text=text.replace(mutant.old, mutant.new), sha="0" * 40)
    limits.script_load(bug.text)  # one that does not compile proves nothing
    with pytest.raises(Exception):  # noqa: B017, PT011 - an assertion, or an error of the script
        run_state_machine_as_test(backlog_machine(limits, scripts() | {mutant.script: bug}), settings=HUNT)
