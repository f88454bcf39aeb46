"""Which news of alerts is sent, in the transaction of the evaluation that found it.

What receivers know of an alert is a column. A message is due while it differs from the alert, so that one
that was held back by a mute is sent after it, and none is lost with a process.
"""

from collections.abc import Iterable
from datetime import UTC, datetime

from controlplane.alerts.delivery.queue import enqueue
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
        row.save(update_fields=["notified"])


def _due(row: Alert) -> News | None:
    if row.state == AlertState.RESOLVED:
        return News.RESOLVED
    if row.state != AlertState.FIRING or row.blind_since is not None:
        return None
    if not row.notified:
        return News.FIRED
    return News.WORSENED if (row.notified, row.severity) == ("warning", "critical") else None
