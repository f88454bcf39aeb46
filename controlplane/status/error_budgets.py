"""Error budgets: the share of refused or failed calls against a target over 28 days, from the stored series.

One statement chooses the dependencies or the quotas of tenants, one reads their whole hours, and one what is
not stored as hours yet, so that every range ends now. The page of one dependency or tenant reads only its own
rows.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, cast

from django.db import connection
from django.db.models import Max

from controlplane.refusals.top_lists import CALLS_BY_DEPENDENCY, HOUR_S, REQUESTS_BY_TENANT
from controlplane.series.kinds import DEPENDENCY, RULE, SPAN_S, Kind
from controlplane.series.models import Seal
from controlplane.series.partitions import SPANS_1H
from controlplane.status.refusals import ENDED_CALLS, REFUSED_CALLS

#: The calls of 100 that must be made and succeed. It is the same for everything in every environment.
TARGET_PERCENT = 99.9
DAYS = 28
#: Rows of one list: those that have used most of their budget.
MAX_BUDGETS = 50
#: One call of this many may be refused or fail: a whole number, so that a budget that is just spent is spent.
_ONE_OF = round(100 / (100 - TARGET_PERCENT))
#: The list that names what was refused most.
_LISTS = {DEPENDENCY: CALLS_BY_DEPENDENCY, RULE: REQUESTS_BY_TENANT}

#: Entities whose hours are read, however many there are: those of the names that were refused most, by the
#: stored top lists, then those that were measured last.
_MAX_READ = 500

_CHOSEN = f"""
    SELECT id FROM series_entity LEFT JOIN (
        SELECT name, sum(count) AS refused FROM refusals_toplist, unnest(names, counts) AS one(name, count)
        WHERE environment = %(environment)s AND kind = %(list)s AND grain_s = {HOUR_S} AND at >= %(start)s
        GROUP BY name
    ) AS listed USING (name)
    WHERE environment = %(environment)s AND kind = %(kind)s AND name <> ''
    ORDER BY refused DESC NULLS LAST, last_at DESC, id LIMIT %(most)s
"""  # noqa: S608 - a number of this code
_OF_ONE = """
    SELECT id FROM series_entity WHERE environment = %(environment)s AND kind = %(kind)s AND name = %(name)s
"""
_HOURS = """
    SELECT entity, name, sub, sum(asked)::bigint, sum(bad)::bigint, sum(known)::bigint,
           coalesce(sum(asked) FILTER (WHERE hour >= %(six)s), 0)::bigint,
           coalesce(sum(bad) FILTER (WHERE hour >= %(six)s), 0)::bigint
    FROM (
        SELECT entity, day + make_interval(hours => place - 1) AS hour, coalesce(v[place], 0) AS known,
               {asked} AS asked, {bad} AS bad
        FROM series_1h, generate_series(1, 24) AS place WHERE entity = ANY(%(ids)s::int[]) AND day >= %(day)s
    ) AS hours JOIN series_entity ON series_entity.id = entity
    WHERE hour >= %(start)s AND hour < %(tail)s GROUP BY entity, name, sub
"""
#: The hours that are not stored yet, and the last hour, which is a part of them or begins before them.
_FRAMES = """
    SELECT entity, name, sub,
           coalesce(sum(asked) FILTER (WHERE at >= %(tail)s), 0)::bigint,
           coalesce(sum(bad) FILTER (WHERE at >= %(tail)s), 0)::bigint,
           count(DISTINCT at) FILTER (WHERE at >= %(tail)s),
           coalesce(sum(asked) FILTER (WHERE at >= %(last)s), 0)::bigint,
           coalesce(sum(bad) FILTER (WHERE at >= %(last)s), 0)::bigint
    FROM (
        SELECT entity, at, {asked} AS asked, {bad} AS bad
        FROM (
            SELECT entity, at, v[(place - 1) * width + 1 : place * width] AS v
            FROM (
                SELECT at, ids, v, array_length(v, 1) / array_length(ids, 1) AS width FROM series_frame
                WHERE kind = %(kind)s AND at >= least(%(tail)s, %(last)s) AND ids && %(ids)s::int[]
                  AND writer IN (SELECT id FROM series_writer WHERE environment = %(environment)s)
            ) AS frames, unnest(ids) WITH ORDINALITY AS listed(entity, place)
            WHERE entity = ANY(%(ids)s::int[])
        ) AS ones
    ) AS sums JOIN series_entity ON series_entity.id = entity GROUP BY entity, name, sub
"""
_HOUR, _SIX_HOURS = timedelta(hours=1), timedelta(hours=6)


@dataclass(frozen=True, kw_only=True)
class ErrorBudget:
    """Calls of a dependency, or requests of a tenant under one quota."""

    #: The dependency or the tenant, and the quota of a tenant.
    name: str
    quota: str
    asked: int
    #: Failed or refused.
    bad: int
    #: Seconds of the 28 days that are measured, at least in part.
    known_s: int
    burn_1h: float | None
    burn_6h: float | None

    @property
    def burn(self) -> float:
        """How fast the budget is spent over 28 days: 1 spends all of it in 28 days."""
        return self.bad * _ONE_OF / self.asked

    @property
    def left_percent(self) -> float:
        """Below 0 if more was refused or failed than the target allows."""
        return 100 * (1 - self.burn)

    @property
    def known_days(self) -> float:
        return self.known_s / 86_400

    @property
    def spent(self) -> bool:
        return self.burn >= 1


@dataclass(frozen=True, kw_only=True)
class ErrorBudgets:
    #: The most spent first, at most ``MAX_BUDGETS``.
    lines: list[ErrorBudget]
    #: How many are spent, also of those that are not in ``lines``.
    spent: int


def dependency_budgets(environment: str, now: datetime, *, name: str = "") -> ErrorBudgets:
    """Return those of all dependencies that were called, or of one."""
    return _budgets(
        environment, DEPENDENCY, (*ENDED_CALLS, *REFUSED_CALLS), ("failures", *REFUSED_CALLS), name, now
    )


def tenant_budgets(environment: str, now: datetime, *, name: str = "") -> ErrorBudgets:
    """Return those of the quotas of all tenants that were among the busiest, or of one tenant."""
    return _budgets(environment, RULE, ("asked",), ("refused",), name, now)


def _budgets(
    environment: str, kind: Kind, asked: tuple[str, ...], bad: tuple[str, ...], name: str, now: datetime
) -> ErrorBudgets:
    start = _hour_of(now) - timedelta(days=DAYS)
    # The nearest whole hour, so that 6 hours are 6 and not nearly 7.
    six = _hour_of(now - _SIX_HOURS + _HOUR / 2)
    values: dict[str, Any] = {
        "environment": environment,
        "kind": kind.number,
        "name": name,
        "list": _LISTS[kind].number,
        "most": _MAX_READ,
        "start": start,
        "day": start.replace(hour=0),
        "six": six,
        "tail": max(six, _stored_until(now)),
        "last": now - _HOUR,
    }
    with connection.cursor() as cursor:
        # All quotas of no tenant are those of all tenants together: they are left out.
        cursor.execute(_OF_ONE if name else _CHOSEN, values)
        values["ids"] = [number for (number,) in cursor.fetchall()]
        cursor.execute(_HOURS.format(asked=_in_hours(kind, asked), bad=_in_hours(kind, bad)), values)
        stored = {row[0]: row for row in cursor.fetchall()}
        cursor.execute(_FRAMES.format(asked=_in_frames(kind, asked), bad=_in_frames(kind, bad)), values)
        lately = {row[0]: row for row in cursor.fetchall()}
    found = [_budget(stored.get(number), lately.get(number)) for number in stored | lately]
    lines = [one for one in found if one.asked]
    lines.sort(key=lambda one: (-one.bad / one.asked, one.name, one.quota))
    return ErrorBudgets(lines=lines[:MAX_BUDGETS], spent=sum(one.spent for one in lines))


#: Entity, name, second name, and five sums.
_Sums = tuple[int, str, str, int, int, int, int, int]


def _budget(stored: _Sums | None, lately: _Sums | None) -> ErrorBudget:
    """``stored`` are whole hours, ``lately`` are the frames after them: every range has both."""
    _, name, quota, *_ = cast(_Sums, stored or lately)
    asked, bad, known, asked_6h, bad_6h = stored[3:] if stored else (0, 0, 0, 0, 0)
    more_asked, more_bad, more_known, asked_1h, bad_1h = lately[3:] if lately else (0, 0, 0, 0, 0)
    return ErrorBudget(
        name=name,
        quota=quota,
        asked=asked + more_asked,
        bad=bad + more_bad,
        known_s=(known + more_known) * SPAN_S,
        burn_1h=_burn(asked_1h, bad_1h),
        burn_6h=_burn(asked_6h + more_asked, bad_6h + more_bad),
    )


def _stored_until(now: datetime) -> datetime:
    """The end of the hours that are stored. After it, there are frames."""
    newest = Seal.objects.filter(hour__lt=now).aggregate(newest=Max("hour"))["newest"]
    return now - timedelta(days=DAYS) if newest is None else newest + _HOUR


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)


def _burn(asked: int, bad: int) -> float | None:
    return bad * _ONE_OF / asked if asked else None


def _in_hours(kind: Kind, fields: tuple[str, ...]) -> str:
    """The sum of fields in one hour of a row; part 0 of it is what is known."""
    places = [(kind.place(field) + 1) * SPANS_1H.across for field in fields]
    return " + ".join(f"coalesce(v[{place} + place], 0)" for place in places)


def _in_frames(kind: Kind, fields: tuple[str, ...]) -> str:
    return " + ".join(f"coalesce(v[{kind.place(field) + 1}], 0)" for field in fields)
