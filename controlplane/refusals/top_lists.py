"""Top lists of refusals by tenant, endpoint, reason and dependency: how they are stored, and read.

A gateway writes one row per list and minute, with at most 50 names. The worker adds up minutes to hours. A
number is never too high: of each row, ``short_by`` is the most that any name can have been counted beyond it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from django.db import connection
from django.db.models import Min
from django.utils import timezone

from controlplane.postgres import delete_rows
from controlplane.refusals.models import TopList

#: Names in one row, and of one list that is read.
MAX_STORED, MAX_READ = 50, 20
MINUTE_S, HOUR_S = 60, 3_600
#: How long rows are kept, and the hours that are added up again from minutes: a gateway keeps minutes that it
#: cannot write for half an hour.
KEPT_MINUTES, KEPT_HOURS, BACK = timedelta(hours=6), timedelta(days=29), timedelta(hours=3)


class Of(StrEnum):
    #: Requests that a service answered with 429 or 503.
    REQUESTS = "requests"
    #: Calls that a service did not make.
    CALLS = "calls"


class By(StrEnum):
    TENANT = "tenant"
    ENDPOINT = "endpoint"
    REASON = "reason"
    DEPENDENCY = "dependency"


@dataclass(frozen=True)
class Kind:
    """One of the lists. Rows store its number."""

    number: int
    of: Of
    by: By
    #: Estimated from samples. Pods count the others.
    sampled: bool = False


REQUESTS_BY_TENANT = Kind(1, Of.REQUESTS, By.TENANT)
REQUESTS_BY_ENDPOINT = Kind(2, Of.REQUESTS, By.ENDPOINT, sampled=True)
REQUESTS_BY_REASON = Kind(3, Of.REQUESTS, By.REASON)
CALLS_BY_DEPENDENCY = Kind(4, Of.CALLS, By.DEPENDENCY)
CALLS_BY_REASON = Kind(5, Of.CALLS, By.REASON)
CALLS_BY_TENANT = Kind(6, Of.CALLS, By.TENANT, sampled=True)
CALLS_BY_ENDPOINT = Kind(7, Of.CALLS, By.ENDPOINT, sampled=True)
KINDS = (
    *(REQUESTS_BY_TENANT, REQUESTS_BY_ENDPOINT, REQUESTS_BY_REASON),
    *(CALLS_BY_DEPENDENCY, CALLS_BY_REASON, CALLS_BY_TENANT, CALLS_BY_ENDPOINT),
)
OF_TENANTS = tuple(kind.number for kind in KINDS if kind.by is By.TENANT)

_ROLL_UP = f"""
    WITH minutes AS (
        SELECT *, date_trunc('hour', at, 'UTC') AS hour FROM refusals_toplist
        WHERE grain_s = {MINUTE_S} AND at >= date_trunc('hour', %(since)s::timestamptz, 'UTC')
    ), placed AS (
        SELECT environment, kind, hour, name, sum(count) AS count, row_number() OVER (
            PARTITION BY environment, kind, hour ORDER BY sum(count) DESC, name) AS place
        FROM minutes, unnest(names, counts) AS one(name, count)
        GROUP BY environment, kind, hour, name
    ), listed AS (
        SELECT environment, kind, hour,
               array_agg(name ORDER BY place) FILTER (WHERE place <= {MAX_STORED}) AS names,
               array_agg(count ORDER BY place) FILTER (WHERE place <= {MAX_STORED}) AS counts,
               coalesce(max(count) FILTER (WHERE place = {MAX_STORED} + 1), 0) AS left_out
        FROM placed GROUP BY environment, kind, hour
    ), whole AS (
        SELECT environment, kind, hour, sum(total) AS total, sum(short_by) AS short_by
        FROM minutes GROUP BY environment, kind, hour
    )
    INSERT INTO refusals_toplist (environment, kind, grain_s, at, writer, names, counts, total, short_by)
    SELECT environment, kind, {HOUR_S}, hour, 0, coalesce(names, '{{}}'), coalesce(counts, '{{}}'), total,
           short_by + coalesce(left_out, 0)
    FROM whole LEFT JOIN listed USING (environment, kind, hour)
    ON CONFLICT (environment, kind, grain_s, at, writer) DO UPDATE SET names = EXCLUDED.names,
        counts = EXCLUDED.counts, total = EXCLUDED.total, short_by = EXCLUDED.short_by
"""  # noqa: S608 - numbers of this code
#: Hours, and minutes where they are still there: the worker may not have added them up yet.
_ROWS = f"""
    rows AS (
        SELECT kind, names, counts, total, short_by FROM refusals_toplist
        WHERE environment = %(environment)s AND at < %(end)s AND (
            grain_s = {MINUTE_S} AND at >= greatest(%(start)s, %(split)s)
            OR grain_s = {HOUR_S} AND at >= %(start)s AND at < %(split)s)
    )
"""  # noqa: S608
_LINES = f"""
    WITH {_ROWS}, placed AS (
        SELECT kind, name, sum(count) AS count,
               row_number() OVER (PARTITION BY kind ORDER BY sum(count) DESC, name) AS place
        FROM rows, unnest(names, counts) AS one(name, count) GROUP BY kind, name
    )
    SELECT kind, name, count FROM placed WHERE place <= %(most)s ORDER BY kind, place
"""  # noqa: S608
_TOTALS = f"WITH {_ROWS} SELECT kind, sum(total), sum(short_by) FROM rows GROUP BY kind"  # noqa: S608

#: The number that ``controlplane.series.kinds.tenant_number`` gives a name.
_NUMBER = "('x' || encode(substr(sha256(convert_to(name, 'UTF8')), 1, 8), 'hex'))::bit(64)::bigint"
#: Removes a tenant by its number. Its refusals stay in the totals, without its name.
ERASE = f"""
    UPDATE refusals_toplist SET (names, counts) = (
        SELECT coalesce(array_agg(name ORDER BY place), '{{}}'),
               coalesce(array_agg(count ORDER BY place), '{{}}')
        FROM unnest(names, counts) WITH ORDINALITY AS one(name, count, place)
        WHERE {_NUMBER} <> %(number)s)
    WHERE environment = %(environment)s AND kind = ANY(%(kinds)s) AND at >= %(since)s::timestamptz
        AND EXISTS (SELECT FROM unnest(names) AS name WHERE {_NUMBER} = %(number)s)
"""  # noqa: S608


@dataclass(frozen=True, kw_only=True)
class Line:
    name: str
    #: At least this many refusals; an estimate in a list of samples.
    count: float


@dataclass(frozen=True, kw_only=True)
class Top:
    """One list over a range: the names with the most refusals first."""

    kind: Kind
    lines: list[Line]
    #: All refusals of this kind, also of names that are not in ``lines``.
    total: float
    #: The most that any name can have been counted beyond its line.
    short_by: float

    @property
    def rest(self) -> float:
        """The refusals that no line counts."""
        return max(0.0, self.total - sum(line.count for line in self.lines))


@dataclass(frozen=True, kw_only=True)
class TopLists:
    start: datetime
    #: ``None`` if nothing is stored at all.
    stored_since: datetime | None
    lists: Mapping[Kind, Top]

    @property
    def known(self) -> bool:
        return bool(self.lists)

    def refused(self, of: Of) -> float:
        """Return the number that pods counted."""
        kind = REQUESTS_BY_REASON if of is Of.REQUESTS else CALLS_BY_REASON
        return self.lists[kind].total if kind in self.lists else 0.0


def read_top(
    environment: str, start: datetime, end: datetime, *, most: int = MAX_READ, now: datetime | None = None
) -> TopLists:
    """The top lists of a range. Its start is rounded down to a minute, or to an hour if it is hours ago."""
    now = now or timezone.now()
    split = _hour_of(now - BACK + timedelta(hours=1))
    start = start.replace(second=0, microsecond=0) if start >= split else _hour_of(start)
    asked: dict[str, Any] = {
        "environment": environment,
        "start": start,
        "end": end,
        "split": split,
        "most": most,
    }
    lines: dict[int, list[Line]] = {}
    with connection.cursor() as cursor:
        cursor.execute(_LINES, asked)
        for number, name, counted in cursor.fetchall():
            lines.setdefault(number, []).append(Line(name=name, count=counted))
        cursor.execute(_TOTALS, asked)
        totals = {number: (total, short_by) for number, total, short_by in cursor.fetchall()}
    rows = TopList.objects.filter(environment=environment)
    return TopLists(
        start=start,
        stored_since=rows.aggregate(first=Min("at"))["first"],
        lists={
            kind: Top(
                kind=kind,
                lines=lines.get(kind.number, []),
                total=totals[kind.number][0],
                short_by=totals[kind.number][1],
            )
            for kind in KINDS
            if kind.number in totals
        },
    )


def roll_up(now: datetime | None = None) -> None:
    """Add up the minutes of the last hours. It rewrites whole hours, so it may run late or twice."""
    with connection.cursor() as cursor:
        cursor.execute(_ROLL_UP, {"since": (now or timezone.now()) - BACK})


def forget(now: datetime | None = None) -> int:
    """Delete what is too old; returns the number of rows."""
    now = now or timezone.now()
    return sum(
        delete_rows(TopList._meta.db_table, "grain_s = %s AND at < %s", [grain_s, now - kept])
        for grain_s, kept in ((MINUTE_S, KEPT_MINUTES), (HOUR_S, KEPT_HOURS))
    )


def erase_tenant(environment: str, number: int) -> int:
    """Take a tenant out of all lists, by its number; returns the number of rows that had it."""
    with connection.cursor() as cursor:
        cursor.execute(ERASE, erasing(environment, number, since="-infinity"))
        return int(cursor.rowcount)


def erasing(environment: str, number: int, *, since: str) -> dict[str, Any]:
    """The values of ``ERASE``."""
    return {"environment": environment, "number": number, "kinds": list(OF_TENANTS), "since": since}


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
