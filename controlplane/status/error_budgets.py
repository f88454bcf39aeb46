"""Error budgets: the share of refused or failed calls against a target over 28 days, from the stored series.

One statement reads the whole hours of all dependencies, or of all quotas of tenants, and one the last hour.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db import connection

from controlplane.series.kinds import DEPENDENCY, RULE, SPAN_S, Kind
from controlplane.series.partitions import SPANS_1H
from controlplane.status.refusals import ENDED_CALLS, REFUSED_CALLS

#: The calls of 100 that must be made and succeed. It is the same for everything in every environment.
TARGET_PERCENT = 99.9
DAYS = 28
#: Rows of one list: those that have used most of their budget.
MAX_BUDGETS = 50
_ALLOWED = 1 - TARGET_PERCENT / 100

_HOURS = """
    SELECT name, sub, sum(asked)::bigint, sum(bad)::bigint, sum(known)::bigint,
           coalesce(sum(asked) FILTER (WHERE hour >= %(six)s), 0)::bigint,
           coalesce(sum(bad) FILTER (WHERE hour >= %(six)s), 0)::bigint, max(hour) FILTER (WHERE known > 0)
    FROM (
        SELECT name, sub, day + make_interval(hours => place - 1) AS hour, coalesce(v[place], 0) AS known,
               {asked} AS asked, {bad} AS bad
        FROM series_1h JOIN series_entity ON series_entity.id = entity, generate_series(1, 24) AS place
        WHERE environment = %(environment)s AND kind = %(kind)s AND day >= %(day)s AND {which}
    ) AS hours
    WHERE hour >= %(start)s GROUP BY name, sub
"""
_LAST_HOUR = """
    SELECT name, sub, sum({asked})::bigint, sum({bad})::bigint
    FROM (
        SELECT ids, v, array_length(v, 1) / array_length(ids, 1) AS width FROM series_frame
        WHERE kind = %(kind)s AND at >= %(last)s
          AND writer IN (SELECT id FROM series_writer WHERE environment = %(environment)s)
    ) AS frames, generate_subscripts(ids, 1) AS place JOIN series_entity ON true
    WHERE series_entity.id = ids[place] AND {which} GROUP BY name, sub
"""


@dataclass(frozen=True, kw_only=True)
class ErrorBudget:
    """Calls of a dependency, or requests of a tenant under one quota."""

    #: The dependency or the tenant, and the quota of a tenant.
    name: str
    quota: str
    asked: int
    #: Failed or refused.
    bad: int
    #: Hours of the 28 days that are measured, at least in part.
    known_s: int
    burn_1h: float | None
    burn_6h: float | None
    #: The end of the last whole hour that is stored.
    until: datetime | None

    @property
    def burn(self) -> float:
        """How fast the budget is spent over 28 days: 1 spends all of it in 28 days."""
        return self.bad / (self.asked * _ALLOWED)

    @property
    def left_percent(self) -> float:
        """Below 0 if more was refused or failed than the target allows."""
        return 100 * (1 - self.burn)

    @property
    def good_percent(self) -> float:
        """Rounded down, so that 99.9 is the target or more."""
        return int(100_000 * (1 - self.bad / self.asked)) / 1000

    @property
    def known_days(self) -> float:
        return self.known_s / 86_400

    @property
    def spent(self) -> bool:
        return self.burn >= 1


def dependency_budgets(environment: str, now: datetime, *, name: str = "") -> list[ErrorBudget]:
    """Return those of all dependencies that were called, or of one: the most spent first."""
    return _budgets(
        environment, DEPENDENCY, (*ENDED_CALLS, *REFUSED_CALLS), ("failures", *REFUSED_CALLS), name, now
    )


def tenant_budgets(environment: str, now: datetime, *, name: str = "") -> list[ErrorBudget]:
    """Return those of the quotas of all tenants that were among the busiest, or of one tenant."""
    return _budgets(environment, RULE, ("asked",), ("refused",), name, now)


def _budgets(
    environment: str, kind: Kind, asked: tuple[str, ...], bad: tuple[str, ...], name: str, now: datetime
) -> list[ErrorBudget]:
    hour = now.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    start = hour - timedelta(days=DAYS)
    values: dict[str, Any] = {
        "environment": environment,
        "kind": kind.number,
        "name": name,
        "start": start,
        "day": start.replace(hour=0),
        "six": hour - timedelta(hours=6),
        "last": now - timedelta(hours=1),
    }
    # All quotas of no tenant are those of all tenants together.
    which = "name = %(name)s" if name else "name <> ''"
    with connection.cursor() as cursor:
        cursor.execute(
            _HOURS.format(asked=_in_hours(kind, asked), bad=_in_hours(kind, bad), which=which), values
        )
        hours = cursor.fetchall()
        cursor.execute(
            _LAST_HOUR.format(asked=_in_frames(kind, asked), bad=_in_frames(kind, bad), which=which), values
        )
        last = {(of, sub): (all_asked, all_bad) for of, sub, all_asked, all_bad in cursor.fetchall()}
    found = [
        ErrorBudget(
            name=of,
            quota=sub,
            asked=all_asked,
            bad=all_bad,
            known_s=known * SPAN_S,
            burn_1h=_burn(*last.get((of, sub), (0, 0))),
            burn_6h=_burn(asked_6h, bad_6h),
            until=None if newest is None else newest + timedelta(hours=1),
        )
        for of, sub, all_asked, all_bad, known, asked_6h, bad_6h, newest in hours
        if all_asked
    ]
    found.sort(key=lambda one: (-one.burn, one.name, one.quota))
    return found[:MAX_BUDGETS]


def _burn(asked: int, bad: int) -> float | None:
    return bad / (asked * _ALLOWED) if asked else None


def _in_hours(kind: Kind, fields: tuple[str, ...]) -> str:
    """The sum of fields in one hour of a row; part 0 of it is what is known."""
    places = [(kind.place(field) + 1) * SPANS_1H.across for field in fields]
    return " + ".join(f"coalesce(v[{place} + place], 0)" for place in places)


def _in_frames(kind: Kind, fields: tuple[str, ...]) -> str:
    return " + ".join(f"coalesce(v[(place - 1) * width + {kind.place(field) + 1}], 0)" for field in fields)
