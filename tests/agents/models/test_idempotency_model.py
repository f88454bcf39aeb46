# ruff: noqa: E501 - the text of a script is quoted as it stands
"""One owner, one answer, and nothing done that did not end; and each bug in the script is noticed."""

import pytest
import redis
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import Script, read_script
from tests.agents.models.idempotency_machine import idempotency_machine
from tests.agents.models.mutant import Mutant
from tests.agents.models.test_models import THOROUGH
from tests.agents.models.test_mutants import HUNT
from tests.agents.scripts import VIRTUAL_CLOCK

MUTANTS = [
    Mutant(name, "idempotency", old, new)
    for name, old, new in (
        ("any owner is the owner", "state == 'running' and owner == caller\n", "state == 'running'\n"),
        ("what is done has an owner still", "local mine = state == 'running' and owner", "local mine = owner"),
        ("the body does not matter", "if known ~= ARGV[5] then", "if false then"),
        ("a dead owner's body does not matter", "if known ~= ARGV[5] then", "if known ~= ARGV[5] and til > now then"),
        ("what is done runs again", "if state == 'running' or state == 'done' then", "if state == 'running' then"),
        ("what was released cannot run again", "if state == 'running' or state == 'done' then", "if state then"),
        ("two run at once", "if til > now and not mine then return", "if til > now and false then return"),
        ("a lease never ends", "if til > now and not mine then return", "if not mine then return"),
        ("a lease ends late", "if til > now and not mine then", "if til >= now and not mine then"),
        ("the owner is refused", "if til > now and not mine then", "if til > now then"),
        ("a late question begins", "if late > 0 and now > late then", "if false then"),
        ("a question in time is late", "now > late then", "now >= late then"),
        ("a repeated question gets a new number", "if not mine then fence =", "fence ="),
        ("numbers follow the clock", "math.max(fence + 1, now)", "now"),
        ("numbers begin with 1", "math.max(fence + 1, now)", "fence + 1"),
        ("the answer is lost", "sealed or answer or ''", "''"),
        ("a sealed answer is lost", "sealed or answer or ''", "answer or ''"),
        ("an earlier version finds a sealed answer", "action == 'done' and ARGV[5] or ''", "ARGV[5]"),
        ("an answer can be replaced", "if ends and state == 'done' and owner == caller then return { 'ok', fence, 0, '', now } end", "if ends and state == 'done' and owner == caller then mine = true end"),
        ("a repeated end is an error", "if ends and state == 'done' and owner == caller then", "if false then"),
        ("a stranger ends it", "if not mine then return { 'lost'", "if false then return { 'lost'"),
        ("renewing does nothing", "redis.call('HSET', KEYS[1], 'til', text(til))", ""),
        ("a request is forgotten while it runs", "'til', text(til))\n    redis.call('PEXPIRE', KEYS[1], ARGV[4])\nelseif", "'til', text(til))\nelseif"),
        ("a failed request is done", "'state', 'free'", "'state', 'done'"),
        ("a released request is remembered for ever", "    redis.call('HSET', KEYS[1], 'state', 'free')\n    redis.call('PEXPIRE', KEYS[1], ARGV[4])", "    redis.call('HSET', KEYS[1], 'state', 'free')"),
        ("a request is remembered for ever", "'print', ARGV[5], 'til', text(til))\n    redis.call('PEXPIRE', KEYS[1], ARGV[4])", "'print', ARGV[5], 'til', text(til))"),
    )
]  # fmt: skip


def test_a_request_has_one_owner_and_one_answer(limits: redis.Redis):
    script = read_script("idempotency", clock=VIRTUAL_CLOCK)
    run_state_machine_as_test(
        idempotency_machine(limits, script), settings=settings(THOROUGH, max_examples=100)
    )


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_bug_in_idempotency_is_noticed(limits: redis.Redis, mutant: Mutant):
    text = read_script("idempotency", clock=VIRTUAL_CLOCK).text
    assert mutant.old in text, f"{mutant.name!r} no longer matches the script"
    script = Script(name="idempotency", text=text.replace(mutant.old, mutant.new), sha="0" * 40)
    with pytest.raises((AssertionError, redis.ResponseError)):
        run_state_machine_as_test(
            idempotency_machine(limits, script), settings=settings(HUNT, max_examples=200)
        )
