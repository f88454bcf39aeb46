"""What ``/metrics`` shows of a status: small, so that a scrape reads one row and not a thousand pods."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any

from controlplane.status.breakers import NO_DATA
from controlplane.status.facts import Transition
from controlplane.status.status import Status

HOUR_S = 3600.0
#: States and overrides of breakers as numbers; every other one lets calls through. What an operator forced
#: open has a number of its own: nobody is called for it.
_NUMBERS = {"open": 1, "half_open": 2, "forced_open": 3}


def measured(status: Status) -> dict[str, Any]:
    """A document for JSON. ``breakers``: name -> state as a number, and the part of the last hour open."""
    facts = status.facts
    by_dependency: dict[str, list[Transition]] = defaultdict(list)
    for transition in facts.transitions:
        by_dependency[transition.dependency].append(transition)
    return {
        "lag_s": round(status.fleet.worst_lag_s, 3),
        "rejected": len(status.fleet.rejected),
        "unlimited": facts.unlimited,
        "breakers": {
            breaker.name: [
                _NUMBERS.get(breaker.effective, 0),
                round(open_ratio(by_dependency[breaker.name], breaker.state, facts.now), 4),
            ]
            for breaker in status.breakers
            if breaker.effective != NO_DATA
        },
    }


def open_ratio(transitions: Iterable[Transition], state: str, now: float) -> float:
    """The part of the last hour in which the fleet's breaker was open. ``transitions``: newest first."""
    began, until, open_s = now - HOUR_S, now, 0.0
    for transition in transitions:
        at = max(transition.at, began)
        if state == "open":
            open_s += max(0.0, until - at)
        if transition.at <= began:
            return open_s / HOUR_S
        until, state = min(at, now), transition.before
    # Before the oldest transition that is known, it was in the state that this one left.
    if state == "open":
        open_s += until - began
    return open_s / HOUR_S
