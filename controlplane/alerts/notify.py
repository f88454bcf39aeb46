"""Which news of alerts is sent, in the transaction of the evaluation that found it.

What receivers know of an alert is a column. A message is due while it differs from the alert, so that one
that was held back by a mute is sent after it, and none is lost with a process.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from controlplane.alerts.delivery.queue import enqueue, enqueue_escalation
from controlplane.alerts.lifecycle import AlertState, News
from controlplane.alerts.models import Alert
from controlplane.alerts.mutes import mute_of, not_ended


def notify(environment: str, rows: Iterable[Alert], now: float) -> None:
    """Make the deliveries that are due for the alerts of one evaluation, also for those just resolved."""
    due = [(row, news) for row in rows if (news := _due(row)) is not None]
    if not due:
        return
    at = datetime.fromtimestamp(now, UTC)
    mutes = list(not_ended(environment, at))
    for row, news in due:
        if news is News.RESOLVED:
            # Receivers that know that it fired learn that it ended, also during a mute.
            enqueue(row, news)
            continue
        if mute_of(mutes, row, at) is not None:
            continue
        enqueue(row, news)
        row.notified = row.severity
        row.save(update_fields=["notified", "escalations"])


def escalate(environment: str, rows: Iterable[Alert], now: float) -> None:
    """Send alerts that no person has acknowledged in time to the next receivers, each step once."""
    due = [row for row in rows if row.state == AlertState.FIRING and _steps(row, now)]
    if not due:
        return
    at = datetime.fromtimestamp(now, UTC)
    mutes = list(not_ended(environment, at))
    for row in due:
        if mute_of(mutes, row, at) is not None:
            continue
        # An acknowledgement at this moment comes first, or waits for the end of this transaction.
        free = Alert.objects.select_for_update().filter(pk=row.pk, acknowledged_at=None)
        if not free.exists():
            continue
        steps = _steps(row, now)
        row.escalations = row.escalations[len(steps) :]
        row.save(update_fields=["escalations"])
        # A worker that was down sends all steps that it missed in one message.
        enqueue_escalation(row, {name for _, names in steps for name in names})


def _steps(row: Alert, now: float) -> list[tuple[float, list[str]]]:
    return [(at, names) for at, names in row.escalations if at <= now]


def _due(row: Alert) -> News | None:
    if row.state == AlertState.RESOLVED:
        return News.RESOLVED
    if row.state != AlertState.FIRING or row.blind_since is not None:
        return None
    if not row.notified:
        return News.FIRED
    return News.WORSENED if (row.notified, row.severity) == ("warning", "critical") else None
