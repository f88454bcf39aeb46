"""The states of an alert, as a pure function of what was known, what rules find, and the time.

An alert is pending until its condition lasted for the time of its rule, then it fires. When the condition
ends, it recovers. It is resolved when the condition stays away for long enough; if it returns before, the
same alert fires on, and this is no news.

Nothing is concluded from missing figures, nor from time in which nobody evaluated: an alert neither fires
nor ends because of either. A share of very few requests says nothing, too: an alert about one fires on for
10 minutes without traffic, and is then resolved.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

from controlplane.alerts.rules.rule import Finding, Severity, Timing

#: Between two evaluations.
INTERVAL_S = 5.0
#: A longer pause counts neither for an alert nor against it.
LONGEST_PAUSE_S = 3 * INTERVAL_S
#: An alert that fires is resolved when there was no traffic for this time.
NO_TRAFFIC_S = 600.0


class AlertState(StrEnum):
    PENDING = "pending"
    FIRING = "firing"
    RECOVERING = "recovering"
    RESOLVED = "resolved"


class ResolvedWhy(StrEnum):
    """Why an alert was resolved."""

    CLEARED = "cleared"
    NO_TRAFFIC = "no_traffic"


class AlertEvent(StrEnum):
    """A change that people have to know."""

    FIRED = "fired"
    WORSENED = "worsened"
    RESOLVED = "resolved"
    #: Only of messages: it fires and ends again and again; then it has fired without a change for a time.
    FLAPPING = "flapping"
    STABLE = "stable"


@dataclass(frozen=True, kw_only=True)
class AlertProgress:
    """One alert that is not resolved. Moments are unix seconds."""

    state: AlertState
    severity: Severity
    #: Since when the condition is true, at whatever severity.
    true_since: float
    #: Since when it is true at this severity or a worse one.
    level_since: float
    #: Since when it is not true any more.
    clear_since: float | None = None
    #: Since when there is too little traffic to say whether it is true.
    idle_since: float | None = None


def advance(
    known: AlertProgress | None,
    found: Finding | None,
    timing: Timing,
    now: float,
    *,
    blind: bool = False,
    idle: bool = False,
    passed_s: float = 0.0,
) -> tuple[AlertProgress | None, AlertEvent | None]:
    """The alert after one evaluation, and the news. ``None`` for no alert.

    ``blind`` says that the figures behind the rule are missing: ``found`` then says nothing. ``idle`` says
    that there is too little traffic for the rule. ``passed_s`` is the time since the evaluation before.
    """
    if known is not None and (blind or passed_s > LONGEST_PAUSE_S):
        known = _without(known, passed_s)
    if blind:
        return known, None
    if known is None:
        return (None, None) if found is None else _continued(_begun(found, now), found, timing, now)
    if found is not None:
        return _continued(known, found, timing, now)
    if known.state is AlertState.PENDING:
        return None, None
    if known.clear_since is None:
        if idle:
            return _idle(known, now)
        return replace(known, state=AlertState.RECOVERING, clear_since=now, idle_since=None), None
    if now - known.clear_since >= timing.resolves_after_s:
        return replace(known, state=AlertState.RESOLVED), AlertEvent.RESOLVED
    return known, None


def _idle(known: AlertProgress, now: float) -> tuple[AlertProgress, AlertEvent | None]:
    known = replace(known, idle_since=now if known.idle_since is None else known.idle_since)
    if now - (known.idle_since or now) < NO_TRAFFIC_S:
        return known, None
    return replace(known, state=AlertState.RESOLVED), AlertEvent.RESOLVED


def _begun(found: Finding, now: float) -> AlertProgress:
    since = _since(found, now)
    return AlertProgress(
        state=AlertState.PENDING, severity=found.severity, true_since=since, level_since=since
    )


def _continued(
    known: AlertProgress, found: Finding, timing: Timing, now: float
) -> tuple[AlertProgress, AlertEvent | None]:
    worse = found.severity == "critical" and known.severity != "critical"
    # The level below does not date the level above it.
    since = _since(found, now) if worse else known.level_since
    news = None
    if known.state is not AlertState.PENDING:
        state, news = AlertState.FIRING, AlertEvent.WORSENED if worse else None
    elif now - since >= max(timing.fires_after_s, found.lasting_s):
        state, news = AlertState.FIRING, AlertEvent.FIRED
    else:
        state = AlertState.PENDING
    known = replace(known, clear_since=None, idle_since=None)
    return replace(known, state=state, severity=found.severity, level_since=since), news


def _since(found: Finding, now: float) -> float:
    """When the finding began; never later than now, because a pod's clock may be wrong."""
    return now if found.since is None else min(found.since, now)


def _without(known: AlertProgress, lost_s: float) -> AlertProgress:
    """Move the moments of a state that ripens over time in which nothing was seen."""
    if known.state is AlertState.PENDING:
        return replace(known, true_since=known.true_since + lost_s, level_since=known.level_since + lost_s)
    if known.clear_since is not None:
        return replace(known, clear_since=known.clear_since + lost_s)
    if known.idle_since is not None:
        return replace(known, idle_since=known.idle_since + lost_s)
    return known
