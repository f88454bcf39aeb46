"""Bugs in the flow of guarded calls: each must be noticed by an example, or by the fuzzer."""

import inspect
import types
from collections.abc import Callable
from contextlib import contextmanager

import pytest

from fuseboard import composition
from fuseboard.admission import call_guard, guarded_calls
from tests.agents import test_guarded_calls, test_guarded_fuzz, test_guarded_slots
from tests.agents.guarded_pods import pods
from tests.agents.mutating import Mutant, mutated

FLOW = [
    Mutant(
        "a refused call keeps its slot",
        "                leave(bulkhead, slot_kind, error)\n            raise",
        "                pass\n            raise",
    ),
    Mutant(
        "a refused call keeps its token",
        "                token.put_back()\n            if slot_kind is not None",
        "                pass\n            if slot_kind is not None",
    ),
    Mutant(
        "a call that waits keeps its token",
        "                token.put_back()\n            slot_kind = await",
        "                pass\n            slot_kind = await",
    ),
    Mutant("what is observed is not counted", "            rate.observed += 1\n", "            pass\n"),
    Mutant(
        "only refusals free the slot",
        "        except BaseException as error:\n            if token",
        "        except Refused as error:\n            if token",
    ),
    Mutant(
        "a call that is refused after its wait keeps its slot",
        "            leave(bulkhead, slot_kind, error)\n            raise\n        return lane",
        "            raise\n        return lane",
    ),
    Mutant(
        "the deadline is not read again after a wait",
        "if until is not None and at >= until:",
        "if False:",
    ),
    Mutant(
        "a call that waited passes without a token",
        "            token = rate\n            if rate is not None and (wait_s := rate.take(at)):",
        "            token = None\n            if rate is not None and (wait_s := 0.0):",
    ),
    Mutant("a call loses its turn", "error.had_slot = True", "pass"),
    Mutant(
        "an open breaker is found by the question only",
        "        if refuses(lane):\n            self",
        "        if False:\n            self",
    ),
    Mutant(
        "the breaker is not read again after a wait",
        "                self._refuse_by_what_is_known(lane)\n            token",
        "                pass\n            token",
    ),
    Mutant(
        "the old rules decide after a wait",
        "lane, rate, at = self._calls.renew(lane), guard.local_rate, guard.clock()",
        "rate, at = guard.local_rate, guard.clock()",
    ),
    Mutant(
        "the rate is only looked at",
        "        token = rate = guard.local_rate\n        if rate is not None and (wait_s := rate.take(at)):",
        "        token = rate = guard.local_rate\n        if rate is not None and (wait_s := rate.peek(at)):",
    ),
    Mutant("the tier of the call is ignored", "guard.tier if tier is None else NUMBERS[tier]", "guard.tier"),
    Mutant("nothing is shed", "if self.shed is not None and (drained_s", "if False and (drained_s"),
    Mutant(
        "callers wait for the pod's own bucket",
        "OWN = frozenset((Reason.SHED,",
        "OWN = frozenset(()) or ((Reason.SHED,",
    ),
    Mutant("observe mode refuses", "if self._guards.observes_bulkheads():", "if False:"),
    Mutant("observe mode never ends", "if not self._guards.observes_local_rates():", "if False:"),
    Mutant("a deadline bounds nothing", "None if until is None else until - begun", "None"),
    Mutant("no slot is reclaimed", "        guard.reclaim()\n", "        pass\n"),
]
GUARD = [
    Mutant(
        "a call ends twice",
        "        call = self._calls.pop(number, None)\n",
        # Not left in the dictionary: ``reclaim`` would never end.
        "        call = self.ended = self._calls.pop(number, getattr(self, 'ended', None))\n",
    ),
    Mutant("a call that was not made keeps its token", "self.rate.put_back()", "pass"),
    Mutant(
        "a call that was made returns its token",
        "            if self.rate is not None:\n                self.rate.put",
        "        if self.rate is not None:\n                self.rate.put",
    ),
    Mutant("a stop does not last", "        self._stopped = True\n", "        pass\n"),
    Mutant(
        "a forgotten permit keeps its slot",
        "            self.guard.forgotten(self.number)\n",
        "            pass\n",
    ),
    Mutant("calls lose their slots early", "RECLAIM_S = 600.0", "RECLAIM_S = 0.1"),
    Mutant(
        "calls that end are not found",
        "        for guard in self.every():\n            if guard.name not in",
        "        for guard in ():\n            if guard.name not in",
    ),
    Mutant(
        "stopping leaves calls waiting",
        "            guard.switch_off()\n\n    def observes_b",
        "            pass\n\n    def observes_b",
    ),
    Mutant(
        "observe mode outlives its time",
        "until_us > 0 and self.configuration.clock.now_us() < until_us",
        "until_us > 0",
    ),
]


def run_examples() -> None:
    """Raises if a test of the flow fails."""
    for test in examples():
        with contextmanager(pods)() as make:
            test(make)
    for seed in range(6):
        with contextmanager(pods)() as make:
            test_guarded_fuzz.test_slots_and_tokens_never_leak_wherever_a_call_is_cancelled(make, seed)


def noticed() -> bool:
    try:
        run_examples()
    except Exception:
        return True
    return False


def examples() -> list[Callable[..., object]]:
    """The tests that need nothing but pods."""
    found = []
    for module in (test_guarded_calls, test_guarded_slots):
        for name, kind in vars(module).items():
            if name.startswith("Test"):
                tests = [getattr(kind(), test) for test in dir(kind) if test.startswith("test_")]
                found += [test for test in tests if [*inspect.signature(test).parameters] == ["make_pod"]]
    return found


def use(monkeypatch: pytest.MonkeyPatch, name: str, module: types.ModuleType) -> None:
    monkeypatch.setattr(composition, name, getattr(module, name))


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", FLOW, ids=lambda mutant: mutant.name)
def test_every_mutant_of_the_flow_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch):
    module = mutated(guarded_calls, mutant)
    use(monkeypatch, "GuardedCalls", module)
    monkeypatch.setattr("fuseboard.admission.admission.OWN", () if "bucket" in mutant.name else module.OWN)
    assert noticed()


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", GUARD, ids=lambda mutant: mutant.name)
def test_every_mutant_of_the_guard_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch):
    use(monkeypatch, "CallGuards", mutated(call_guard, mutant))
    assert noticed()


@pytest.mark.parametrize(("name", "module"), [("GuardedCalls", guarded_calls), ("CallGuards", call_guard)])
def test_without_a_bug_nothing_is_noticed(
    name: str, module: types.ModuleType, monkeypatch: pytest.MonkeyPatch
):
    use(monkeypatch, name, mutated(module, Mutant("no bug", f"class {name}", f"class {name}")))
    assert len(examples()) > 20
    run_examples()
