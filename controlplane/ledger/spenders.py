"""Reads which tenants spend most on calls to models now."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import QuerySet, Sum

from controlplane.ledger.models import UsageHour, Whose

#: Before this minute of an hour, the hour before counts too: pods report each minute.
_EARLY_MIN = 10
#: Tenants that are listed.
_LISTED = 5


@dataclass(frozen=True, kw_only=True)
class Spender:
    #: Empty for calls without a tenant.
    tenant: str
    calls: int
    micro_usd_per_min: int


@dataclass(frozen=True, kw_only=True)
class Spenders:
    #: The tenants that spend most, from ``since``.
    since: datetime
    listed: tuple[Spender, ...]


def read_spenders(environment: str, dependency: str, now: datetime) -> Spenders:
    """The tenants whose calls to it cost most in this hour; early in it, also in the last. One query."""
    now = now.astimezone(UTC)
    since = now.replace(minute=0, second=0, microsecond=0)
    if now.minute < _EARLY_MIN:
        since -= timedelta(hours=1)
    minutes = max(1.0, (now - since).total_seconds() / 60)
    rows: QuerySet[UsageHour] = UsageHour.objects.filter(
        environment=environment, whose=Whose.TENANT, at__gte=since, dependency=dependency
    )
    found = rows.values("name").annotate(cost=Sum("micro_usd"), made=Sum("calls"))
    return Spenders(
        since=since,
        listed=tuple(
            Spender(
                tenant=row["name"],
                calls=int(row["made"]),
                micro_usd_per_min=round(int(row["cost"]) / minutes),
            )
            for row in found.order_by("-cost", "-made", "name")[:_LISTED]
        ),
    )
