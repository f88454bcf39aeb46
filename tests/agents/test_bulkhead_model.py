"""Slots of a bulkhead never leak: by a model, and by mutants of the code that the model must notice."""

import logging

import pytest
from hypothesis import HealthCheck, Phase, Verbosity, settings
from hypothesis.stateful import run_state_machine_as_test

from fuseboard.protection import bulkhead
from tests.agents.bulkheads import bulkhead_machine
from tests.agents.mutating import Mutant, mutated

QUICK = settings(
    max_examples=60,
    stateful_step_count=60,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(
    QUICK,
    max_examples=400,
    derandomize=True,
    phases=[Phase.generate],
    verbosity=Verbosity.quiet,
    report_multiple_bugs=False,
)


MUTANTS = [
    Mutant(
        "granted and then cancelled: the slot is lost",
        "                self.leave(taken)\n",
        "                pass\n",
    ),
    Mutant(
        "a resize grants by difference, not by what is free",
        "        while pool.in_flight < pool.limit:\n            for slot_kind",
        "        for _ in range(max(1, pool.limit - pool.in_flight)):\n            for slot_kind",
    ),
    Mutant(
        "a slot is handed to a call that was cancelled",
        "if not waiter.done():\n                waiter.set_result(self._take(slot_kind))",
        "self._take(slot_kind)\n"
        "            if not waiter.done():\n"
        "                waiter.set_result(slot_kind)",
    ),
    Mutant(
        "a new call overtakes those that wait",
        "            self._grant(pool)\n\n    def longest",
        "            self.loop.call_soon(self._grant, pool)\n\n    def longest",
    ),
    Mutant(
        "the queue is one too long",
        "len(tier.waiters) >= tier.queue_limit",
        "len(tier.waiters) > tier.queue_limit",
    ),
    Mutant("a timer is not cancelled", "            timer.cancel()\n", "            pass\n"),
    Mutant("a call leaves twice", "        pool.in_flight -= 1\n", "        pool.in_flight -= 2\n"),
    Mutant(
        "a shrink drops calls that wait",
        "        self._divide(self._steps.full)\n",
        "        self._divide(self._steps.full)\n"
        "        [waiter.cancel() for tier in self.tiers for waiter in tier.waiters]\n",
    ),
    Mutant(
        "a cancelled call stays in the queue",
        "                del tier.waiters[waiter]\n            elif",
        "                pass\n            elif",
    ),
    Mutant(
        "a larger bulkhead grants nothing",
        "tier.adaptive.resize(tier.limit)\n        self._grant_all()",
        "tier.adaptive.resize(tier.limit)",
    ),
    Mutant("the last call is served first", "popitem(last=False)", "popitem(last=True)"),
    Mutant(
        "a borrowed slot is returned to the wrong pool",
        "        tier, pool = slot_kind.tier, slot_kind.pool\n",
        "        tier, pool = slot_kind.tier, slot_kind.tier.slot_kinds[0].pool\n",
    ),
    Mutant(
        "a timeout also keeps its place",
        "        del tier.waiters[waiter]\n        if not waiter.done()",
        "        if not waiter.done()",
    ),
    Mutant("a tier alone has its share", "sum(slots) if lent.has(at) else 0", "slots[at]"),
    Mutant(
        "a new tier has no slots",
        "            self._divide()\n        for slot_kind in",
        "            pass\n        for slot_kind in",
    ),
    Mutant("a silent tier keeps its share", "        self._look()\n        if not", "        if not"),
    Mutant(
        "more calls than slots while a pool uses more than its share",
        "pool.limit = min(pool.share, pool.in_flight + max(0, free))",
        "pool.limit = pool.share",
    ),
    Mutant(
        "a slot that becomes free belongs to the tier that has too many",
        "pool.limit = min(pool.share, pool.in_flight + max(0, free))",
        "pool.limit = pool.in_flight + max(0, free)",
    ),
    Mutant(
        "a crowd never ends",
        "        else:\n            self._divide()\n\n    def longest",
        "\n    def longest",
    ),
    Mutant("waits never end", "loop.call_later(wait_s, _expire", "loop.call_later(wait_s * 10, _expire"),
]


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run logs thousands of resizes."""
    monkeypatch.setattr(logging.getLogger("fuseboard.protection"), "disabled", True)


def test_slots_never_leak():
    run_state_machine_as_test(bulkhead_machine(), settings=QUICK)


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_is_noticed(mutant: Mutant):
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the model finds
        run_state_machine_as_test(bulkhead_machine(mutated(bulkhead, mutant)), settings=HUNT)
