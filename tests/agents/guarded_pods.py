"""Pods whose dependency has a protection, in virtual time."""

from collections.abc import Callable, Iterator
from typing import Any

from fuseboard.admission.call_guard import CallGuard
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.protection import Bulkhead, CallProtection, LocalRate, PodProtection
from fuseboard.contract.words import CallTier, Reason, WhenFull
from fuseboard.decision import Decision, Permit
from tests.agents.models.pods import NAME, Call, Pod, VirtualTime

BREAKER = BreakerPolicy(consecutive_failures=3, minimum_calls=100)
#: One slot for each tier, and two places in the queue.
SMALL = Bulkhead(max_concurrent=3, queues=(2, 2, 2), queue_timeout_ms=5_000)
#: The form of a new dependency suggests this.
PRESET = Bulkhead(
    queues=(30, 30, 6),
    when_full=(WhenFull.QUEUE, WhenFull.QUEUE, WhenFull.DISCARD),
    share_idle=True,
)
CRITICAL = CallProtection(tier=CallTier.CRITICAL, bulkhead=SMALL, local_rate=LocalRate(limit=1_000))

Make = Callable[..., Pod]
#: A permit that nothing refers to frees its slot.
KEPT: list[Call] = []


def pods() -> Iterator[Make]:
    """For a fixture: makes pods, and closes them at the end."""
    time = VirtualTime()
    made: list[Pod] = []

    def make(protection: CallProtection | None = CRITICAL, pod: PodProtection | None = None) -> Pod:
        made.append(Pod(BREAKER, time, protection, pod))
        return made[-1]

    with time.applied():
        try:
            yield make
        finally:
            KEPT.clear()
            for each in made:
                each.close()


def guard_of(pod: Pod) -> CallGuard:
    guard = pod.admission.guards.find(NAME)
    assert guard is not None
    return guard


def slots(pod: Pod) -> int:
    bulkhead = guard_of(pod).bulkhead
    return bulkhead.in_flight if bulkhead is not None else 0


def tokens(pod: Pod) -> int:
    rate = guard_of(pod).local_rate
    assert rate is not None
    return rate.left(pod.time.now)


def answer_all(pod: Pod) -> None:
    while pod.store.asked:
        pod.answer("closed", 1)


def admitted(pod: Pod, **options: Any) -> Call:
    call = pod.call(**options)
    answer_all(pod)
    assert call.permit is not None
    KEPT.append(call)
    return call


def reason(call: Call) -> Reason | None:
    assert call.refused is not None
    return call.refused.decision.reason


def decision(call: Call) -> Decision:
    assert call.refused is not None
    return call.refused.decision


def permit_of(call: Call) -> Permit:
    assert call.permit is not None
    return call.permit
