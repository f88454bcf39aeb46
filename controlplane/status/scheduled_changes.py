"""Changes that take effect by schedule soon, those that are overdue, and those that failed."""

from datetime import timedelta

from django.conf import settings
from django.db.models import Q
from django.utils import timezone

from controlplane.policies.models import TenantQuota
from controlplane.schedules.models import Schedule
from controlplane.status.facts import ScheduledChange

#: More would push everything else off the page.
_MAX_SHOWN = 5


def failed(environment: str) -> int:
    """Scheduled changes that failed and that no operator has acknowledged."""
    return Schedule.objects.filter(environment=environment, state="failed", seen=False).count()


def upcoming(environment: str) -> tuple[ScheduledChange, ...]:
    """Changes that are due within the time in which they are announced, the next first, with overdue ones.

    The end of a quota is one when it was announced: in the last half of a shorter time, because the person
    who has just made the quota knows it.
    """
    now = timezone.now()
    until = now + timedelta(seconds=settings.ANNOUNCE_S)
    quotas = TenantQuota.objects.filter(tenant__environment=environment, expires_at__lte=until)
    quotas = quotas.filter(Q(announced_at__isnull=False) | Q(expires_at__lte=now))
    columns = quotas.order_by("expires_at").values_list("tenant__key", "name", "expires_at")
    found = [
        ScheduledChange(
            key=f"quota {tenant}/{quota}",
            title=f"Quota {quota} of {tenant} ends",
            at=at.timestamp(),
            tenant=tenant,
            quota=quota,
        )
        for tenant, quota, at in columns[:_MAX_SHOWN]
        if at is not None
    ]
    waiting = Schedule.objects.filter(environment=environment, state="waiting", due_at__lte=until).order_by(
        "due_at"
    )
    found += [
        ScheduledChange(key=f"schedule {number}", title=f"Scheduled change: {title}", at=due_at.timestamp())
        # Not whole rows: their plans may have thousands of lines, and this is read every second.
        for number, title, due_at in waiting.values_list("pk", "title", "due_at")[:_MAX_SHOWN]
    ]
    found.sort(key=lambda change: change.at)
    return tuple(found[:_MAX_SHOWN])
