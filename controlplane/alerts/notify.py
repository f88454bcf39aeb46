"""Which news of alerts is sent, in the transaction of the evaluation that found it.

What receivers know of an alert is a column. A message is due while it differs from the alert, so that one
that was held back by a mute or by another alert is sent later, and none is lost with a process.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from controlplane.alerts.causes import cause_of, waits
from controlplane.alerts.delivery.queue import enqueue, enqueue_escalation
from controlplane.alerts.flapping import flaps, is_stable, recall, with_change
from controlplane.alerts.lifecycle import AlertState, News
from controlplane.alerts.models import Alert, Mute
from controlplane.alerts.mutes import mute_of, not_ended
from controlplane.alerts.routing import AddressBook, read_address_book


def notify(environment: str, rows: Sequence[Alert], now: float) -> None:
    """Make the deliveries that are due for the alerts of one evaluation, also for those just resolved."""
    due = [(row, news) for row in rows if (news := _due(row, now)) is not None]
    if not due:
        return
    at = datetime.fromtimestamp(now, UTC)
    mutes = list(not_ended(environment, at))
    ready = [(row, news) for row, news in due if _may_go(row, news, rows, mutes, at)]
    book = read_address_book(environment)
    # After every cause is known, so that its message lists what it explains.
    for row, news in ready:
        _send(row, news, book, now)


def _due(row: Alert, now: float) -> News | None:
    if row.state == AlertState.RESOLVED:
        return News.RESOLVED
    if row.state != AlertState.FIRING or row.blind_since is not None:
        return None
    if not row.notified:
        return News.FIRED
    if is_stable(row, now):
        return News.STABLE
    return News.WORSENED if (row.notified, row.severity) == ("warning", "critical") else None


def _may_go(row: Alert, news: News, rows: Sequence[Alert], mutes: Sequence[Mute], at: datetime) -> bool:
    if news is News.RESOLVED:
        # Receivers that know that it fired learn that it ended, also during a mute.
        return True
    if mute_of(mutes, row, at) is not None:
        return False
    if news is not News.FIRED:
        return True
    cause = cause_of(row, rows)
    if cause is None:
        return not waits(row, at.timestamp())
    # A cause that is pending may not fire: until then, it only holds the message back.
    if cause.state != AlertState.PENDING and row.cause_id != cause.pk:
        row.cause = cause
        row.save(update_fields=["cause"])
    return False


def _send(row: Alert, news: News, book: AddressBook, now: float) -> None:
    if news is News.FIRED:
        recall(row, now)
        row.cause = None
    if news in (News.FIRED, News.WORSENED) and row.flapping_since is None and flaps(row, now):
        row.flapping_since = datetime.fromtimestamp(now, UTC)
        news = News.FLAPPING
    if news is News.STABLE or (news is News.RESOLVED and row.flapping_since is not None):
        row.flapping_since, row.changes = None, []
    elif row.notified or news is not News.RESOLVED:
        row.changes = with_change(row, now)
    if news is not News.WORSENED or row.flapping_since is None:
        enqueue(row, news, book)
    if news is not News.RESOLVED:
        row.notified = row.severity
    row.save(update_fields=["notified", "escalations", "cause", "flapping_since", "changes"])


def escalate(environment: str, rows: Iterable[Alert], now: float) -> None:
    """Send alerts that no person has acknowledged in time to the next receivers, each step once."""
    due = [row for row in rows if row.state == AlertState.FIRING and _steps(row, now)]
    if not due:
        return
    at = datetime.fromtimestamp(now, UTC)
    mutes, book = list(not_ended(environment, at)), read_address_book(environment)
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
        enqueue_escalation(row, {name for _, names in steps for name in names}, book)


def _steps(row: Alert, now: float) -> list[tuple[float, list[str]]]:
    return [(at, names) for at, names in row.escalations if at <= now]
