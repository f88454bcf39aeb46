"""A model of guarded calls: random calls, cancellations, answers, and changes of the settings.

Hypothesis chooses the steps. After each of them, the bulkhead has exactly the slots of the calls that are
live, and at the end every slot is free and every token is back that no call was made with.
"""

import gc
from contextlib import contextmanager
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from fuseboard import composition
from fuseboard.admission import call_guard, guarded_calls
from fuseboard.admission.call_guard import RECLAIM_S
from fuseboard.contract.protection import Bulkhead, CallProtection, LocalRate
from fuseboard.contract.words import Mode, Outcome, WhenFull
from tests.agents.guarded_pods import guard_of, pods
from tests.agents.models.pods import Call
from tests.agents.mutating import Mutant, mutated
from tests.agents.servers import give

QUICK = settings(
    max_examples=40,
    stateful_step_count=40,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
)
HUNT = settings(
    QUICK, max_examples=150, derandomize=True, phases=[Phase.generate], report_multiple_bugs=False
)

#: So many that none is ever refused, and so slowly that none comes back.
TOKENS = LocalRate(limit=1_000, window_ms=3_600_000)
QUEUE, ABORT = WhenFull.QUEUE, WhenFull.ABORT
bulkheads = st.builds(
    Bulkhead,
    max_concurrent=st.integers(1, 6),
    queues=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    queue_timeout_ms=st.just(2_000),
    when_full=st.sampled_from([(QUEUE, QUEUE, QUEUE), (QUEUE, ABORT, ABORT)]),
    borrow=st.booleans(),
)
which = st.integers(0, 30)
#: How a call is asked for: plain, of a tenant, or one that also spends the tenant's quota.
askings = st.sampled_from([{}, {"tenant": "acme"}, {"tenant": "acme", "spend_quota": True}])


class Machine(RuleBasedStateMachine):
    @initialize(bulkhead=bulkheads)
    def begin(self, bulkhead: Bulkhead) -> None:
        self.closing = contextmanager(pods)()
        self.pod = self.closing.__enter__()(CallProtection(bulkhead=bulkhead, local_rate=TOKENS))
        self.guard = guard_of(self.pod)
        self.calls: list[Call] = []
        #: Calls that were made, and those that have ended but kept their slot until now.
        self.made = 0
        self.revision = 7

    def pick(self, number: int, *, permitted: bool) -> Call | None:
        found = [call for call in self.calls if (call.permit is not None) == permitted]
        return found[number % len(found)] if found else None

    # Rules

    @rule(
        tier=st.sampled_from(["critical", "standard", "optional", None]),
        asking=askings,
        wait_s=st.sampled_from([0.0, 0.0, 1.5]),
        left_s=st.sampled_from([None, None, 0.0, 0.5]),
        calls=st.integers(1, 4),
    )
    def ask(
        self, tier: str | None, asking: dict[str, Any], wait_s: float, left_s: float | None, calls: int
    ) -> None:
        until = None if left_s is None else self.pod.time.now + left_s
        for _ in range(calls):
            self.calls.append(self.pod.call(wait_s, tier=tier, until=until, **asking))

    @rule(cooling=st.booleans(), state=st.sampled_from(["closed", "closed", "open", "half_open"]))
    def answer(self, cooling: bool, state: str) -> None:
        if self.pod.store.asked:
            self.pod.answer(state, self.pod.breaker.generation or 1, cooling=cooling and state == "closed")

    @rule()
    def fail(self) -> None:
        if self.pod.store.asked:
            self.pod.fail()

    @rule(number=which)
    def cancel(self, number: int) -> None:
        if (call := self.pick(number, permitted=False)) is not None:
            self.pod.run(call.task.cancel)

    @rule(number=which, other=which, first=st.booleans())
    def cancel_as_another_ends(self, number: int, other: int, first: bool) -> None:
        waiting, ending = self.pick(number, permitted=False), self.pick(other, permitted=True)
        if waiting is None or ending is None:
            return
        permit = ending.permit
        assert permit is not None

        def both() -> None:
            if first:
                waiting.task.cancel()
            self.pod.admission.report(permit, Outcome.OK)
            if not first:
                waiting.task.cancel()

        self.pod.run(both)
        self.made += 1
        self.calls.remove(ending)

    @rule(other=which, seconds=st.sampled_from([0.5, 1.2]))
    def end_late(self, other: int, seconds: float) -> None:
        """A slot is free when calls that wait for it have no time left, but before their timers ran."""
        if (ending := self.pick(other, permitted=True)) is None:
            return
        permit = ending.permit
        assert permit is not None

        def late() -> None:
            self.pod.time.now += seconds
            self.pod.admission.report(permit, Outcome.OK)

        self.pod.run(late)
        self.made += 1
        self.calls.remove(ending)

    @rule(number=which, outcome=st.sampled_from(list(Outcome)), times=st.integers(1, 2))
    def report(self, number: int, outcome: Outcome, times: int) -> None:
        if (call := self.pick(number, permitted=True)) is not None:
            for _ in range(times):
                self.pod.report(call, outcome)
            self.made += 1
            self.calls.remove(call)

    @rule(number=which, reported=st.booleans())
    def give_back(self, number: int, reported: bool) -> None:
        if (call := self.pick(number, permitted=True)) is None or (permit := call.permit) is None:
            return
        if reported:
            self.pod.report(call, Outcome.OK)
            self.made += 1
        for _ in range(2):
            self.pod.run(lambda: self.pod.admission.undo(permit))
        self.pod.report(call, Outcome.NEUTRAL)
        self.calls.remove(call)

    @rule(number=which)
    def forget(self, number: int) -> None:
        if (call := self.pick(number, permitted=True)) is not None:
            self.made += 1
            self.calls.remove(call)
            del call
            gc.collect()
            self.pod.run(lambda: None)

    @rule(seconds=st.sampled_from([0.01, 0.5, 1.2, 2.0]))
    def wait(self, seconds: float) -> None:
        self.pod.pass_time(seconds)

    @rule()
    def reclaim(self) -> None:
        """All calls that are in flight lost their permits long ago."""
        # A question never lasts as long: a call has its slot since before it, and would be reclaimed at once.
        while self.pod.store.asked:
            self.pod.fail()
        lost = [call for call in self.calls if call.permit is not None]
        before = self.guard.reclaimed
        # A call that waits may ask again now: it finds no slot, and reclaims those of the others itself.
        self.pod.pass_time(RECLAIM_S + 1.0)
        self.pod.run(self.guard.reclaim)
        assert self.guard.reclaimed - before == len(lost)
        for call in lost:
            self.pod.report(call, Outcome.OK)  # too late: it moves nothing
            self.calls.remove(call)
        self.made += len(lost)
        self.refilled = True

    @rule(mode=st.sampled_from([Mode.LOCAL, Mode.SHARED]))
    def mode(self, mode: Mode) -> None:
        self.pod.in_mode(mode)

    @rule(bulkhead=bulkheads)
    def publish(self, bulkhead: Bulkhead) -> None:
        policy = self.pod.configuration.snapshot.policy
        protection = CallProtection(bulkhead=bulkhead, local_rate=TOKENS)
        payments = msgspec.structs.replace(policy.dependencies[0], protection=protection)
        policy = msgspec.structs.replace(policy, dependencies=(payments,))
        self.revision += 1
        self.pod.run(lambda: give(self.pod.configuration, policy, revision=self.revision))

    # Checks

    @invariant()
    def slots_are_those_of_live_calls(self) -> None:
        if not hasattr(self, "pod"):
            return
        self.calls = [call for call in self.calls if call.waits or call.permit is not None]
        bulkhead = self.guard.bulkhead
        assert bulkhead is not None
        permitted = sum(call.permit is not None for call in self.calls)
        assert self.guard.in_flight == permitted
        # The others wait for a slot, ask Redis with one, or sleep without one.
        assert permitted <= bulkhead.in_flight <= len(self.calls) - bulkhead.waiting
        assert sum(tier.active for tier in bulkhead.tiers) == bulkhead.in_flight

    def teardown(self) -> None:
        if hasattr(self, "pod"):
            try:
                self.end()
            finally:
                self.closing.__exit__(None, None, None)

    def end(self) -> None:
        for call in self.calls:
            if call.waits:
                self.pod.run(call.task.cancel)
        for call in self.calls:
            if call.permit is not None:
                self.pod.report(call, Outcome.OK)
                self.made += 1
        bulkhead, rate = self.guard.bulkhead, self.guard.local_rate
        assert bulkhead is not None
        assert rate is not None
        assert bulkhead.in_flight == bulkhead.waiting == self.guard.in_flight == 0
        if not hasattr(self, "refilled"):
            # In the time of a run, a few tokens come back: one each 3.6 s.
            assert TOKENS.limit - self.made <= rate.left(self.pod.time.now) <= TOKENS.limit - self.made + 25


MUTANTS = [
    (
        guarded_calls,
        Mutant(
            "a refused call keeps its slot",
            "                leave(bulkhead, slot_kind, error)\n            raise",
            "                pass\n            raise",
        ),
    ),
    (
        guarded_calls,
        Mutant(
            "a refused call after a wait keeps its slot",
            "            leave(bulkhead, slot_kind, error)\n            raise\n        return lane",
            "            raise\n        return lane",
        ),
    ),
    (
        call_guard,
        Mutant(
            "a forgotten permit keeps its slot",
            "            self.guard.forgotten(self.number)\n",
            "            pass\n",
        ),
    ),
    (
        call_guard,
        Mutant(
            "a call ends twice",
            "        call = self._calls.pop(number, None)\n",
            "        call = self.ended = self._calls.pop(number, getattr(self, 'ended', None))\n",
        ),
    ),
    (call_guard, Mutant("nothing is reclaimed", "            if at > oldest:\n", "            if True:\n")),
]


def test_slots_and_tokens_never_leak() -> None:
    run_state_machine_as_test(Machine, settings=QUICK)


@pytest.mark.mutants
@pytest.mark.parametrize(("module", "mutant"), MUTANTS, ids=[mutant.name for _, mutant in MUTANTS])
def test_a_mutant_is_noticed(module: object, mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    changed = mutated(module, mutant)  # type: ignore[arg-type]
    name = "GuardedCalls" if module is guarded_calls else "CallGuards"
    monkeypatch.setattr(composition, name, getattr(changed, name))
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the model finds
        run_state_machine_as_test(Machine, settings=HUNT)
