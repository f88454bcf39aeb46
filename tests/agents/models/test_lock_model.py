# ruff: noqa: E501 - the text of a script is quoted as it stands
"""One holder, and numbers that rise, under any interleaving; and each bug in the script is noticed."""

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import Script, read_script
from tests.agents.models.lock_machine import lock_machine
from tests.agents.models.mutant import Mutant
from tests.agents.models.test_models import THOROUGH
from tests.agents.models.test_mutants import HUNT
from tests.agents.scripts import VIRTUAL_CLOCK

MUTANTS = [
    Mutant("an ended lock is taken still", "lock", "owner ~= '-' and til > now", "owner ~= '-' and til >= now"),
    Mutant("a released lock is taken still", "lock", "owner ~= nil and owner ~= '-' and", "owner ~= nil and"),
    Mutant("any token has the lock", "lock", "taken and owner == caller", "taken"),
    Mutant("an ended lock can be renewed", "lock", "taken and owner == caller", "owner == caller"),
    Mutant("a taken lock is taken away", "lock", "if taken and not mine or late", "if late"),
    Mutant("a late question takes it", "lock", "or late > 0 and now > late", ""),
    Mutant("a question in time is late", "lock", "now > late", "now >= late"),
    Mutant("a repeated question gets a new number", "lock", "if not mine then fence =", "fence ="),
    Mutant("numbers begin with 1", "lock", "math.max(fence + 1, now)", "fence + 1"),
    Mutant("numbers follow the clock", "lock", "math.max(fence + 1, now)", "now"),
    Mutant("renewing does nothing", "lock", "if action == 'renew' then\n    write(caller, tonumber(ARGV[3]))", "if action == 'renew' then"),
    Mutant("a release forgets the number", "lock", "    write('-', 0)", "    redis.call('DEL', KEYS[1])"),
    Mutant("the number ends with the lock", "lock", "math.ceil(valid / 1000) + ARGV[4]", "math.ceil(valid / 1000) + 1"),
    Mutant("the lock never ends", "lock", "til = now + valid", "til = now + valid + 1"),
]  # fmt: skip


def test_a_lock_has_one_holder_and_rising_numbers(limits: redis.Redis):
    script = read_script("lock", clock=VIRTUAL_CLOCK)
    run_state_machine_as_test(lock_machine(limits, script), settings=settings(THOROUGH, max_examples=100))


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_in_the_lock_is_noticed(limits: redis.Redis, mutant: Mutant):
    text = read_script("lock", clock=VIRTUAL_CLOCK).text
    assert mutant.old in text, f"{mutant.name!r} no longer matches the script"
    script = Script(name="lock", text=text.replace(mutant.old, mutant.new), sha="0" * 40)
    with pytest.raises((AssertionError, redis.ResponseError)):
        run_state_machine_as_test(lock_machine(limits, script), settings=settings(HUNT, max_examples=200))
