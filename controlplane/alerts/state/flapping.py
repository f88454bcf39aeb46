"""Alerts that fire and end again and again: one message that they flap, then one when they are stable."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime

from controlplane.alerts.lifecycle import AlertState
from controlplane.alerts.models import Alert
from controlplane.alerts.rules.rule import Timing

#: Messages of one alert within an hour after which the next one says that it flaps.
MAX_CHANGES = 4
WITHIN_S = 3_600.0
#: It is stable when it has not changed for this time.
QUIET_S = 600.0
_KEPT = 20


def timing_while(row: Alert | None, timing: Timing) -> Timing:
    """An alert that flaps is resolved when it was quiet, so that its next turn is no news."""
    if row is None or row.flapping_since is None:
        return timing
    return replace(timing, resolves_after_s=max(timing.resolves_after_s, QUIET_S))


def with_change(row: Alert, now: float) -> list[float]:
    """Its changes with one that happens now."""
    return [*recent(row.changes, now), now][-_KEPT:]


def recall(row: Alert, now: float) -> None:
    """Take over the changes of the alert before, which had the same key. One query."""
    before = Alert.objects.filter(
        environment=row.environment,
        key=row.key,
        state=AlertState.RESOLVED,
        resolved_at__gt=datetime.fromtimestamp(now - WITHIN_S, UTC),
    ).exclude(notified="")
    last = before.order_by("-resolved_at", "-pk").values_list("changes", flat=True).first()
    row.changes = [*recent(last or (), now), *row.changes]


def flaps(row: Alert, now: float) -> bool:
    return len(recent(row.changes, now)) >= MAX_CHANGES


def is_stable(row: Alert, now: float) -> bool:
    """Whether an alert that flapped has fired without a change for long enough."""
    return (
        row.flapping_since is not None
        and row.state == AlertState.FIRING
        and (not row.changes or now - row.changes[-1] >= QUIET_S)
    )


def recent(changes: Iterable[float], now: float) -> list[float]:
    return [at for at in changes if now - at < WITHIN_S]
