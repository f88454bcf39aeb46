"""500 calls at once to one pod, with 50 slots and 5 s in the queue."""

import asyncio
from collections import Counter

import pytest

from fuseboard.contract.protection import Bulkhead, CallProtection, LocalRate
from fuseboard.contract.words import CallTier, Mode, Outcome, WhenFull
from fuseboard.errors import Refused
from tests.agents.guarded_pods import PRESET, Make, guard_of
from tests.agents.models.pods import NAME, Pod

CALLS = 500
#: 50 slots for critical calls. The queue takes all calls: with a shorter one, most are refused at once.
PROTECTION = CallProtection(
    tier=CallTier.CRITICAL,
    bulkhead=Bulkhead(
        max_concurrent=52,
        shares=(96, 2, 2),
        queues=(CALLS, 0, 0),
        queue_timeout_ms=5_000,
        when_full=(WhenFull.QUEUE, WhenFull.ABORT, WhenFull.ABORT),
    ),
    local_rate=LocalRate(limit=80, window_ms=60_000),
)

DEFAULT = CallProtection(bulkhead=PRESET)


def burst(pod: Pod, latency_s: float) -> Counter[tuple[str, float]]:
    """What happened to the calls, and when."""
    ended: Counter[tuple[str, float]] = Counter()
    begun = pod.time.now

    def note(what: str) -> None:
        ended[what, round(pod.time.now - begun, 1)] += 1

    async def call() -> None:
        try:
            permit = await pod.admission.admit_call(NAME)
        except Refused as refused:
            note(str(refused.decision.reason))
            return
        note("made")
        await asyncio.sleep(latency_s)
        pod.admission.report(permit, Outcome.OK)

    tasks: list[asyncio.Task[None]] = []
    pod.run(lambda: tasks.extend(pod.loop.create_task(call()) for _ in range(CALLS)))
    while not all(task.done() for task in tasks):
        pod.pass_time(0.1)
        for _ in range(5):  # a call that the rate refuses hands its slot to the next one
            pod.run(lambda: None)
    return ended


CASES: list[tuple[CallProtection, float, dict[tuple[str, float], int]]] = [
    # No slot becomes free in time.
    (PROTECTION, 30.0, {("made", 0.0): 50, ("queue_timeout", 5.0): 450}),
    # At 2 s, the bucket of 80 has 30 tokens left, and 2.7 new ones.
    (PROTECTION, 2.0, {("made", 0.0): 50, ("made", 2.0): 32, ("local_rate", 2.0): 418}),
    # The form of a new dependency suggests this, to a service that names no tier.
    (DEFAULT, 30.0, {("made", 0.0): 50, ("bulkhead_full", 0.0): 420, ("queue_timeout", 5.0): 30}),
    (DEFAULT, 2.0, {("made", 0.0): 50, ("bulkhead_full", 0.0): 420, ("made", 2.0): 30}),
]


@pytest.mark.parametrize(("protection", "latency_s", "expected"), CASES)
def test_what_fits_is_made_and_the_rest_is_refused_in_time(
    make_pod: Make, protection: CallProtection, latency_s: float, expected: dict[tuple[str, float], int]
):
    pod = make_pod(protection)
    pod.in_mode(Mode.LOCAL)
    assert burst(pod, latency_s) == expected
    assert guard_of(pod).in_flight == guard_of(pod).waiting == 0
    [counts] = pod.counters.wire().dependencies
    assert sum(counts.refused.values()) == sum(
        calls for (what, _), calls in expected.items() if what != "made"
    )
    assert counts.failure == counts.slow == 0
