"""Why a breaker is open, and since when: from its trip out of closed, over every failed probe after it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from controlplane.status.facts import Transition

#: Reasons that open a breaker, for transitions without figures: by an older agent, or of a probe.
CAUSES = {
    "consecutive": "consecutive failures",
    "ratio": "too many failed calls",
    "slow": "too many slow calls",
    "probe_failed": "a probe failed",
}
#: States that belong to one incident: a failed probe opens the breaker again, which is no new one.
NOT_CLOSED = ("open", "half_open")

HOUR_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class Incident:
    """From the trip of a breaker until it is closed again."""

    since: float
    #: The transition out of closed; ``None`` when it is not known.
    trip: Transition | None
    #: Probes that failed and opened the breaker again.
    reopened: int


def incident_of(transitions: Sequence[Transition]) -> Incident | None:
    """The present incident by the transitions of one breaker, newest first; ``None`` if they show none."""
    run = list(takewhile(lambda transition: transition.after in NOT_CLOSED, transitions))
    if not run:
        return None
    first = run[-1]
    # A breaker that was missing in Redis counts as closed. Older transitions may not be listed any more.
    whole = first.after == "open" and first.before not in NOT_CLOSED
    return Incident(
        since=first.at,
        trip=first if whole else None,
        reopened=sum(transition.cause == "probe_failed" for transition in run),
    )


def closed_since(transitions: Sequence[Transition]) -> float | None:
    """When the breaker closed; ``None`` when no transition shows it, as for one that never opened."""
    newest = transitions[0] if transitions else None
    return newest.at if newest is not None and newest.after == "closed" else None


def trip_words(trip: Transition) -> str:
    """The reason that opened the breaker, with the figures of that moment."""
    figures = trip.figures
    if trip.actor:
        return f"opened by {trip.actor}"
    if figures is None:
        return CAUSES.get(trip.cause, trip.cause.replace("_", " "))
    if trip.cause == "consecutive":
        return f"{figures.consecutive} failures in a row, opens at {figures.threshold}"
    what, count = ("were slow", figures.slow) if trip.cause == "slow" else ("failed", figures.failures)
    percent = f"{count / figures.calls * 100:.0f} %" if figures.calls else "0 %"
    return f"{count} of {figures.calls} calls {what} ({percent}), opens at {figures.threshold} %"


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
