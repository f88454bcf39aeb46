"""The vendor fails; the fleet stops together, probes, and recovers."""

import time
from typing import Any

from fuseboard.contract import keys
from fuseboard.contract.breaker_state import parse_breaker
from fuseboard.contract.policy import BreakerPolicy
from fuseboard.contract.words import BreakerState, Reason
from tools.demo.scenario import DEPENDENCIES, FLAKY, STORYTELLER
from tools.demo.seed import ENVIRONMENT
from tools.demo.story.chapter import Answer, Chapter, CheckFailed, slowest

_PLAYED = next(dependency for dependency in DEPENDENCIES if dependency.name == FLAKY)
_PROBES = _PLAYED.breaker.get("probes", BreakerPolicy().probes)

#: Long enough for one failed round of probes.
_WATCHED_S = 3.0


def vendor_outage(chapter: Chapter) -> str:
    """Every call fails from one moment on; then only probes reach the vendor."""
    with chapter.watch(FLAKY, STORYTELLER) as watch:
        chapter.demo.switch(FLAKY, failure_percent=100, latency_ms=_PLAYED.latency_ms)
        failed = time.monotonic()
        times = watch.first("refuse calls to the vendor", _refused, since=failed, within_s=10)
        time.sleep(0.1)  # calls admitted before the breaker opened arrive
        before, seen = chapter.demo.vendor_calls(FLAKY), transitions(chapter)
        time.sleep(_WATCHED_S)
        received = chapter.demo.vendor_calls(FLAKY) - before
        rounds = sum(state == BreakerState.HALF_OPEN for state in transitions(chapter)[len(seen) :])
    if received > rounds * _PROBES:
        raise CheckFailed(
            f"the vendor received {received} calls in {rounds} rounds of at most {_PROBES} probes"
        )
    refused = sum(_refused(answer) for answers in watch.answers.values() for answer in answers)
    return (
        f"all pods refuse after {slowest(times)}; in the next {_WATCHED_S:.0f} s the vendor received "
        f"{received} calls ({rounds} half-open rounds of at most {_PROBES} probes), {refused} were refused"
    )


def recovery(chapter: Chapter) -> str:
    """The vendor recovers: half-open, two successful probes, closed, and every pod calls it."""
    seen = len(transitions(chapter))
    with chapter.watch(FLAKY, STORYTELLER) as watch:
        chapter.demo.switch(FLAKY, failure_percent=0, latency_ms=_PLAYED.latency_ms)
        took_ms = chapter.until(
            "the breaker closed", lambda: _state(chapter) == BreakerState.CLOSED, within_s=15
        )
        closed = time.monotonic()
        times = watch.first(
            "call the vendor again", lambda answer: not _refused(answer), since=closed, within_s=5
        )
    path = transitions(chapter)[seen:]
    if path[-2:] != [BreakerState.HALF_OPEN, BreakerState.CLOSED]:
        raise CheckFailed(f"the breaker went {' -> '.join(path)}")
    return (
        f"{' -> '.join(path)}, closed {took_ms:.0f} ms after the vendor recovered; "
        f"all pods call it {slowest(times)} later"
    )


def transitions(chapter: Chapter, dependency: str = FLAKY) -> list[str]:
    """The states the breaker entered, oldest first."""
    entries: Any = chapter.limits.xrange(keys.transitions(ENVIRONMENT, dependency))
    return [fields["to"] for _, fields in entries]


def _state(chapter: Chapter) -> BreakerState:
    text: Any = chapter.limits.get(keys.breaker(ENVIRONMENT, FLAKY))
    stored = parse_breaker(text)
    return BreakerState.CLOSED if stored is None else stored.state


def _refused(answer: Answer) -> bool:
    return answer.refused_because in (Reason.BREAKER_OPEN, Reason.PROBE_BUSY)
