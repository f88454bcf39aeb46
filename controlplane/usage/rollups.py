"""Samples demand every 10 s from what gateways measure, and rolls it up to minutes and hours.

Each step rewrites whole spans from the finer ones, so it may run late, twice, or at the same time
in two processes.
"""

from collections import Counter, defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import connection
from django.db.models import Min, Sum
from django.utils import timezone

from controlplane.fleet.live import FIGURES_FRESH_FOR
from controlplane.fleet.models import Figures
from controlplane.postgres import delete_rows
from controlplane.usage.models import Demand, RuleDemand
from controlplane.usage.tables import RULES, TABLES, TENANTS, Table

#: Start of the minute in unix seconds -> asked, refused.
Minutes = dict[int, tuple[int, int]]
#: Name of a rule -> the minutes of what it bound.
ByRule = dict[str, Minutes]

_Counts = dict[tuple[str, ...], Counter[str]]

#: Stands for all requests together, including those of tenants that are not listed. No subject is empty.
ALL_TENANTS = ""

SAMPLE_S, MINUTE_S, HOUR_S = 10, 60, 3600

#: How far back spans are rewritten, which is how long a worker may be down.
_BACK = {MINUTE_S: timedelta(minutes=10), HOUR_S: timedelta(hours=3)}
_FINER = {MINUTE_S: SAMPLE_S, HOUR_S: MINUTE_S}
#: A count -> the names that gateways give its rate.
_RATES = {
    "asked": ("requests_per_s", "asked_per_s"),
    "refused": ("refused_per_s",),
    "shadow": ("shadow_per_s",),
}


def sample(now: datetime | None = None) -> int:
    """Write the 10 s that end about now, for every environment; returns the number of rows."""
    now = now or timezone.now()
    tenants: _Counts = defaultdict(Counter)
    rules: _Counts = defaultdict(Counter)
    fresh = Figures.objects.filter(at__gte=now - FIGURES_FRESH_FOR)
    for environment, document in fresh.values_list("environment", "document"):
        _add(tenants, (environment, ALL_TENANTS), document)
        # A gateway of an older release lists fewer tenants.
        for row in document.get("usage") or document.get("tenants", []):
            _add(tenants, (environment, row["tenant"]), row)
        for row in document.get("rules", []):
            _add(rules, (environment, row["tenant"], row["rule"]), row)
    return _write(TENANTS, tenants, now) + _write(RULES, rules, now)


def _add(counts: _Counts, key: tuple[str, ...], rates: dict[str, Any]) -> None:
    for count, names in _RATES.items():
        rate = next((rates[name] for name in names if name in rates), 0.0)
        counts[key][count] += round(rate * SAMPLE_S)


def _write(table: Table, counts: _Counts, now: datetime) -> int:
    rows = [
        dict(zip(table.of, key, strict=True)) | {count: counted[count] for count in table.counts}
        for key, counted in counts.items()
        if any(counted.values())
    ]
    with connection.cursor() as cursor:
        cursor.execute(table.sample, [SAMPLE_S, _start(now, SAMPLE_S), msgspec.json.encode(rows).decode()])
    return len(rows)


def roll_up(now: datetime | None = None) -> None:
    """Roll 10 s up to minutes, and minutes to hours."""
    now = now or timezone.now()
    with connection.cursor() as cursor:
        for coarse, fine in _FINER.items():
            for table in TABLES:
                cursor.execute(table.roll, {"coarse": coarse, "fine": fine, "since": now - _BACK[coarse]})


def forget(now: datetime | None = None) -> int:
    """Delete what is older than its retention; returns the number of rows."""
    now = now or timezone.now()
    return sum(
        delete_rows(table.name, "grain_s = %s AND at < %s", [grain_s, now - timedelta(seconds=kept_s)])
        for grain_s, kept_s in kept().items()
        for table in TABLES
    )


def erase_tenant(environment: str, tenant: str) -> int:
    """Delete what is recorded of a tenant; returns the number of rows."""
    if tenant == ALL_TENANTS:
        raise ValueError("Name the tenant to erase.")
    return sum(
        model.objects.filter(environment=environment, tenant=tenant).delete()[0]
        for model in (Demand, RuleDemand)
    )


def kept() -> dict[int, int]:
    """Length of a span -> for how many seconds it is kept."""
    return {
        SAMPLE_S: settings.USAGE_KEPT_10S_H * 3600,
        MINUTE_S: settings.USAGE_KEPT_MINUTES_D * 86_400,
        HOUR_S: settings.USAGE_KEPT_HOURS_D * 86_400,
    }


def measured(environment: str, *, since: datetime) -> set[str]:
    """Tenants that were among the busiest at some time."""
    rows = Demand.objects.filter(environment=environment).exclude(tenant=ALL_TENANTS)
    hours = rows.filter(grain_s=HOUR_S, at__gte=since)
    # These minutes are too recent to be in an hour yet.
    minutes = rows.filter(grain_s=MINUTE_S, at__gte=timezone.now() - _BACK[HOUR_S])
    return {
        tenant for found in (hours, minutes) for tenant in found.values_list("tenant", flat=True).distinct()
    }


def minutes_of(environment: str, tenants: Collection[str], *, since: datetime) -> dict[str, Minutes]:
    """Tenant -> start of the minute in unix seconds -> requests asked and refused."""
    rows = Demand.objects.filter(environment=environment, grain_s=MINUTE_S, at__gte=since)
    rows = rows.filter(tenant__in=list(tenants)).order_by()
    found: dict[str, Minutes] = {}
    for tenant, at, asked, refused in rows.values_list("tenant", "at", "asked", "refused").iterator(10_000):
        found.setdefault(tenant, {})[int(at.timestamp())] = (asked, refused)
    return found


def minutes_by_rule(environment: str, tenants: Collection[str], *, since: datetime) -> dict[str, ByRule]:
    """Tenant -> rule -> start of the minute in unix seconds -> requests it bound and refused."""
    rows = RuleDemand.objects.filter(environment=environment, grain_s=MINUTE_S, at__gte=since)
    rows = rows.filter(tenant__in=list(tenants)).order_by()
    columns = rows.values_list("tenant", "rule", "at", "asked", "refused")
    found: dict[str, ByRule] = {}
    for tenant, rule, at, asked, refused in columns.iterator(10_000):
        found.setdefault(tenant, {}).setdefault(rule, {})[int(at.timestamp())] = (asked, refused)
    return found


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Requests of one tenant that a rule bound, as pods counted them."""

    asked: int
    refused: int
    #: Let through as a shadow, and otherwise refused.
    shadow: int
    since: datetime


def counted_by_rule(environment: str, tenant: str, *, since: datetime) -> dict[str, Counted]:
    """Rule -> what was counted since then, in whole hours; without tenants never among the busiest."""
    rows = RuleDemand.objects.filter(environment=environment, tenant=tenant, grain_s=HOUR_S, at__gte=since)
    sums = rows.values("rule").order_by("rule")
    found = sums.annotate(
        all_asked=Sum("asked"), all_refused=Sum("refused"), all_shadow=Sum("shadow"), first=Min("at")
    )
    return {
        row["rule"]: Counted(
            asked=row["all_asked"], refused=row["all_refused"], shadow=row["all_shadow"], since=row["first"]
        )
        for row in found
    }


def let_through(environment: str, *, since: datetime) -> dict[int, int]:
    """Start of the minute in unix seconds -> requests allowed, of all tenants together."""
    rows = Demand.objects.filter(environment=environment, tenant=ALL_TENANTS, grain_s=MINUTE_S, at__gte=since)
    counts = rows.order_by().values_list("at", "asked", "refused")
    return {int(at.timestamp()): asked - refused for at, asked, refused in counts}


def _start(moment: datetime, grain_s: int) -> datetime:
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % grain_s, UTC)
