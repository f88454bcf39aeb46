"""Hypothesis drives the scripts of the backlog against an exact model; and bugs in them are noticed."""

from collections.abc import Callable
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import Script, read_script
from tests.agents.backlog_scripts import NAMES, SECOND
from tests.agents.models.backlog_machine import MAX_JOBS, backlog_machine
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


def the_lease_of_a_last_try_ends_exactly_now(machine: Any) -> None:
    """No job is ready then, and still the slot of the dead job is free."""
    machine.submit(priority=1, tokens=0, delay_s=0, deadline_s=0, size=1, max_tries=1)
    machine.take(most=1)
    assert len(machine.slots()) == 1
    machine.something_is_due(delta=0)
    machine.take(most=1)
    assert [job.tries for job in machine.those("dead")] == [1]
    assert machine.slots() == {}
    machine.every_job_is_in_exactly_one_place()


def an_expensive_job_waits_before_a_cheap_one(machine: Any) -> None:
    """The bucket has 9 tokens: after the first job, there is not enough for the second, but for the third."""
    for tokens in (9, 5, 0):
        machine.submit(priority=5, tokens=tokens, delay_s=0, deadline_s=0, size=1, max_tries=1)
    machine.take(most=3)
    assert [job.number for job in machine.those("leases")] == [0]


def a_job_dies(machine: Any) -> None:
    machine.submit(priority=10, tokens=0, delay_s=0, deadline_s=0, size=1, max_tries=1)
    machine.take(most=1)
    machine.something_is_due(delta=0)
    machine.take(most=1)


def only_jobs_that_died_until_then_return_with_all_their_tries(machine: Any) -> None:
    a_job_dies(machine)
    a_job_dies(machine)
    machine.an_operator_returns_dead_jobs(most=3, past=True)
    machine.every_job_is_in_exactly_one_place()
    machine.take(most=1)
    assert [job.number for job in machine.those("leases")] == [0]


def a_dead_job_does_not_fit_into_a_full_queue(machine: Any) -> None:
    a_job_dies(machine)
    for _ in range(MAX_JOBS):
        machine.submit(priority=1, tokens=0, delay_s=0, deadline_s=0, size=1, max_tries=1)
    machine.an_operator_returns_dead_jobs(most=1, past=False)
    machine.every_job_is_in_exactly_one_place()


def a_job_with_a_deadline_dies(machine: Any, *, left_us: int) -> None:
    """Its deadline ends that long afterwards."""
    machine.submit(priority=10, tokens=0, delay_s=0, deadline_s=40, size=1, max_tries=1)
    machine.take(most=1)
    machine.something_is_due(delta=0)
    machine.take(most=1)
    machine.time_passes(10 * SECOND - left_us)


def a_revived_job_runs_after_its_deadline(machine: Any) -> None:
    a_job_with_a_deadline_dies(machine, left_us=0)
    machine.a_person_revives_a_dead_job()
    machine.take(most=1)
    assert [job.number for job in machine.those("leases")] == [0]


def a_returned_job_keeps_a_deadline_that_has_not_passed(machine: Any) -> None:
    a_job_with_a_deadline_dies(machine, left_us=1)
    machine.an_operator_returns_dead_jobs(most=1, past=False)
    machine.time_passes(1)
    machine.take(most=1)
    assert machine.ended == {"job-0": "expired"}


def a_deleted_job_is_known_as_cancelled(machine: Any) -> None:
    a_job_dies(machine)
    machine.an_operator_deletes_dead_jobs(most=1)
    machine.every_job_is_in_exactly_one_place()
    assert machine.store.submit("job-0") == "finished"
    assert machine.store.look("job-0")[1][0].startswith(b"cancelled ")


def two_workers_take_at_the_same_moment(machine: Any) -> None:
    for _ in range(2):
        machine.submit(priority=5, tokens=0, delay_s=0, deadline_s=0, size=1, max_tries=1)
    machine.take(most=1)
    machine.take(most=1)
    assert len({job.fence for job in machine.those("leases")}) == 2


def a_cancelled_job_of_a_dead_worker_does_not_run_again(machine: Any) -> None:
    machine.submit(priority=5, tokens=0, delay_s=0, deadline_s=0, size=1, max_tries=2)
    machine.take(most=1)
    machine.cancel_job(0)
    machine.something_is_due(delta=0)
    machine.take(most=1)
    machine.every_job_is_in_exactly_one_place()
    assert machine.ended == {"job-0": "cancelled"}


def an_open_breaker_hands_out_no_job(machine: Any) -> None:
    machine.submit(priority=5, tokens=0, delay_s=0, deadline_s=0, size=1, max_tries=1)
    machine.the_breaker_opens(seconds=10)
    machine.take(most=1)
    assert [job.number for job in machine.those("ready")] == [0]


#: Random steps find these too rarely.
EXAMPLES = [
    two_workers_take_at_the_same_moment,
    a_cancelled_job_of_a_dead_worker_does_not_run_again,
    an_open_breaker_hands_out_no_job,
    the_lease_of_a_last_try_ends_exactly_now,
    an_expensive_job_waits_before_a_cheap_one,
    only_jobs_that_died_until_then_return_with_all_their_tries,
    a_dead_job_does_not_fit_into_a_full_queue,
    a_revived_job_runs_after_its_deadline,
    a_returned_job_keeps_a_deadline_that_has_not_passed,
    a_deleted_job_is_known_as_cancelled,
]


def run_example(example: Callable[[Any], None], client: redis.Redis, scripts: dict[str, Script]) -> None:
    machine = backlog_machine(client, scripts)()
    machine.begin(offset=0)
    example(machine)


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.__name__)
def test_an_example_agrees_with_the_model(limits: redis.Redis, example: Callable[[Any], None]):
    run_example(example, limits, scripts())


@pytest.mark.mutants
@pytest.mark.slow
@pytest.mark.parametrize("mutant", BACKLOG_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_in_any_script_is_noticed(limits: redis.Redis, mutant: Mutant):
    text = scripts()[mutant.script].text
    assert mutant.old in text, f"{mutant.name!r} no longer matches the script"
    bug = Script(name=mutant.script, text=text.replace(mutant.old, mutant.new), sha="0" * 40)
    limits.script_load(bug.text)  # one that does not compile proves nothing
    with pytest.raises(Exception):  # noqa: B017, PT011 - an assertion, or an error of the script
        hunt(limits, scripts() | {mutant.script: bug})


def hunt(limits: redis.Redis, buggy: dict[str, Script]) -> None:
    for example in EXAMPLES:
        run_example(example, limits, buggy)
    run_state_machine_as_test(backlog_machine(limits, buggy), settings=HUNT)
