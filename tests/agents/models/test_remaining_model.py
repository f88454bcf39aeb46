"""What vendors have left, and what calls cost, is charged exactly, on the real scripts in virtual time."""

import pytest
import redis
from hypothesis import settings
from hypothesis.errors import FlakyFailure
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import read_script
from tests.agents.limit_kinds import bucket, window
from tests.agents.models.mutant import Mutant
from tests.agents.models.ramp_mutants import RAMP_MUTANTS
from tests.agents.models.remaining_machine import remaining_machine
from tests.agents.models.test_models import THOROUGH
from tests.agents.models.test_mutants import HUNT, mutated
from tests.agents.scripts import VIRTUAL_CLOCK

KINDS = {
    "window": window(20, 60),
    "window of few": window(3, 60),
    "bucket": bucket(20, 20, seconds=60),
    "bucket with a rate that does not divide": bucket(7, 9, seconds=60),
}

#: Mutants in which a ramp cuts a counter that scripts can read.
CUTS = [mutant for mutant in RAMP_MUTANTS if mutant.name.startswith("a ramp cuts")]


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_vendor_has_left_is_charged_exactly(limits: redis.Redis, kind: str):
    limit: Limit = KINDS[kind]
    admit, settle = (read_script(name, clock=VIRTUAL_CLOCK) for name in ("admit", "settle"))
    machine = remaining_machine(limits, limit, admit, settle)
    run_state_machine_as_test(machine, settings=settings(THOROUGH, max_examples=60))


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", CUTS, ids=lambda mutant: mutant.name)
def test_the_model_notices_that_a_ramp_cuts_a_debt(
    limits: redis.Redis, mutant: Mutant, monkeypatch: pytest.MonkeyPatch
):
    with mutated(mutant, monkeypatch) as read:
        machine = remaining_machine(limits, bucket(20, 5, seconds=60), read("admit"), read("settle"))
    # On a busy machine, a key can expire in real time while Hypothesis repeats what failed: noticed, too.
    with pytest.raises((AssertionError, FlakyFailure)):
        run_state_machine_as_test(machine, settings=HUNT)
