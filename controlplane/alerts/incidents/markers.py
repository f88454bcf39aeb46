"""Markers: what happened outside of Fuseboard and may explain an incident, such as a deployment."""

from datetime import datetime, timedelta

from django.db import connection, transaction
from django.db.models import QuerySet
from django.utils import timezone

from controlplane.alerts.models import Marker
from controlplane.audit.actor import Actor
from controlplane.audit.record import record
from controlplane.policies.document import environment_of
from controlplane.validation import Problems, is_printable

KEPT_DAYS = 90
#: Markers of one environment. The oldest are removed.
MAX_KEPT = 20_000
#: A marker can be noted late, but not for a time that has not come.
OLDEST = timedelta(days=7)
AHEAD = timedelta(minutes=5)

_FORGET = """
    DELETE FROM alerts_marker WHERE id IN (
        SELECT id FROM (
            SELECT id, at, row_number() OVER (PARTITION BY environment ORDER BY at DESC, id DESC) AS place
            FROM alerts_marker
        ) AS placed
        WHERE at < now() - make_interval(days => %s) OR place > %s
    )
"""


def add_marker(*, environment: str, text: str, service: str, at: datetime | None, actor: Actor) -> Marker:
    """Note that something was deployed. Raises ``InvalidEdit``."""
    problems = Problems()
    slug, now = environment_of(environment).slug, timezone.now()
    moment = at or now
    if not 1 <= len(text) <= 200 or not is_printable(text):
        problems.add("text", "Enter 1 to 200 characters without control characters.")
    if service:
        problems.slug("service", service)
    if not now - OLDEST <= moment <= now + AHEAD:
        problems.add("at", f"Use a time of the last {OLDEST.days} days.")
    problems.settle()
    with transaction.atomic():
        row = Marker.objects.create(
            environment=slug, at=moment, text=text, service=service, by=actor.name[:200], created_at=now
        )
        record(
            actor=actor,
            action="marker.added",
            target_kind="marker",
            target_name=text,
            after={"service": service, "at": moment.isoformat()},
            reason="",
            environment=slug,
        )
    return row


def markers(environment: str) -> QuerySet[Marker]:
    """The newest first."""
    return Marker.objects.filter(environment=environment).order_by("-at", "-id")


def markers_between(
    environment: str, *, start: datetime, end: datetime, most: int
) -> tuple[list[Marker], int]:
    """The newest markers of a range, and how many older ones there are."""
    rows = markers(environment).filter(at__gte=start, at__lt=end)
    found = list(rows[:most])
    return found, rows.count() - most if len(found) == most else 0


def forget_markers() -> int:
    with connection.cursor() as cursor:
        cursor.execute(_FORGET, [KEPT_DAYS, MAX_KEPT])
        return int(cursor.rowcount)
