"""``learn.lua`` is exact under any reports, and every bug in it is noticed."""

from collections.abc import Callable, Iterator

import pytest
import redis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import Script, read_script
from tests.agents import test_learn_lua
from tests.agents.models import learner
from tests.agents.models.learning_machine import learning_machine
from tests.agents.models.mutant import Mutant
from tests.agents.models.test_models import THOROUGH
from tests.agents.scripts import VIRTUAL_CLOCK

HUNT = settings(
    max_examples=300,
    stateful_step_count=30,
    deadline=None,
    database=None,
    derandomize=True,
    phases=[Phase.generate],
    verbosity=Verbosity.quiet,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)
#: What is wrong, and the edit of the script.
BUGS = {
    "two steps in a tick": ("if now >= s.next then step(s) end", "step(s)"),
    "above the configured limit": (
        "s.limit = max(lowest, min(bound, s.limit))",
        "s.limit = max(lowest, s.limit)",
    ),
    "below the floor": ("s.limit = max(lowest, min(bound, s.limit))", "s.limit = min(bound, s.limit)"),
    "half of it in a step": ("MOST_DOWN = 0.3", "MOST_DOWN = 0.5"),
    "the worst pod counts": ("if #names > 1 then refused =", "if false then refused ="),
    "a pod counts as often as it says": ("local part = min(1, most / pod[2])", "local part = 1"),
    "one pod of many states a number": ("or most >= 2 and", "or most >= 1 and"),
    "a number of one pod, while the others hear none": ("pods == 1 and silent == 0", "pods == 1"),
    "a pod that called long ago hears none": ("now - pod[7] <= HEARD * tick then", "true then"),
    "a number of few pods": ("and 2 * most >= pods", ""),
    "refusals before a step count again": (
        "if not rests and not waits then table.insert",
        "if not waits then table.insert",
    ),
    "it rises while it rests": ("s.limit < bound and not rests", "s.limit < bound"),
    "refusals are forgotten after a tick": ("while #s.window > WINDOW do", "while #s.window > 1 do"),
    "a step keeps its refusals": ("now + HELD * tick, {}, 2", "now + HELD * tick, s.window, 2"),
    "it rises while nothing binds": ("share <= FEW and binds and", "share <= FEW and"),
    "it rises while calls are refused": ("elseif share <= FEW and", "elseif"),
    "it never rises": ("if limit > s.limit then s.limit, s.why = limit, 3 end", ""),
    "it comes back at once": ("BACK, HEARD = 6, 2, 18, 60", "BACK, HEARD = 6, 2, 2, 60"),
    "a number counts for ever": ("and now - pod[6] <= HEARD * tick then", "then"),
    "calls of a tick count in the next": ("elseif not waits then", "elseif false then"),
    "a pod that reports alone is the only one": ("#names == 1 and several > 1", "false"),
    "what a pod reports alone is forgotten": ("elseif not waits then", "else"),
    "a pod that called once counts for ever": ("and now - pod[7] <= WINDOW * tick then", "then"),
    "a raised number is ignored": ("if bound > s.bound and", "if false and"),
    "the clock of another node stops it": (
        "s.next, s.held = min(s.next, now + tick)",
        "s.next, s.held = s.next",
    ),
}
MUTANTS = [Mutant(name, "learn", old, new) for name, (old, new) in BUGS.items()]


def test_what_is_learned_is_exact_under_any_reports(limits: redis.Redis):
    learn = read_script("learn", clock=VIRTUAL_CLOCK)
    run_state_machine_as_test(learning_machine(limits, learn), settings=settings(THOROUGH, max_examples=40))


def examples() -> Iterator[Callable[[redis.Redis], object]]:
    for name, kind in vars(test_learn_lua).items():
        if name.startswith("Test"):
            yield from (getattr(kind(), test) for test in dir(kind) if test.startswith("test_"))


def noticed_by(client: redis.Redis, learn: Script) -> str:
    """Who noticed that the script is wrong; empty when nobody did."""
    for example in examples():
        client.flushall()
        try:
            example(client)
        except Exception:
            return "an example"
    try:
        run_state_machine_as_test(learning_machine(client, learn), settings=HUNT)
    except Exception:
        return "the model"
    return ""


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_noticed(
    limits: redis.Redis,
    mutant: Mutant,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
):
    script = read_script("learn", clock=VIRTUAL_CLOCK)
    assert script.text.count(mutant.old) == 1, f"{mutant.name!r} no longer matches the script"
    wrong = Script(name="learn", text=script.text.replace(mutant.old, mutant.new), sha="0" * 40)
    limits.script_load(wrong.text)  # one that does not compile proves nothing
    monkeypatch.setattr(learner, "read_script", lambda name, *, clock: wrong)
    by = noticed_by(limits, wrong)
    record_property("noticed_by", by)
    assert by, f"nobody noticed: {mutant.name}"


def test_the_unchanged_script_passes_the_examples(limits: redis.Redis):
    """Or every mutant would be noticed for free."""
    for example in examples():
        limits.flushall()
        example(limits)
