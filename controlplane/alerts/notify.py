"""The choice of which changes of alerts are sent, in the transaction of the evaluation that found it.

What receivers know of an alert is a column. A message is due while it differs from the alert, so that one
that was held back by a mute or by another alert is sent later, and none is lost with a process.
"""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

from controlplane.alerts.delivery.queue import enqueue, enqueue_escalation
from controlplane.alerts.emergency.hand_in import gateways_may_have_sent
from controlplane.alerts.emergency.plan import LEVEL
from controlplane.alerts.lifecycle import AlertEvent, AlertState
from controlplane.alerts.models import Alert, Mute
from controlplane.alerts.people.routing import AddressBook, read_address_book
from controlplane.alerts.rules.every import RULE_OF_KEY
from controlplane.alerts.rules.rule import rule_of
from controlplane.alerts.state.causes import Causes, waits
from controlplane.alerts.state.flapping import flaps, is_stable, recall, with_change
from controlplane.alerts.state.mutes import mute_of, not_ended


def notify(environment: str, rows: Sequence[Alert], now: float) -> None:
    """Make the deliveries that are due for the alerts of one evaluation, also for those just resolved."""
    due = [(row, news) for row in rows if (news := _due(row, now)) is not None]
    if not due:
        return
    at = datetime.fromtimestamp(now, UTC)
    mutes = list(not_ended(environment, at))
    causes = Causes(_causes(rows, mutes, at))
    ready = [(row, news) for row, news in due if _may_go(row, news, causes, mutes, at)]
    if not ready:
        return
    book = read_address_book(environment)
    # After every cause is known, so that its message lists what it explains.
    for row, news in ready:
        _send(row, news, book, now)


def _due(row: Alert, now: float) -> AlertEvent | None:
    if row.state == AlertState.RESOLVED:
        return AlertEvent.RESOLVED
    if row.state != AlertState.FIRING or row.blind_since is not None:
        return None
    if not row.notified:
        return AlertEvent.FIRED
    # Once while it flaps: what is known of it then stays critical.
    if (row.notified, row.severity) == ("warning", "critical"):
        return AlertEvent.WORSENED
    return AlertEvent.STABLE if is_stable(row, now) else None


def _causes(rows: Sequence[Alert], mutes: Sequence[Mute], at: datetime) -> list[Alert]:
    """The alerts that may explain others. One that a mute of pods hides explains no other pods."""
    of_more = [mute for mute in mutes if not mute.pod]
    return [row for row in rows if mute_of(mutes, row, at) is None or mute_of(of_more, row, at) is not None]


def _may_go(row: Alert, news: AlertEvent, causes: Causes, mutes: Sequence[Mute], at: datetime) -> bool:
    if news is AlertEvent.RESOLVED:
        # Receivers that know that it fired learn that it ended, also during a mute.
        return True
    if mute_of(mutes, row, at) is not None:
        return False
    if news is not AlertEvent.FIRED:
        return True
    if row.level >= LEVEL and gateways_may_have_sent(row, at.timestamp()):
        return False
    cause = causes.of(row)
    if cause is None:
        return not waits(row, at.timestamp())
    # A cause that is pending may not fire: until then, it only holds the message back.
    if cause.state != AlertState.PENDING and row.cause_id != cause.pk:
        row.cause = cause
        row.save(update_fields=["cause"])
    return False


def _send(row: Alert, news: AlertEvent, book: AddressBook, now: float) -> None:
    if news is AlertEvent.FIRED:
        recall(row, now)
        row.cause = None
    if news in (AlertEvent.FIRED, AlertEvent.WORSENED) and row.flapping_since is None and flaps(row, now):
        row.flapping_since = datetime.fromtimestamp(now, UTC)
        news = AlertEvent.FLAPPING
    if news is AlertEvent.STABLE or (news is AlertEvent.RESOLVED and row.flapping_since is not None):
        row.flapping_since, row.changes = None, []
    elif row.notified or news is not AlertEvent.RESOLVED:
        row.changes = with_change(row, now)
    enqueue(row, news, book, datetime.fromtimestamp(now, UTC))
    if news is not AlertEvent.RESOLVED:
        row.notified = row.severity
    rule = RULE_OF_KEY.get(rule_of(row.key))
    if rule is not None and not rule.escalates:
        row.escalations = []
    row.save(update_fields=["notified", "escalations", "cause", "flapping_since", "changes"])


def escalate(environment: str, rows: Iterable[Alert], now: float) -> None:
    """Send alerts that no person has acknowledged in time to the next receivers, each step once."""
    # One that a person gives back at this moment is sent by the next evaluation.
    due = [row for row in rows if row.state == AlertState.FIRING and _steps(row, now)]
    due = [row for row in due if row.acknowledged_at is None]
    if not due:
        return
    at = datetime.fromtimestamp(now, UTC)
    mutes = list(not_ended(environment, at))
    loud = {row.pk: row for row in due if mute_of(mutes, row, at) is None}
    # An acknowledgement at this moment comes first, or waits for the end of this transaction.
    locked = Alert.objects.select_for_update().filter(pk__in=loud, acknowledged_at=None).order_by("pk")
    free = list(locked.values_list("pk", flat=True)) if loud else []
    if not free:
        return
    book = read_address_book(environment)
    for row in (loud[pk] for pk in free):
        steps = _steps(row, now)
        row.escalations = row.escalations[len(steps) :]
        row.save(update_fields=["escalations"])
        # A worker that was down sends all steps that it missed in one message.
        enqueue_escalation(row, {name for _, names in steps for name in names}, book)


def _steps(row: Alert, now: float) -> list[tuple[float, list[str]]]:
    return [(at, names) for at, names in row.escalations if at <= now]
