"""Makes a delivery for each receiver that must know of a change, in the transaction of the change."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Count, Max, Q

from controlplane.alerts.delivery.message import handled, links_of, test_text, text_of, title_of
from controlplane.alerts.lifecycle import AlertEvent
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Receiver
from controlplane.alerts.people.routing import (
    AddressBook,
    later_steps,
    names_of,
    read_address_book,
    refusal_of,
    route_of,
)
from controlplane.alerts.rules.rule import rule_of
from controlplane.alerts.state.causes import EXPLAINS
from controlplane.postgres import postgres_now

#: The kind of a test.
TEST = "test"
#: The kind of a weekly summary.
WEEKLY = "weekly"
#: Alerts that a message names as explained by its own.
MAX_EXPLAINED = 10
#: Sent to the next receivers, because no person has acknowledged the alert.
ESCALATED = "escalated"


@dataclass(frozen=True, kw_only=True)
class _Logged:
    """Everything that one receiver knows of one alert."""

    #: The place of its last message.
    last: int
    #: Whether a message was sent, or will be.
    informed: bool


def enqueue(
    alert: Alert, news: AlertEvent, book: AddressBook | None = None, at: datetime | None = None
) -> list[Delivery]:
    """Deliveries of this news, to the receivers of the route, and to those that know of the alert already.

    Receivers that got "fired" get "resolved", whatever they want by now. The caller saves the escalations.
    ``at`` is by the clock of Postgres.
    """
    book, at = book or read_address_book(alert.environment), at or postgres_now()
    every = book.receivers
    if news is AlertEvent.RESOLVED:
        knowing = _knowing(alert)
        return _add(alert, {row: news.value for row in every if row.pk in knowing}, _log(alert))
    facts = book.facts_of(alert)
    route = route_of(book.routes, facts, at)
    # The steps that are in force when people get the news stay in force.
    if news is not AlertEvent.STABLE:
        alert.escalations = later_steps(route, at, every)
    log, named = _log(alert), set(names_of(route, 0, every))
    if news is not AlertEvent.FIRED:
        named.update(row.name for row in every if row.pk in log and log[row.pk].informed)
    wanted = [row for row in every if row.name in named and not refusal_of(row, facts)]
    return _add(alert, {row: _kind(log.get(row.pk), news) for row in wanted}, log)


def enqueue_escalation(alert: Alert, names: Collection[str], book: AddressBook) -> list[Delivery]:
    """Deliveries to the receivers of the next step."""
    facts = book.facts_of(alert)
    rows = [row for row in book.receivers if row.name in names and not refusal_of(row, facts)]
    return _add(alert, dict.fromkeys(rows, ESCALATED), _log(alert))


def end_for(alert: Alert, receivers: Collection[int]) -> list[Delivery]:
    """Send that a resolved alert ended, to those of the receivers that do not know it."""
    knowing = Delivery.objects.filter(alert=alert, kind=AlertEvent.RESOLVED.value).values_list(
        "receiver", flat=True
    )
    rows = Receiver.objects.filter(pk__in=set(receivers) - set(knowing)).order_by("pk")
    return _add(alert, dict.fromkeys(rows, AlertEvent.RESOLVED.value), _log(alert))


def enqueue_test(receiver: Receiver, *, by: str) -> Delivery:
    """A message that names the person who tests the receiver."""
    document = {
        "type": "test",
        "data": {
            "environment": receiver.environment,
            **test_text(receiver.environment, by, receiver.name),
        },
    }
    return Delivery.objects.create(receiver=receiver, kind=TEST, document=document)


def enqueue_report(receiver: Receiver, document: dict[str, Any]) -> Delivery:
    """A weekly summary, which belongs to no alert."""
    return Delivery.objects.create(receiver=receiver, kind=WEEKLY, document=document)


def _log(alert: Alert) -> dict[int, _Logged]:
    """Everything that each receiver got of the alert, or will get. One query."""
    rows = Delivery.objects.filter(alert=alert).values_list("receiver").order_by("receiver")
    informed = Count("pk", filter=~Q(state=DeliveryState.SUPERSEDED))
    return {
        receiver: _Logged(last=last, informed=bool(number))
        for receiver, last, number in rows.annotate(last=Max("place"), informed=informed)
    }


def _explained(alert: Alert) -> tuple[list[str], int]:
    """The first texts of what it explains, and their number."""
    if not {rule_of(alert.key), alert.key} & EXPLAINS.keys():
        return [], 0
    rows = alert.explained.order_by("true_since", "pk")
    texts = list(rows.values_list("text", flat=True)[:MAX_EXPLAINED])
    return texts, rows.count() if len(texts) == MAX_EXPLAINED else len(texts)


def _kind(logged: _Logged | None, news: AlertEvent) -> str:
    """A receiver that wants critical alerts only hears of a worsened one for the first time."""
    first = news in (AlertEvent.FIRED, AlertEvent.FLAPPING) or (logged is not None and logged.informed)
    return news.value if first else AlertEvent.FIRED.value


def _knowing(alert: Alert) -> set[int]:
    """The receivers to which a message of the alert has left. The others need none, and get none any more."""
    left = Delivery.objects.filter(alert=alert, attempts__gt=0)
    waiting = Delivery.objects.filter(alert=alert, state=DeliveryState.WAITING, attempts=0)
    waiting.exclude(receiver__in=left.values("receiver")).update(state=DeliveryState.SUPERSEDED)
    # Read after that: what a process took in between was not superseded.
    return set(left.values_list("receiver", flat=True))


def _add(alert: Alert, kinds: Mapping[Receiver, str], log: Mapping[int, _Logged]) -> list[Delivery]:
    """The next message of the alert to each receiver, in one statement."""
    if not kinds:
        return []
    explained, done, rows = _explained(alert), handled(alert), []
    for receiver, kind in kinds.items():
        place = log[receiver.pk].last + 1 if receiver.pk in log else 1
        document = document_of(alert, kind, explained, done, place=place)
        rows.append(Delivery(receiver=receiver, alert=alert, kind=kind, place=place, document=document))
    return Delivery.objects.bulk_create(rows)


def document_of(
    alert: Alert, kind: str, explained: tuple[list[str], int], done: list[str], *, place: int
) -> dict[str, Any]:
    """The body of the webhook, but for its time. ``done`` is what is already being done."""
    texts, number = explained
    return {
        "type": f"alert.{kind}",
        "data": {
            "id": alert.pk,
            "environment": alert.environment,
            "key": alert.key,
            "severity": alert.severity,
            "level": alert.level,
            "text": alert.text,
            "detail": alert.detail,
            "since": alert.true_since.isoformat(),
            "fired_at": alert.fired_at.isoformat() if alert.fired_at else None,
            "resolved_at": alert.resolved_at.isoformat() if alert.resolved_at else None,
            "resolved_why": alert.resolved_why or None,
            "acknowledged_by": alert.acknowledged_by or None,
            "runbook": alert.runbook,
            "links": links_of(alert),
            "handled": done,
            # People read the alert in these two.
            "title": title_of(alert, kind),
            "message": text_of(alert, kind, done, explained),
            # Alerts that it explains, and that are not sent: the first of them, and their number.
            "explains": texts,
            "explained": number,
            # A receiver that gets a lower number than it has seen can drop it.
            "sequence": place,
        },
    }
