"""Reads what was measured in a week: one statement per question, however many tenants there are."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db import connection

from controlplane.series.kinds import ABOUT_HOUR, RULE
from controlplane.series.totals import day_sql

#: Rows of one answer. Lines beyond it are counted only.
MAX_ROWS = 20

#: Most of a row asked for something and was refused nothing: only places with a refusal are added up.
_REFUSED = """
    WITH of_week AS (
        SELECT hour, part, writer, ids, asked, refused
        FROM series_tenant_hour
        WHERE hour >= %(start)s AND hour < %(end)s AND part <> %(about)s
          AND writer IN (SELECT id FROM series_writer WHERE environment = %(environment)s)
    ), found AS (
        SELECT one.id, sum(one.refused) AS refused
        FROM of_week, unnest(ids, refused) AS one (id, refused)
        WHERE one.refused > 0 GROUP BY one.id
    ), worst AS (
        SELECT id, refused, count(*) OVER () AS every FROM found ORDER BY refused DESC, id LIMIT %(most)s
    )
    SELECT worst.id, worst.refused, worst.every,
        (SELECT sum(asked[array_position(ids, worst.id)]) FROM of_week
         WHERE part = mod(mod(worst.id, 256) + 256, 256)),
        (SELECT min(key) FROM policies_tenant WHERE environment_id = %(environment)s
         AND ('x' || encode(substr(sha256(convert_to(key, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint
             = worst.id)
    FROM worst ORDER BY worst.refused DESC, worst.id
"""
_KNOWN_HOURS = """
    SELECT count(DISTINCT hour), count(DISTINCT hour) FILTER (WHERE partial)
    FROM series_tenant_hour JOIN series_writer ON series_writer.id = writer
    WHERE environment = %(environment)s AND part = %(about)s AND known_s > 0
      AND hour >= %(start)s AND hour < %(end)s
"""
#: A breaker is in the state of a transition until the next one, also if that is after the week.
_OPEN = """
    WITH states AS (
        SELECT dependency_id, to_state, at,
            lead(at, 1, %(end)s) OVER (PARTITION BY dependency_id ORDER BY generation) AS until
        FROM breakers_transition JOIN policies_dependency ON policies_dependency.id = dependency_id
        WHERE environment_id = %(environment)s AND at < %(end)s
    )
    SELECT name, sum(extract(epoch FROM least(until, %(end)s) - greatest(at, %(start)s)))::float8 AS open_s,
        count(*) FILTER (WHERE at >= %(start)s), count(*) OVER ()
    FROM states JOIN policies_dependency ON policies_dependency.id = dependency_id
    WHERE to_state = 'open' AND until > %(start)s
    GROUP BY name ORDER BY open_s DESC, name LIMIT %(most)s
"""
#: Counts of the tenants that gateways list; for all others, only the sum over all tenants is stored.
_QUOTAS = f"""
    SELECT policies_tier.name, sub, count(DISTINCT policies_tenant.id),
        sum({{asked}}), sum({{refused}}), max({{peak}})
    FROM series_1h JOIN series_entity ON series_entity.id = series_1h.entity
    JOIN policies_tenant ON policies_tenant.environment_id = series_entity.environment
        AND policies_tenant.key = series_entity.name
    JOIN policies_tier ON policies_tier.id = policies_tenant.tier_id
    WHERE series_entity.environment = %(environment)s AND kind = {RULE.number} AND series_entity.name <> ''
      AND series_1h.day >= %(start)s AND series_1h.day < %(end)s
      AND NOT EXISTS (SELECT FROM policies_tenantquota
                      WHERE tenant_id = policies_tenant.id AND policies_tenantquota.name = sub)
    GROUP BY policies_tier.name, sub ORDER BY policies_tier.name, sub
"""  # noqa: S608 - texts and numbers of this code
_FLAPPING = """
    SELECT key, count(*), bool_or(flapping_since IS NOT NULL), count(*) OVER (),
        sum(extract(epoch FROM coalesce(resolved_at, %(end)s) - fired_at))::float8
    FROM alerts_alert
    WHERE environment = %(environment)s AND fired_at >= %(start)s AND fired_at < %(end)s
    GROUP BY key HAVING count(*) >= %(least)s OR bool_or(flapping_since IS NOT NULL)
    ORDER BY count(*) DESC, key LIMIT %(most)s
"""


@dataclass(frozen=True, kw_only=True)
class Week:
    environment: str
    start: datetime
    end: datetime

    def asked(self, **more: Any) -> dict[str, Any]:
        return {"environment": self.environment, "start": self.start, "end": self.end, **more}


@dataclass(frozen=True, kw_only=True)
class RefusedTenant:
    #: ``None`` if no registered tenant has this number.
    key: str | None
    asked: int
    refused: int


@dataclass(frozen=True, kw_only=True)
class OpenBreaker:
    dependency: str
    open_s: float
    #: How often it opened in the week.
    times: int


@dataclass(frozen=True, kw_only=True)
class QuotaUse:
    """The demand of a tier's listed tenants on its quota, without those that have their own quota."""

    tier: str
    quota: str
    tenants: int
    asked: int
    refused: int
    #: The most that one of them asked in an hour.
    peak_hour: int


@dataclass(frozen=True, kw_only=True)
class FlappingAlert:
    key: str
    times: int
    flapped: bool
    fired_s: float


def allow_long_statements() -> None:
    """Until the end of the transaction: a week of 100,000 tenants has 17 million figures."""
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL statement_timeout = '25s'")


def known_hours(week: Week) -> tuple[int, int]:
    """Hours with figures of all tenants, and those of them in which some tenants are missing."""
    ((known, partial),) = _rows(_KNOWN_HOURS, week.asked(about=ABOUT_HOUR))
    return int(known), int(partial)


def refused_tenants(week: Week) -> tuple[list[RefusedTenant], int]:
    """The tenants with the most refused requests, and how many had any."""
    rows = _rows(_REFUSED, week.asked(about=ABOUT_HOUR, most=MAX_ROWS))
    found = [
        RefusedTenant(key=key, asked=int(asked or 0), refused=int(refused))
        for _, refused, _, asked, key in rows
    ]
    return found, int(rows[0][2]) if rows else 0


def open_breakers(week: Week) -> tuple[list[OpenBreaker], int]:
    rows = _rows(_OPEN, week.asked(most=MAX_ROWS))
    found = [OpenBreaker(dependency=name, open_s=seconds, times=times) for name, seconds, times, _ in rows]
    return found, int(rows[0][3]) if rows else 0


def quota_uses(week: Week) -> list[QuotaUse]:
    statement = _QUOTAS.format(asked=day_sql("sum", 1), refused=day_sql("sum", 2), peak=day_sql("max", 1))
    return [
        QuotaUse(
            tier=tier,
            quota=quota,
            tenants=tenants,
            asked=int(asked or 0),
            refused=int(refused or 0),
            peak_hour=int(peak or 0),
        )
        for tier, quota, tenants, asked, refused, peak in _rows(statement, week.asked())
    ]


def flapping_alerts(week: Week, *, least: int) -> tuple[list[FlappingAlert], int]:
    """Alerts that fired at least so often, or were found to flap."""
    rows = _rows(_FLAPPING, week.asked(least=least, most=MAX_ROWS))
    found = [
        FlappingAlert(key=key, times=times, flapped=flapped, fired_s=seconds)
        for key, times, flapped, _, seconds in rows
    ]
    return found, int(rows[0][3]) if rows else 0


def _rows(statement: str, asked: dict[str, Any]) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, asked)
        rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return rows
