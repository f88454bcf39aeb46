"""What ends or begins by itself soon, and what should have and did not."""

from datetime import datetime, timedelta
from urllib.parse import urlencode

from django.conf import settings
from django.urls import reverse
from django.utils import timezone

from controlplane.policies.models import TenantQuota
from controlplane.schedules.models import Schedule

#: More would push everything else off the board.
_MOST = 5


def failed(environment: str) -> int:
    return Schedule.objects.filter(environment=environment, state="failed", seen=False).count()


def soon(environment: str) -> tuple[tuple[str, float, str], ...]:
    """What, when (unix seconds), and the path of its page; the next first."""
    until = timezone.now() + timedelta(seconds=settings.ANNOUNCE_S)
    quotas = TenantQuota.objects.filter(tenant__environment=environment, expires_at__lte=until)
    rows = Schedule.objects.filter(environment=environment, state="waiting", due_at__lte=until)
    found: list[tuple[str, datetime, str]] = [
        (f"Quota {name} of {key} ends", at, f"{reverse('tenant')}?{urlencode({'key': key, 'quota': name})}")
        for key, name, at in quotas.order_by("expires_at").values_list("tenant__key", "name", "expires_at")[
            :_MOST
        ]
        if at is not None
    ]
    found += [
        (f"Planned change: {title}", at, reverse("schedules"))
        for title, at in rows.order_by("due_at").values_list("title", "due_at")[:_MOST]
    ]
    found.sort(key=lambda row: row[1])
    return tuple((what, at.timestamp(), link) for what, at, link in found[:_MOST])
