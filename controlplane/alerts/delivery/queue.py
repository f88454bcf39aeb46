"""Makes a delivery for each receiver that must know of a change, in the transaction of the change."""

from collections.abc import Collection
from typing import Any

from django.db.models import Max, Q, QuerySet
from django.utils import timezone

from controlplane.alerts.lifecycle import News
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Receiver
from controlplane.alerts.routing import facts_of, names_of, refusal_of, route_of, routes_of

#: What a test says.
TEST = "test"


#: Alerts that a message names as explained by its own.
MOST_EXPLAINED = 10
#: Sent to the next receivers, because no person has acknowledged the alert.
ESCALATED = "escalated"


def enqueue(alert: Alert, news: News) -> list[Delivery]:
    """Deliveries of this news, to the receivers of the route, and to those that know of the alert already.

    Receivers that got "fired" get "resolved", whatever they want by now. The caller saves the escalations.
    """
    receivers = Receiver.objects.filter(environment=alert.environment)
    if news is News.RESOLVED:
        return [one for row in _informed(receivers, alert) if (one := _resolved(row, alert)) is not None]
    facts, every = facts_of(alert), list(receivers.order_by("name"))
    now = timezone.now()
    route = route_of(routes_of(alert.environment), facts, now)
    # The steps that are in force when people get the news stay in force.
    if news is not News.STABLE:
        alert.escalations = [
            [now.timestamp() + after_min * 60, names_of(route, number, every)]
            for number, (after_min, _) in enumerate(route.steps)
            if number
        ]
    named = set(names_of(route, 0, every))
    if news is not News.FIRED:
        named.update(row.name for row in _informed(receivers, alert))
    wanted = [row for row in every if row.name in named and not refusal_of(row, facts)]
    return [_add(row, alert, _kind(row, alert, news)) for row in wanted]


def enqueue_escalation(alert: Alert, names: Collection[str]) -> list[Delivery]:
    """Deliveries to the receivers of the next step."""
    facts = facts_of(alert)
    every = Receiver.objects.filter(environment=alert.environment, name__in=names).order_by("name")
    return [_add(row, alert, ESCALATED) for row in every if not refusal_of(row, facts)]


def enqueue_test(receiver: Receiver, *, by: str) -> Delivery:
    """A message that says who tests the receiver."""
    document = {
        "type": "test",
        "data": {"environment": receiver.environment, "text": f"{by} tests the receiver {receiver.name}."},
    }
    return Delivery.objects.create(receiver=receiver, kind=TEST, document=document)


def _informed(receivers: QuerySet[Receiver], alert: Alert) -> QuerySet[Receiver]:
    return receivers.filter(
        pk__in=Delivery.objects.filter(alert=alert).exclude(state=DeliveryState.SUPERSEDED).values("receiver")
    )


def _kind(receiver: Receiver, alert: Alert, news: News) -> str:
    """A receiver that wants critical alerts only hears of a worsened one for the first time."""
    known = Delivery.objects.filter(receiver=receiver, alert=alert).exclude(state=DeliveryState.SUPERSEDED)
    first = news in (News.FIRED, News.FLAPPING) or known.exists()
    return news.value if first else News.FIRED.value


def _resolved(receiver: Receiver, alert: Alert) -> Delivery | None:
    """``None`` if no message of the alert ever left: then none has to."""
    waiting = Q(state=DeliveryState.WAITING, attempts=0)
    rows = Delivery.objects.filter(receiver=receiver, alert=alert).exclude(state=DeliveryState.SUPERSEDED)
    if not rows.exclude(waiting).exists():
        rows.filter(waiting).update(state=DeliveryState.SUPERSEDED)
        if not Delivery.objects.filter(receiver=receiver, alert=alert, attempts__gt=0).exists():
            return None
    return _add(receiver, alert, News.RESOLVED.value)


def _add(receiver: Receiver, alert: Alert, kind: str) -> Delivery:
    places = Delivery.objects.filter(receiver=receiver, alert=alert)
    last = places.aggregate(last=Max("place"))["last"] or 0
    return Delivery.objects.create(
        receiver=receiver,
        alert=alert,
        kind=kind,
        place=last + 1,
        document=document_of(alert, kind, place=last + 1),
    )


def document_of(alert: Alert, kind: str, *, place: int) -> dict[str, Any]:
    """The body of the webhook, but for its time."""
    explained = list(alert.explained.order_by("true_since").values_list("text", flat=True))
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
