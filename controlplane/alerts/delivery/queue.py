"""Makes a delivery for each receiver that must know of a change, in the transaction of the change."""

from collections.abc import Collection
from typing import Any

from django.db.models import Max, Q
from django.utils import timezone

from controlplane.alerts.lifecycle import News
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Receiver
from controlplane.alerts.routing import AddressBook, names_of, read_address_book, refusal_of, route_of

#: What a test says.
TEST = "test"


#: Alerts that a message names as explained by its own.
MOST_EXPLAINED = 10
#: Sent to the next receivers, because no person has acknowledged the alert.
ESCALATED = "escalated"


def enqueue(alert: Alert, news: News, book: AddressBook | None = None) -> list[Delivery]:
    """Deliveries of this news, to the receivers of the route, and to those that know of the alert already.

    Receivers that got "fired" get "resolved", whatever they want by now. The caller saves the escalations.
    """
    book, explained = book or read_address_book(alert.environment), _explained(alert)
    every, informed = book.receivers, _informed(alert)
    if news is News.RESOLVED:
        rows = [row for row in every if row.pk in informed]
        return [one for row in rows if (one := _resolved(row, alert, explained)) is not None]
    facts, now = book.facts_of(alert), timezone.now()
    route = route_of(book.routes, facts, now)
    # The steps that are in force when people get the news stay in force.
    if news is not News.STABLE:
        alert.escalations = [
            [now.timestamp() + after_min * 60, names_of(route, number, every)]
            for number, (after_min, _) in enumerate(route.steps)
            if number
        ]
    named = set(names_of(route, 0, every))
    if news is not News.FIRED:
        named.update(row.name for row in every if row.pk in informed)
    wanted = [row for row in every if row.name in named and not refusal_of(row, facts)]
    return [_add(row, alert, _kind(row, informed, news), explained) for row in wanted]


def enqueue_escalation(alert: Alert, names: Collection[str], book: AddressBook) -> list[Delivery]:
    """Deliveries to the receivers of the next step."""
    facts, explained = book.facts_of(alert), _explained(alert)
    rows = [row for row in book.receivers if row.name in names and not refusal_of(row, facts)]
    return [_add(row, alert, ESCALATED, explained) for row in rows]


def enqueue_test(receiver: Receiver, *, by: str) -> Delivery:
    """A message that says who tests the receiver."""
    document = {
        "type": "test",
        "data": {"environment": receiver.environment, "text": f"{by} tests the receiver {receiver.name}."},
    }
    return Delivery.objects.create(receiver=receiver, kind=TEST, document=document)


def _informed(alert: Alert) -> set[int]:
    """The receivers that know of the alert, or will."""
    rows = Delivery.objects.filter(alert=alert).exclude(state=DeliveryState.SUPERSEDED)
    return set(rows.values_list("receiver", flat=True))


def _explained(alert: Alert) -> list[str]:
    return list(alert.explained.order_by("true_since").values_list("text", flat=True))


def _kind(receiver: Receiver, informed: set[int], news: News) -> str:
    """A receiver that wants critical alerts only hears of a worsened one for the first time."""
    first = news in (News.FIRED, News.FLAPPING) or receiver.pk in informed
    return news.value if first else News.FIRED.value


def _resolved(receiver: Receiver, alert: Alert, explained: list[str]) -> Delivery | None:
    """``None`` if no message of the alert ever left: then none has to."""
    waiting = Q(state=DeliveryState.WAITING, attempts=0)
    rows = Delivery.objects.filter(receiver=receiver, alert=alert).exclude(state=DeliveryState.SUPERSEDED)
    if not rows.exclude(waiting).exists():
        rows.filter(waiting).update(state=DeliveryState.SUPERSEDED)
        if not Delivery.objects.filter(receiver=receiver, alert=alert, attempts__gt=0).exists():
            return None
    return _add(receiver, alert, News.RESOLVED.value, explained)


def _add(receiver: Receiver, alert: Alert, kind: str, explained: list[str]) -> Delivery:
    places = Delivery.objects.filter(receiver=receiver, alert=alert)
    last = places.aggregate(last=Max("place"))["last"] or 0
    return Delivery.objects.create(
        receiver=receiver,
        alert=alert,
        kind=kind,
        place=last + 1,
        document=_document(alert, kind, explained, place=last + 1),
    )


def _document(alert: Alert, kind: str, explained: list[str], *, place: int) -> dict[str, Any]:
    """The body of the webhook, but for its time."""
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
            "runbook": alert.runbook,
            # Alerts that it explains, and that are not sent: the first of them, and their number.
            "explains": explained[:MOST_EXPLAINED],
            "explained": len(explained),
            # A receiver that gets a lower number than it has seen can drop it.
            "sequence": place,
        },
    }
