"""The erasure of a tenant reaches what alerts stored about it."""

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from controlplane.alerts.delivery.queue import enqueue
from controlplane.alerts.erasure import erase_tenant
from controlplane.alerts.lifecycle import AlertEvent, AlertState
from controlplane.alerts.models import Alert, Delivery, Incident
from controlplane.alerts.rules.texts import most_are_from
from controlplane.erasure import erase
from tests.controlplane.alerts.delivery.test_alert_deliveries import alert, receiver
from tests.people import ADA


def resolved(key: str, kind: str, name: str, **fields: Any) -> Alert:
    now = timezone.now()
    row = alert(key, subject_kind=kind, subject_name=name, **fields)
    enqueue(row, AlertEvent.FIRED)
    Delivery.objects.update(state="sent", attempts=1)
    Alert.objects.filter(pk=row.pk).update(state=AlertState.RESOLVED, resolved_at=now)
    return row


def incident(cause: str, *, closed: bool) -> Incident:
    now = timezone.now()
    return Incident.objects.create(
        environment="production",
        cause=cause,
        title=f"about {cause}",
        level=2,
        severity="warning",
        started_at=now - timedelta(hours=1),
        opened_at=now - timedelta(hours=1),
        closed_at=now if closed else None,
    )


def everything() -> str:
    return " ".join(
        str(row)
        for rows in (Alert.objects, Delivery.objects, Incident.objects)
        for row in rows.values_list(flat=False)
    )


def test_resolved_alerts_messages_and_incidents_do_not_name_the_tenant(production: str) -> None:
    receiver(least_level=1)
    closed = incident("hot-key:acme/requests", closed=True)
    hot = resolved("hot-key:acme/requests", "hot_keys", "acme", incident=closed)
    explained = resolved("429", "tenant", "acme", detail="30 of 90/s." + most_are_from("acme"), cause=hot)
    incident("runaway-tenant:acme", closed=True)
    erased = erase(environment=production, kind="tenant", value="acme", reason="ticket PRIV-12", actor=ADA)
    assert (erased.alerts, erased.words) == (2, "0 samples of refusals, 2 resolved alerts")
    assert "acme" not in everything()
    left = Alert.objects.get()
    assert (left.pk, left.detail, left.subject_kind, left.cause) == (
        explained.pk,
        "30 of 90/s.",
        "tenants",
        None,
    )
    [message] = Delivery.objects.all()
    assert message.document["data"]["detail"] == "30 of 90/s."
    assert set(Incident.objects.values_list("title", flat=True)) == {
        "Alert hot-key of an erased tenant",
        "Alert runaway-tenant of an erased tenant",
    }


def test_open_alerts_and_those_of_others_stay(production: str) -> None:
    receiver(least_level=1)
    alert("runaway-tenant:acme", subject_kind="tenant", subject_name="acme")
    resolved("hot-key:acme-2/requests", "hot_keys", "acme-2")
    for other in ("acme-2", "acme.com"):
        resolved("429", "tenant", other, detail="30 of 90/s." + most_are_from(other))
    resolved(
        "hot-key:acme/requests", "hot_keys", "acme", incident=incident("hot-key:acme/requests", closed=False)
    )
    before = everything()
    assert erase_tenant(production, "acme") == 0
    assert everything() == before
    Incident.objects.update(closed_at=timezone.now())
    assert erase_tenant(production, "acme") == 1
    assert Alert.objects.count() == 4


def test_no_name_erases_nothing(production: str) -> None:
    alert("lag", subject_kind="servers")
    with pytest.raises(ValueError, match="Name the tenant"):
        erase_tenant(production, "")
    assert Alert.objects.exists()
