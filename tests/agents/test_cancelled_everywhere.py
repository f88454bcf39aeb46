"""A guarded call is cancelled at each step of many scenarios: it keeps neither its slot nor its token.

A scenario is a list of events: another call ends, Redis answers, time passes, settings change. The call is
cancelled in the turn of each event, and up to some turns of the loop after it. No combination is left out.
"""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from fuseboard import composition
from fuseboard.admission import call_guard, guarded_calls
from fuseboard.contract.protection import CallProtection, LocalRate, Observe, PodProtection
from fuseboard.contract.scripts import ADMIT
from fuseboard.contract.words import CallTier, Outcome
from fuseboard.protection import bulkhead
from tests.agents.guarded_pods import SMALL, Make, answer_all, guard_of, pods
from tests.agents.models.pods import NAME, Call, Pod
from tests.agents.mutating import Mutant, mutated
from tests.agents.servers import give

#: More turns of the loop than any step of a call needs.
TURNS = 6
#: In the time of a scenario, no token comes back.
PROTECTED = CallProtection(
    tier=CallTier.CRITICAL, bulkhead=SMALL, local_rate=LocalRate(limit=100, window_ms=3_600_000)
)

Event = Callable[["Scene"], object]


@dataclass
class Scene:
    """One pod, the call that is cancelled, and calls that have slots before it."""

    pod: Pod
    others: list[Call] = field(default_factory=list)

    # Events. Each does something, and lets nothing run.

    def another_ends(self) -> None:
        permit = self.others.pop(0).permit
        assert permit is not None
        self.pod.admission.report(permit, Outcome.OK)

    def redis_answers(self) -> None:
        self._answer(cooling=False)

    def redis_refuses(self) -> None:
        """The vendor asked not to be called for a second."""
        self._answer(cooling=True)

    def redis_is_lost(self) -> None:
        if self.pod.store.asked:
            self.pod.fail()

    def a_second_passes(self) -> None:
        self.pod.time.now += 1.2

    def the_wait_ends(self) -> None:
        self.pod.time.now += 5.0

    def more_slots(self) -> None:
        larger = msgspec.structs.replace(SMALL, max_concurrent=9)
        self._publish(msgspec.structs.replace(PROTECTED, bulkhead=larger))

    def no_protection(self) -> None:
        self._publish(None)

    def stop(self) -> None:
        self.pod.admission.guards.stop()

    def the_breaker_opens(self) -> None:
        breaker = self.pod.breaker
        breaker.opened(breaker.generation + 1, 60_000)

    def _answer(self, *, cooling: bool) -> None:
        """Answer one question, and the reports before it."""
        asked = self.pod.store.asked
        while asked and asked[0].script is not ADMIT:
            self.pod.answer("closed", 1)
        if asked:
            self.pod.answer("closed", 1, cooling=cooling)

    def _publish(self, protection: CallProtection | None) -> None:
        policy = self.pod.configuration.snapshot.policy
        payments = msgspec.structs.replace(policy.dependencies[0], protection=protection)
        give(self.pod.configuration, msgspec.structs.replace(policy, dependencies=(payments,)), revision=8)


@dataclass(frozen=True)
class Scenario:
    events: tuple[Event, ...]
    #: Calls of the same tier that have slots or wait already.
    before: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    protection: CallProtection = PROTECTED
    pod: PodProtection | None = None


LIMITED = msgspec.structs.replace(PROTECTED, local_rate=LocalRate(limit=2, window_ms=3_600_000))
PAYING = {"tenant": "acme", "spend_quota": True}
S = Scene
SCENARIOS = {
    "a free slot": Scenario((S.redis_answers,)),
    "Redis is lost": Scenario((S.redis_is_lost,)),
    "a queue": Scenario((S.another_ends, S.redis_answers), before=1),
    "a queue of two": Scenario((S.another_ends, S.redis_answers, S.a_second_passes), before=2),
    "the wait is too long": Scenario((S.a_second_passes, S.the_wait_ends), before=1),
    "the wait ends as a slot is free": Scenario((S.the_wait_ends, S.another_ends, S.redis_answers), before=1),
    "a deadline": Scenario((S.a_second_passes, S.another_ends), before=1, options={"deadline_s": 1.0}),
    "a patient call": Scenario(
        (S.redis_refuses, S.a_second_passes, S.redis_answers), options={"wait_s": 3.0}
    ),
    "a patient call that comes back to a queue": Scenario(
        (S.another_ends, S.redis_refuses, S.a_second_passes, S.redis_answers),
        before=1,
        options={"wait_s": 3.0},
    ),
    "a tenant that pays": Scenario((S.redis_answers, S.redis_answers), options=PAYING),
    "a tenant that pays, and is refused": Scenario((S.redis_answers, S.redis_refuses), options=PAYING),
    "a tenant that pays, and waits": Scenario(
        (S.another_ends, S.redis_answers, S.redis_answers), before=1, options=PAYING
    ),
    "the rate is spent meanwhile": Scenario(
        (S.another_ends, S.redis_answers, S.another_ends), before=2, protection=LIMITED
    ),
    "more slots": Scenario((S.more_slots, S.redis_answers), before=1),
    "no protection": Scenario((S.no_protection, S.redis_answers), before=1),
    "a stop": Scenario((S.stop, S.redis_answers), before=1),
    "the breaker opens": Scenario((S.the_breaker_opens, S.another_ends, S.redis_answers), before=1),
    "only observed": Scenario(
        (S.redis_answers,),
        before=3,
        protection=LIMITED,
        pod=PodProtection(observe=Observe(bulkhead_until_us=2**52, local_rate_until_us=2**52)),
    ),
}


def moments(scenario: Scenario) -> Iterator[tuple[int, int]]:
    """The event in whose turn the call is cancelled, and how many turns later; -1 is just before it.

    Event 0 is the begin of the call.
    """
    for event in range(len(scenario.events) + 1):
        for turns in range(-1 if event else 0, TURNS):
            yield event, turns


class Play:
    """Plays a scenario up to one event, and cancels the call there."""

    def __init__(self, make: Make, scenario: Scenario) -> None:
        self.pod = make(scenario.protection, scenario.pod)
        self.scene = Scene(self.pod)
        self.scenario = scenario
        self.guard = guard_of(self.pod)
        assert self.guard.bulkhead is not None
        self.bulkhead = self.guard.bulkhead
        for _ in range(scenario.before):
            call = self.pod.call()
            answer_all(self.pod)
            self.scene.others.append(call)
        self.all = tuple(self.scene.others)
        options = {"wait_s": 0.0, **scenario.options}
        if (deadline_s := options.pop("deadline_s", None)) is not None:
            options["until"] = self.pod.time.now + deadline_s
        self.options = options
        self.task: asyncio.Task[Any] | None = None

    def cancelled_at(self, event: int, turns: int) -> None:
        async def play() -> None:
            self.inline()
            self.task = asyncio.create_task(self.pod.admission.admit_call(NAME, **self.options))
            for what in self.scenario.events[: max(0, event - 1)]:
                await settled()
                what(self.scene)
            if event:
                await settled()
                if turns < 0:
                    self.task.cancel()
                self.scenario.events[event - 1](self.scene)
            for _ in range(turns):
                await asyncio.sleep(0)
            self.task.cancel()
            await settled()
            # Nothing is left of it in the queue, either.
            live = [call for call in (*self.scene.others, Call(self.task)) if call.waits or call.permit]
            assert self.bulkhead.in_flight + self.bulkhead.waiting == len(live)

        self.pod.loop.run_until_complete(play())
        del self.pod.run

    def inline(self) -> None:
        """What the pod does to its loop happens in the present turn."""
        self.pod.run = lambda what: what()  # type: ignore[method-assign, assignment]

    def end(self) -> None:
        """Let all calls end. Nothing is left of them but the tokens of those that were made."""
        assert self.task is not None
        answer_all(self.pod)
        self.pod.run(lambda: None)
        ours = Call(self.task)
        assert not ours.waits
        calls = [*self.all, ours]
        for call in calls:
            answer_all(self.pod)
            if call.waits:
                self.pod.run(call.task.cancel)
            if call.permit is not None:
                self.pod.report(call, Outcome.OK)
        assert self.bulkhead.in_flight == self.bulkhead.waiting == self.guard.in_flight == 0
        assert [tier.active for tier in self.bulkhead.tiers] == [0, 0, 0]
        made = sum(call.permit is not None for call in calls)
        if (rate := self.guard.local_rate) is not None:
            assert rate.left(self.pod.time.now) == max(0, rate.settings.limit - made)


async def settled() -> None:
    for _ in range(2 * TURNS):
        await asyncio.sleep(0)


@pytest.mark.parametrize("name", SCENARIOS)
def test_a_call_keeps_nothing_wherever_it_is_cancelled(make_pod: Make, name: str) -> None:
    scenario = SCENARIOS[name]
    ends = set()
    for event, turns in moments(scenario):
        play = Play(make_pod, scenario)
        play.cancelled_at(event, turns)
        assert play.task is not None
        ends.add("cancelled" if play.task.cancelled() else "done")
        play.end()
    assert "cancelled" in ends, "no moment was within the call"


FLOW_MUTANTS = [
    Mutant(
        "a call that is cancelled while Redis is asked keeps its slot",
        "                leave(bulkhead, slot_kind, error)\n            raise",
        "                pass\n            raise",
    ),
    Mutant(
        "its token too",
        "                token.put_back()\n            if slot_kind is not None",
        "                pass\n            if slot_kind is not None",
    ),
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
        "a call that waits keeps its token",
        "                token.put_back()\n            slot_kind = await",
        "                pass\n            slot_kind = await",
    ),
]
BULKHEAD_MUTANTS = [
    Mutant(
        "a slot that is granted to a cancelled call is lost",
        "                self.leave(taken)\n",
        "                pass\n",
    ),
    Mutant(
        "a cancelled call stays in the queue",
        "                del tier.waiters[waiter]\n            elif",
        "                pass\n            elif",
    ),
    Mutant(
        "a cancelled call gets a slot",
        "if not waiter.done():\n                waiter.set_result(self._take(slot_kind))",
        "self._take(slot_kind)\n"
        "            if not waiter.done():\n"
        "                waiter.set_result(slot_kind)",
    ),
]


def noticed() -> bool:
    try:
        for name in SCENARIOS:
            with contextmanager(pods)() as make:
                test_a_call_keeps_nothing_wherever_it_is_cancelled(make, name)
    except Exception:
        return True
    return False


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", FLOW_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_leak_in_the_flow_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(composition, "GuardedCalls", mutated(guarded_calls, mutant).GuardedCalls)
    assert noticed()


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", BULKHEAD_MUTANTS, ids=lambda mutant: mutant.name)
def test_a_leak_in_the_bulkhead_is_noticed(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    module = mutated(bulkhead, mutant)
    monkeypatch.setattr(call_guard, "Bulkhead", module.Bulkhead)
    monkeypatch.setattr(guarded_calls, "NoSlotError", module.NoSlotError)
    assert noticed()
