"""What vendors have left is charged exactly, on the real scripts in virtual time."""

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import read_script
from tests.agents.limit_kinds import bucket, window
from tests.agents.models.remaining_machine import remaining_machine
from tests.agents.models.test_models import THOROUGH
from tests.agents.scripts import VIRTUAL_CLOCK

KINDS = {
    "window": window(20, 60),
    "window of few": window(3, 60),
    "bucket": bucket(20, 20, seconds=60),
    "bucket with a rate that does not divide": bucket(7, 9, seconds=60),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_vendor_has_left_is_charged_exactly(limits: redis.Redis, kind: str):
    limit: Limit = KINDS[kind]
    admit, settle = (read_script(name, clock=VIRTUAL_CLOCK) for name in ("admit", "settle"))
    machine = remaining_machine(limits, limit, admit, settle)
    run_state_machine_as_test(machine, settings=settings(THOROUGH, max_examples=60))
