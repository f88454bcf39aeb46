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
#: How long rows are kept. A worker that was stopped for less than that of minutes loses nothing.
KEPT_MINUTES, KEPT_HOURS = timedelta(hours=6), timedelta(days=29)
#: Reads use minutes from the hour of this time ago on, because the worker may be late, and hours before it.
READ_MINUTES = timedelta(hours=2)
HOUR = timedelta(hours=1)


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

#: The oldest minute and the newest hour of each environment. One index answers it.
_STORED = f"""
    SELECT environment, min(at) FILTER (WHERE grain_s = {MINUTE_S}), max(at) FILTER (WHERE grain_s = {HOUR_S})
    FROM refusals_toplist GROUP BY environment ORDER BY environment
"""  # noqa: S608 - numbers of this code
#: One hour of one environment. Rows are in one order, so that two workers wait for each other and go on.
_ROLL_UP = f"""
    WITH minutes AS (
        SELECT kind, names, counts, total, short_by FROM refusals_toplist
        WHERE environment = %(environment)s AND grain_s = {MINUTE_S} AND at >= %(hour)s AND at < %(end)s
    ), placed AS (
        SELECT kind, name, sum(count) AS count,
               row_number() OVER (PARTITION BY kind ORDER BY sum(count) DESC, name) AS place
        FROM minutes, unnest(names, counts) AS one(name, count) GROUP BY kind, name
    ), listed AS (
        SELECT kind, array_agg(name ORDER BY place) FILTER (WHERE place <= {MAX_STORED}) AS names,
               array_agg(count ORDER BY place) FILTER (WHERE place <= {MAX_STORED}) AS counts,
               coalesce(max(count) FILTER (WHERE place = {MAX_STORED} + 1), 0) AS left_out
        FROM placed GROUP BY kind
    ), whole AS (
        SELECT kind, sum(total) AS total, sum(short_by) AS short_by FROM minutes GROUP BY kind
    )
    INSERT INTO refusals_toplist (environment, kind, grain_s, at, writer, names, counts, total, short_by)
    SELECT %(environment)s, kind, {HOUR_S}, %(hour)s, 0, coalesce(names, '{{}}'), coalesce(counts, '{{}}'),
           total, short_by + coalesce(left_out, 0)
    FROM whole LEFT JOIN listed USING (kind) ORDER BY kind
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
    #: The range that is counted: the lists have whole minutes, or whole hours.
    start: datetime
    end: datetime
    #: ``None`` if nothing is stored at all.
    stored_since: datetime | None
    lists: Mapping[Kind, Top]

    @property
    def known(self) -> bool:
        return bool(self.lists)

    @property
    def whole(self) -> bool:
        """Whether the lists are of the whole range, and not of the part since which they are stored."""
        return self.stored_since is not None and self.stored_since <= self.start

    def refused(self, of: Of) -> float:
        """Return the number that pods counted."""
        kind = REQUESTS_BY_REASON if of is Of.REQUESTS else CALLS_BY_REASON
        return self.lists[kind].total if kind in self.lists else 0.0


def read_top(
    environment: str, start: datetime, end: datetime, *, most: int = MAX_READ, now: datetime | None = None
) -> TopLists:
    """The top lists of a range. It is made longer to whole minutes, and what is hours ago to whole hours."""
    now = now or timezone.now()
    split = _hour_of(now - READ_MINUTES)
    start = _minute_of(start) if start >= split else _hour_of(start)
    # The moment before the end is in the last minute or hour.
    last = end - timedelta(microseconds=1)
    end = _minute_of(last) + timedelta(minutes=1) if last >= split else _hour_of(last) + HOUR
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
        end=end,
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
    """Add up the minutes of the present hour and the one before, and of older hours that are not complete.

    An hour is complete if the one after the next has been added up too: a gateway keeps minutes that it
    cannot write for half an hour. Each hour of each environment is rewritten as a whole, by one statement.
    """
    now = now or timezone.now()
    with connection.cursor() as cursor:
        cursor.execute(_STORED)
        for environment, first_minute, last_hour in cursor.fetchall():
            if first_minute is None:
                continue
            # Minutes of earlier hours may be gone.
            hour = max(_hour_of(now - KEPT_MINUTES), _hour_of(first_minute))
            if last_hour is not None:
                hour = max(hour, min(last_hour, _hour_of(now)) - HOUR)
            while hour <= now:
                cursor.execute(_ROLL_UP, {"environment": environment, "hour": hour, "end": hour + HOUR})
                hour += HOUR


def forget(now: datetime | None = None) -> int:
    """Delete what is too old; returns the number of rows. Minutes go by whole hours, for ``roll_up``."""
    now = now or timezone.now()
    return sum(
        delete_rows(TopList._meta.db_table, "grain_s = %s AND at < %s", [grain_s, _hour_of(now - kept)])
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


def _minute_of(at: datetime) -> datetime:
    return at.replace(second=0, microsecond=0)


def _hour_of(at: datetime) -> datetime:
    return at.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
