"""Demand is sampled every 10 s from what gateways measure, and rolled up to minutes and hours.

Each step writes whole spans anew from the finer ones, so that it may run late, twice, or at once
in two processes.
"""

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from django.conf import settings
from django.db import connection
from django.utils import timezone

from controlplane.fleet.live import FIGURES_FRESH_FOR
from controlplane.fleet.models import Figures
from controlplane.usage.models import Demand

#: Begin of the minute in unix seconds -> asked, refused.
Minutes = dict[int, tuple[int, int]]

_Counts = Counter[tuple[str, str]]

#: Stands for all requests together, also those of tenants that are not listed: no subject is empty.
EVERYBODY = ""

SAMPLE_S, MINUTE_S, HOUR_S = 10, 60, 3600

#: As far back as spans are written anew: a worker may have been away for so long.
_BACK = {MINUTE_S: timedelta(minutes=10), HOUR_S: timedelta(hours=3)}
_FINER = {MINUTE_S: SAMPLE_S, HOUR_S: MINUTE_S}
#: Rows deleted by one statement.
_AT_ONCE = 20_000

_SAMPLE = """
    INSERT INTO usage_demand (environment, tenant, grain_s, at, asked, refused)
    SELECT environment, tenant, %s, %s, asked, refused
    FROM json_to_recordset(%s::json) AS row(environment text, tenant text, asked bigint, refused bigint)
    ON CONFLICT (environment, tenant, grain_s, at)
    DO UPDATE SET asked = EXCLUDED.asked, refused = EXCLUDED.refused
"""

_ROLL = """
    INSERT INTO usage_demand (environment, tenant, grain_s, at, asked, refused)
    SELECT environment, tenant, %(coarse)s,
           to_timestamp(floor(extract(epoch FROM at) / %(coarse)s) * %(coarse)s), sum(asked), sum(refused)
    FROM usage_demand
    WHERE grain_s = %(fine)s
      AND at >= to_timestamp(floor(extract(epoch FROM %(since)s::timestamptz) / %(coarse)s) * %(coarse)s)
    GROUP BY 1, 2, 4
    ON CONFLICT (environment, tenant, grain_s, at)
    DO UPDATE SET asked = EXCLUDED.asked, refused = EXCLUDED.refused
"""

_FORGET = """
    DELETE FROM usage_demand WHERE id IN (
        SELECT id FROM usage_demand WHERE grain_s = %s AND at < %s LIMIT %s
    )
"""


def sample(now: datetime | None = None) -> int:
    """Write the 10 s that end about now, of every environment; how many rows that were."""
    now = now or timezone.now()
    asked: _Counts = Counter()
    refused: _Counts = Counter()
    fresh = Figures.objects.filter(at__gte=now - FIGURES_FRESH_FOR)
    for environment, document in fresh.values_list("environment", "document"):
        _add(asked, refused, (environment, EVERYBODY), document)
        # A gateway of an older release lists fewer.
        for row in document.get("usage") or document.get("tenants", []):
            _add(asked, refused, (environment, row["tenant"]), row)
    rows = [
        {
            "environment": environment,
            "tenant": tenant,
            "asked": count,
            "refused": refused[environment, tenant],
        }
        for (environment, tenant), count in asked.items()
        if count
    ]
    with connection.cursor() as cursor:
        cursor.execute(_SAMPLE, [SAMPLE_S, _begin(now, SAMPLE_S), msgspec.json.encode(rows).decode()])
    return len(rows)


def _add(asked: _Counts, refused: _Counts, key: tuple[str, str], rates: dict[str, Any]) -> None:
    asked[key] += round(rates.get("requests_per_s", 0.0) * SAMPLE_S)
    refused[key] += round(rates.get("refused_per_s", 0.0) * SAMPLE_S)


def roll_up(now: datetime | None = None) -> None:
    """10 s to minutes, minutes to hours."""
    now = now or timezone.now()
    with connection.cursor() as cursor:
        for coarse, fine in _FINER.items():
            cursor.execute(_ROLL, {"coarse": coarse, "fine": fine, "since": now - _BACK[coarse]})


def forget(now: datetime | None = None) -> int:
    """Delete what is older than it is kept; how many rows."""
    now = now or timezone.now()
    deleted = 0
    with connection.cursor() as cursor:
        for grain_s, kept_s in kept().items():
            while True:
                cursor.execute(_FORGET, [grain_s, now - timedelta(seconds=kept_s), _AT_ONCE])
                deleted += cursor.rowcount
                if cursor.rowcount < _AT_ONCE:
                    break
    return deleted


def kept() -> dict[int, int]:
    """Length of a span -> for how many seconds it is kept."""
    return {
        SAMPLE_S: settings.USAGE_KEPT_10S_H * 3600,
        MINUTE_S: settings.USAGE_KEPT_MINUTES_D * 86_400,
        HOUR_S: settings.USAGE_KEPT_HOURS_D * 86_400,
    }


def measured(environment: str, *, since: datetime) -> set[str]:
    """Tenants that were among the busiest at some time."""
    rows = Demand.objects.filter(environment=environment).exclude(tenant=EVERYBODY)
    hours = rows.filter(grain_s=HOUR_S, at__gte=since)
    # What is too young to be in an hour yet.
    minutes = rows.filter(grain_s=MINUTE_S, at__gte=timezone.now() - _BACK[HOUR_S])
    return {
        tenant for found in (hours, minutes) for tenant in found.values_list("tenant", flat=True).distinct()
    }


def minutes_of(environment: str, tenants: Collection[str], *, since: datetime) -> dict[str, Minutes]:
    """Tenant -> begin of the minute in unix seconds -> requests asked and refused."""
    rows = Demand.objects.filter(environment=environment, grain_s=MINUTE_S, at__gte=since)
    rows = rows.filter(tenant__in=list(tenants)).order_by()
    found: dict[str, Minutes] = {}
    for tenant, at, asked, refused in rows.values_list("tenant", "at", "asked", "refused").iterator(10_000):
        found.setdefault(tenant, {})[int(at.timestamp())] = (asked, refused)
    return found


def let_through(environment: str, *, since: datetime) -> dict[int, int]:
    """Begin of the minute in unix seconds -> requests allowed, of all tenants together."""
    rows = Demand.objects.filter(environment=environment, tenant=EVERYBODY, grain_s=MINUTE_S, at__gte=since)
    counts = rows.order_by().values_list("at", "asked", "refused")
    return {int(at.timestamp()): asked - refused for at, asked, refused in counts}


def _begin(moment: datetime, grain_s: int) -> datetime:
    seconds = int(moment.timestamp())
    return datetime.fromtimestamp(seconds - seconds % grain_s, UTC)
