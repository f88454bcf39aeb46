"""``learn.lua`` is exact under any reports, and every bug in it is noticed."""

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest
import redis
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.contract.scripts import Script, read_script
from tests.agents import test_learn_by_time, test_learn_lua
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
    "a jump is hidden by the calls before": ("bad >= 2 then share", "false then share"),
    "one refused call is a jump": ("bad >= 2 then share", "bad >= 1 then share"),
    "a pod that reports alone shows a jump": ("if not waits and bad", "if bad"),
    "the last tick alone counts": ("share = max(share, bad / made)", "share = bad / made"),
    "it rises while nothing binds": ("share <= FEW and (binds or full) and", "share <= FEW and"),
    "it rises while calls are refused": ("elseif share <= FEW and", "elseif"),
    "it never rises": ("if limit > s.limit then s.limit, s.why = limit, 3 end", ""),
    "it comes back at once": ("BACK, HEARD = 6, 2, 18, 60", "BACK, HEARD = 6, 2, 2, 60"),
    "a number counts for ever": ("and now - pod[6] <= HEARD * tick then", "then"),
    "calls of a tick count in the next": ("elseif not waits then", "elseif false then"),
    "a pod that reports alone is the only one": ("#names == 1 and calling(s) > 1", "false"),
    "what a pod reports alone is forgotten": ("elseif not waits then", "else"),
    "a pod that called once counts for ever": ("and now - pod[7] <= WINDOW * tick then", "then"),
    "a raised number is ignored": ("if bound > s.bound and", "if false and"),
    "a raised number leaves where it climbs to": ("min(bound, s.was * bound / s.bound)", "s.was"),
    "a raised number leaves how far it climbs": ("min(bound, s.fell * bound / s.bound)", "s.fell"),
    "numbers that change again and again grow": (
        "min(bound, s.was * bound / s.bound)",
        "s.was * bound / s.bound",
    ),
    "the clock of another node stops it": (
        "s.next, s.held = min(s.next, now + tick)",
        "s.next, s.held = s.next",
    ),
}
#: Bugs of limits that follow the time of calls: a name, a text of the script, and what replaces it.
BUGS_BY_TIME = {
    "slow calls change nothing": ("elseif room and room < 1 and", "elseif false and"),
    "it falls by more than calls are too slow": ("s.limit * max(1 - MOST_DOWN, room), 4", "s.limit * 0.7, 4"),
    "it falls by all that calls are too slow": ("max(1 - MOST_DOWN, room)", "room"),
    "it falls again before it can be seen": ("room < 1 and now >= s.times.held and", "room < 1 and"),
    "it rests as shortly for long calls": (
        "min(PROBE * tick, max(HELD * tick, tick + s.times.present))",
        "HELD * tick",
    ),
    "it falls while it is not used": ("and 2 * used >= s.limit then", "then"),
    "calls in progress are not counted": ("type(number) == 'number' and number or 0", "0"),
    "it rises while nothing waits": ("(binds or full)", "true"),
    "a full limit does not rise": ("(binds or full)", "binds"),
    "it rises by more than a tenth": ("1 + min(MOST_UP, (room - 1) / 2)", "1 + (room - 1)"),
    "it rises as fast with long calls": ("* min(1, tick / s.times.present)", ""),
    "it forgets what was refused": ("s.at > 0 and min(limit, most) or most", "most"),
    "it rises by time while it rests": ("now < s.times.held and 0 or", ""),
    "it rises while it measures": ("elseif by_time and (s.times.ends > 0 or", "elseif by_time and (false or"),
    "the lowest time is never measured": ("(t.base == 0 or", "(false or"),
    "the lowest time is measured once": ("now - t.near > STALE * tick and", "false and"),
    "it is measured at the configured limit, too": (
        "> STALE * tick and s.limit < ceiling)",
        "> STALE * tick)",
    ),
    "it is measured all the time": ("then t.near = now end", "then t.near = 0 end"),
    "a measurement does not end": ("if now < t.ends then return end", "do return end"),
    "a measurement ends at once": ("if now < t.ends then return end", ""),
    "a measurement is as short for long calls": ("2 * tick + 3 * slow), 5", "2 * tick), 5"),
    "a measurement has no end": ("now + min(PROBE * tick, 2 * tick + 3 * slow)", "now + 2 * tick + 3 * slow"),
    "it measures with all calls": ("s.limit * QUIET / rise or 0", "s.limit or 0"),
    "it measures below the floor": ("floor(max(lowest, t.base > 0", "floor(max(0, t.base > 0"),
    "one fast tick is the lowest time": ("t.base = min(t.base, lately)", "t.base = min(t.base, slow)"),
    "the lowest time rises": ("t.base = min(t.base, lately)", "t.base = lately"),
    "the slower of two pods decides": ("return rise * t.base / fast", "return rise * t.base / slow"),
    "the faster of two pods is the lowest time": ("local lately = max(slow,", "local lately = max(fast,"),
    "a pod alone decides for all": ("#times == 1 and calling(s) > 1", "false"),
    "a time counts for ever": ("return now - pod[2] <= max(RECENT * tick, longer)", "return true"),
    "a measurement forgets long calls": ("t.ends > 0 and min(PROBE * tick / 2, 2 * pod[1]) or 0", "0"),
    "times of before a measurement last until its end": ("min(PROBE * tick / 2, 2 * pod[1])", "PROBE * tick"),
    "a measurement without calls begins again": ("t.base > 0 and t.base or t.before end", "t.base end"),
    "a measurement without calls takes a time with a queue": (
        "t.base > 0 and t.base or t.before end",
        "t.before end",
    ),
    "the time of before is lost while it measures": ("t.ends > 0 and slow == 0 and t.before or slow", "slow"),
    "fast calls after a pause are measured": (
        "if slow <= t.base * (1 + rise) / 2 then t.near",
        "if now - t.near <= STALE * tick and slow <= t.base * (1 + rise) / 2 then t.near",
    ),
    "calls after a measurement count as before it": (
        "t.ends, t.held, s.why = slow, now, 0, now + tick + slow, 3",
        "t.ends, s.why = slow, now, 0, 3",
    ),
    "a pod that does not follow the time ends it": ("(by_time or s.times) and", "by_time and"),
    "times are kept for ever": ("times and now - times.at <= HEARD * tick and times", "times"),
    "times of another clock stay": ("pod[2] = min(pod[2], now)", ""),
}
Kind = tuple[dict[str, tuple[str, str]], ModuleType, int]
#: Bugs, the examples that may notice them, and the percent by which calls may take longer.
KINDS: tuple[Kind, ...] = ((BUGS, test_learn_lua, 0), (BUGS_BY_TIME, test_learn_by_time, 100))
MUTANTS = [
    (Mutant(name, "learn", old, new), module, rise)
    for bugs, module, rise in KINDS
    for name, (old, new) in bugs.items()
]


@pytest.mark.parametrize("rise", [0, 50, 100])
def test_what_is_learned_is_exact_under_any_reports(limits: redis.Redis, rise: int):
    learn = read_script("learn", clock=VIRTUAL_CLOCK)
    machine = learning_machine(limits, learn, rise)
    run_state_machine_as_test(machine, settings=settings(THOROUGH, max_examples=40))


def examples(module: ModuleType) -> Iterator[Callable[[redis.Redis], object]]:
    for name, kind in vars(module).items():
        if name.startswith("Test"):
            tests = [getattr(kind(), test) for test in dir(kind) if test.startswith("test_")]
            # One with parameters is played by pytest alone.
            yield from (test for test in tests if not hasattr(test, "pytestmark"))


def noticed_by(client: redis.Redis, learn: Script, module: ModuleType, rise: int) -> str:
    """Who noticed that the script is wrong; empty when nobody did."""
    for example in examples(module):
        client.flushall()
        try:
            example(client)
        except Exception:
            return "an example"
    try:
        run_state_machine_as_test(learning_machine(client, learn, rise), settings=HUNT)
    except Exception:
        return "the model"
    return ""


@pytest.mark.mutants
@pytest.mark.parametrize(("mutant", "module", "rise"), MUTANTS, ids=[mutant.name for mutant, *_ in MUTANTS])
def test_every_mutant_is_noticed(
    limits: redis.Redis,
    mutant: Mutant,
    module: ModuleType,
    rise: int,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
):
    script = read_script("learn", clock=VIRTUAL_CLOCK)
    assert script.text.count(mutant.old) == 1, f"{mutant.name!r} no longer matches the script"
    wrong = Script(name="learn", text=script.text.replace(mutant.old, mutant.new), sha="0" * 40)
    limits.script_load(wrong.text)  # one that does not compile proves nothing
    monkeypatch.setattr(learner, "read_script", lambda name, *, clock: wrong)
    by = noticed_by(limits, wrong, module, rise)
    record_property("noticed_by", by)
    assert by, f"nobody noticed: {mutant.name}"


@pytest.mark.parametrize("module", [module for _, module, _ in KINDS])
def test_the_unchanged_script_passes_the_examples(limits: redis.Redis, module: ModuleType):
    """Or every mutant would be noticed for free."""
    for example in examples(module):
        limits.flushall()
        example(limits)
