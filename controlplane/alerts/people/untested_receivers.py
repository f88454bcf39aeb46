"""Receivers of which it is not certain that messages reach them."""

from datetime import timedelta

from django.db.models import Exists, OuterRef
from django.db.models.functions import Now
from django.utils import timezone

from controlplane.alerts.models import Delivery, DeliveryState, Receiver

#: A receiver that got no message for this time may not work any more.
UNTESTED_AFTER = timedelta(days=30)


def untested_receivers(environment: str) -> dict[int, str]:
    """Receiver -> why it is not certain that messages reach it. Deliveries are kept for 30 days."""
    rows = Receiver.objects.filter(environment=environment, disabled_because="")
    reached = Delivery.objects.filter(
        receiver=OuterRef("pk"), state=DeliveryState.SENT, sent_at__gt=Now() - UNTESTED_AFTER
    )
    tried = Delivery.objects.filter(receiver=OuterRef("pk"), attempts__gt=0)
    rows = rows.annotate(reached=Exists(reached), tried=Exists(tried))
    return {
        row.pk: "No message reached it in 30 days." if row.tried or _is_old(row) else "It was never tested."
        for row in rows
        # The alert secret-key names those whose URL cannot be read: no test can reach them.
        if row.url and not row.reached
    }


def _is_old(row: Receiver) -> bool:
    return timezone.now() - row.created_at > UNTESTED_AFTER
