"""Random calls, cancelled wherever they wait: slots and tokens never leak."""

import asyncio
import contextlib
import gc
import random

import pytest

from fuseboard.contract.protection import Bulkhead, CallProtection, LocalRate
from fuseboard.contract.words import Mode, Outcome, WhenFull
from tests.agents.guarded_pods import (
    Make,
    admitted,
    answer_all,
    guard_of,
    slots,
    tokens,
)
from tests.agents.models.pods import Call, Pod


class Fuzzer:
    """Random steps of a pod. At the end, everything is free again."""

    def __init__(self, pod: Pod, seed: int) -> None:
        self.pod = pod
        self.random = random.Random(seed)
        self.calls: list[Call] = []
        self.made = 0

    def step(self) -> None:
        kinds = (self.begin, self.begin, self.cancel, self.answer, self.fail, self.report, self.undo)
        self.random.choice((*kinds, self.forget, self.wait, self.cancel_and_answer))()

    def pick(self, *, permitted: bool) -> Call | None:
        found = [call for call in self.calls if (call.permit is not None) == permitted]
        return self.random.choice(found) if found else None

    def begin(self) -> None:
        tier = self.random.choice(["critical", "standard", "optional", None])
        wait_s = self.random.choice([0.0, 0.0, 1.0])
        until = self.random.choice([None, self.pod.time.now + 0.5])
        options = self.random.choice([{}, {"tenant": "acme"}, {"tenant": "acme", "spend_quota": True}])
        self.calls.append(self.pod.call(wait_s, tier=tier, until=until, **options))

    def cancel(self) -> None:
        if call := self.pick(permitted=False):
            self.pod.run(call.task.cancel)
            self.calls.remove(call)

    def answer(self) -> None:
        if self.pod.store.asked:
            with contextlib.suppress(IndexError):
                self.pod.answer("closed", 1, cooling=self.random.random() < 0.2)

    def fail(self) -> None:
        if self.pod.store.asked:
            self.pod.fail()

    def cancel_and_answer(self) -> None:
        """A call is cancelled in the tick in which another ends, or Redis answers."""
        call, ending = self.pick(permitted=False), self.pick(permitted=True)
        if call is None or ending is None:
            return
        permit = ending.permit
        assert permit is not None
        both = [lambda: call.task.cancel(), lambda: self.pod.admission.report(permit, Outcome.OK)]
        self.random.shuffle(both)
        self.pod.run(lambda: [each() for each in both])
        self.calls.remove(call)
        self.calls.remove(ending)

    def report(self) -> None:
        if call := self.pick(permitted=True):
            self.pod.report(call, self.random.choice([Outcome.OK, Outcome.NEUTRAL, Outcome.SLOW]))
            self.calls.remove(call)

    def undo(self) -> None:
        if (call := self.pick(permitted=True)) is not None and (permit := call.permit) is not None:
            self.pod.run(lambda: self.pod.admission.undo(permit))
            self.pod.report(call, Outcome.NEUTRAL)
            self.calls.remove(call)

    def forget(self) -> None:
        if call := self.pick(permitted=True):
            self.calls.remove(call)

    def wait(self) -> None:
        self.pod.pass_time(self.random.choice([0.01, 0.3, 1.2]))

    def end(self) -> None:
        """Cancel what waits, and report what was admitted."""
        for call in self.calls:
            if call.waits:
                self.pod.run(call.task.cancel)
        for call in self.calls:
            if call.permit is not None:
                self.pod.report(call, Outcome.OK)
        self.calls.clear()
        gc.collect()
        self.pod.run(lambda: None)


@pytest.mark.parametrize("seed", range(60))
def test_slots_and_tokens_never_leak_wherever_a_call_is_cancelled(make_pod: Make, seed: int):
    when_full = (WhenFull.QUEUE, WhenFull.QUEUE, WhenFull.QUEUE)
    bulkhead = Bulkhead(max_concurrent=4, queues=(3, 2, 1), when_full=when_full, borrow=bool(seed % 2))
    protection = CallProtection(bulkhead=bulkhead, local_rate=LocalRate(limit=1_000_000, window_ms=3_600_000))
    pod = make_pod(protection)
    if seed % 5 == 0:
        pod.in_mode(Mode.LOCAL)
    fuzzer = Fuzzer(pod, seed)
    guard = guard_of(pod)
    assert guard.bulkhead is not None
    for _ in range(80):
        fuzzer.step()
        assert guard.bulkhead.in_flight >= guard.in_flight
        assert guard.bulkhead.in_flight <= 4
    fuzzer.end()
    assert guard.in_flight == guard.bulkhead.in_flight == guard.waiting == 0
    assert [tier.active for tier in guard.bulkhead.tiers] == [0, 0, 0]


@pytest.mark.parametrize("awaits", range(12))
def test_a_call_that_was_not_made_costs_nothing_wherever_it_is_cancelled(make_pod: Make, awaits: int):
    """Cancelled after each turn of the loop, from the first step to the permit."""
    pod = make_pod()
    first = admitted(pod)
    waiting = pod.call()
    before = tokens(pod)

    async def turns() -> None:
        pod.admission.report(first.permit, Outcome.OK)  # type: ignore[arg-type]
        for turn in range(awaits):
            await asyncio.sleep(0)
            if turn == 4 and pod.store.asked:
                break
        waiting.task.cancel()

    pod.loop.run_until_complete(turns())
    answer_all(pod)
    pod.run(lambda: None)
    if waiting.task.cancelled():
        assert slots(pod) == 0
        assert tokens(pod) == before
    else:
        pod.report(waiting, Outcome.OK)
        assert slots(pod) == 0
