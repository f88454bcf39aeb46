"""Records in the audit when limits begin and end to follow their vendor, and when they reach their floor."""

from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.fleet.stated_limits import followed_limits
from controlplane.policies.document import tuning_of
from controlplane.policies.models import Environment, VendorLimit
from controlplane.postgres import transaction_lock
from controlplane.suggestions.models import Following

#: The author of what pods agree on without a person.
AUTOMATIC = Actor(name="automatic (vendor limits)", role="admin", origin="celery")
#: A limit is as configured again when no pods have applied a lower number for this time.
ENDS_AFTER = timedelta(minutes=1)


def note_following(now: datetime | None = None) -> None:
    now = now or timezone.now()
    for environment in Environment.objects.order_by("slug"):
        _note(environment, now)


def _note(environment: Environment, now: datetime) -> None:
    slug = environment.slug
    followed = followed_limits(slug)
    with transaction.atomic():
        transaction_lock("fuseboard.following", slug)
        known = {(row.dependency, row.limit): row for row in Following.objects.filter(environment=slug)}
        if not followed and not known:
            return
        limits = VendorLimit.objects.filter(dependency__environment=slug)
        configured = {
            (row.dependency.name, row.name): row.limit for row in limits.select_related("dependency")
        }
        floor_percent = tuning_of(environment).vendor_floor_percent
        for key, number in followed.items():
            most = configured.get(key, 0)
            if number >= most:
                continue
            row = known.get(key)
            if row is None:
                row = Following(environment=slug, dependency=key[0], limit=key[1], began_at=now)
                _record(row, "following.begun", number, most)
            lowest = max(1, most * floor_percent // 100)
            if number <= lowest and not row.at_floor:
                _record(row, "following.at_floor", number, most)
                row.at_floor = True
            elif number >= 2 * lowest:
                # A number that goes up and down at its floor is one entry: the audit keeps all of them.
                row.at_floor = False
            row.number, row.last_at = number, now
            row.save()
        for key, row in known.items():
            if now - row.last_at >= ENDS_AFTER:
                _record(row, "following.ended", None, configured.get(key))
                row.delete()


def _record(row: Following, action: str, number: int | None, configured: int | None) -> None:
    words = {
        "following.begun": f"Pods apply {number} instead of {configured}: the dependency allows no more.",
        "following.at_floor": f"Pods apply {number}, the lowest number that is allowed.",
        "following.ended": "No pod applies a lower number any more.",
    }
    record(
        actor=AUTOMATIC,
        action=action,
        target_kind="dependency",
        target_name=row.dependency,
        before={"limit": row.limit, "number": row.number} if not row._state.adding else None,
        after={"limit": row.limit, "number": number if number is not None else configured},
        reason=words[action],
        environment=row.environment,
    )
