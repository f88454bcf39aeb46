"""Reads what a tenant asked for in each hour, also a tenant that is never among the busiest.

Rows have the tenants of one part of all, as numbers. So one tenant of 100,000 is read from one small row per
hour and run of a gateway.
"""

from collections import defaultdict
from collections.abc import Collection, Sequence
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

from django.db import connection
from django.utils import timezone

from controlplane.series.kinds import ABOUT_HOUR, TENANT_HOUR, tenant_number, tenant_part
from controlplane.series.reading import MAX_PARTIAL, MAX_RANGE, Answer, Partial

HOUR_S = 3_600

_READ = """
    SELECT extract(epoch FROM hour)::bigint, gateway, part, known_s, partial,
           asked[array_position(ids, %(number)s::bigint)], refused[array_position(ids, %(number)s::bigint)]
    FROM series_tenant_hour JOIN series_writer ON series_writer.id = writer
    WHERE environment = %(environment)s AND part = ANY(%(parts)s) AND hour >= %(start)s AND hour < %(end)s
"""
#: One statement for all tenants: an alert rule asks for the busiest ones together.
_RATES = """
    WITH known AS (
        SELECT hour, least(%(hour_s)s, max(known_s)) AS known_s
        FROM (
            SELECT hour, gateway, sum(known_s) AS known_s
            FROM series_tenant_hour JOIN series_writer ON series_writer.id = writer
            WHERE environment = %(environment)s AND part = %(about)s AND hour >= %(start)s AND hour < %(end)s
            GROUP BY hour, gateway
        ) AS of_gateway
        GROUP BY hour
    ), counted AS (
        SELECT wanted.name, hour, sum(asked[array_position(ids, wanted.number)]) AS asked
        FROM unnest(%(names)s::text[], %(numbers)s::bigint[], %(parts)s::smallint[])
            AS wanted(name, number, part)
        JOIN series_tenant_hour USING (part) JOIN series_writer ON series_writer.id = writer
        WHERE environment = %(environment)s AND hour >= %(start)s AND hour < %(end)s
            AND ids @> ARRAY[wanted.number]
        GROUP BY wanted.name, hour
    )
    SELECT name, asked::float8 / known_s FROM counted JOIN known USING (hour) WHERE asked > 0 AND known_s > 0
"""
_FIRST = """
    SELECT extract(epoch FROM min(hour))::bigint
    FROM series_tenant_hour JOIN series_writer ON series_writer.id = writer
    WHERE environment = %s AND part = %s
"""
_PLACE = "array_position(ids, %(number)s::bigint)"
#: Without a join: if a gateway writes the row meanwhile, each place is looked up again in what it wrote.
ERASE = f"""
    UPDATE series_tenant_hour SET
        ids = ids[:{_PLACE} - 1] || ids[{_PLACE} + 1:],
        asked = asked[:{_PLACE} - 1] || asked[{_PLACE} + 1:],
        refused = refused[:{_PLACE} - 1] || refused[{_PLACE} + 1:]
    WHERE part = %(part)s AND hour >= %(since)s::timestamptz AND ids @> ARRAY[%(number)s::bigint]
      AND writer IN (SELECT id FROM series_writer WHERE environment = %(environment)s)
"""  # noqa: S608 - a text of this code


def read_hours(
    environment: str,
    tenant: str,
    *,
    fields: Sequence[str],
    start: datetime,
    end: datetime,
    now: datetime | None = None,
) -> Answer:
    """One point per hour. Raises ``ValueError`` for a field that there is not."""
    places = [TENANT_HOUR.place(field) for field in fields]
    end = min(end, (now or timezone.now()) + timedelta(seconds=1))
    start = max(start, end - MAX_RANGE)
    begin = int(start.timestamp()) // HOUR_S * HOUR_S
    count = max(0, ceil((end.timestamp() - begin) / HOUR_S))
    known_s = [0] * count
    values: list[list[int | None]] = [[None] * count for _ in places]
    incomplete = []
    for at, (known, partial, counted) in sorted(_hours(environment, tenant, begin, count).items()):
        place = (at - begin) // HOUR_S
        # If tallies of the hour are not complete, a tenant without one may have asked.
        if known and (counted is not None or not partial):
            known_s[place] = known
            if partial:
                incomplete.append(at)
            for column, which in zip(values, places, strict=True):
                column[place] = 0 if counted is None else counted[which]
    newest = max((at for at, known in enumerate(known_s) if known), default=None)
    return Answer(
        start=begin,
        step_s=HOUR_S,
        known_s=known_s,
        fields=dict(zip(fields, values, strict=True)),
        first_at=_first(environment),
        partial=_runs(incomplete)[-MAX_PARTIAL:],
        newest=None if newest is None else begin + (newest + 1) * HOUR_S,
        made_up_until=None,
    )


def read_hourly_rates(
    environment: str, tenants: Collection[str], *, start: datetime, end: datetime
) -> dict[str, list[float]]:
    """Tenant -> requests per second in each whole hour in which it asked, in one query."""
    numbers = [tenant_number(tenant) for tenant in tenants]
    found: dict[str, list[float]] = {tenant: [] for tenant in tenants}
    with connection.cursor() as cursor:
        cursor.execute(
            _RATES,
            {
                "environment": environment,
                "about": ABOUT_HOUR,
                "hour_s": HOUR_S,
                "names": list(tenants),
                "numbers": numbers,
                "parts": [tenant_part(number) for number in numbers],
                "start": start,
                # The hour that runs is not whole.
                "end": end.replace(minute=0, second=0, microsecond=0),
            },
        )
        for tenant, per_s in cursor.fetchall():
            found[tenant].append(per_s)
    return found


def _runs(hours: Sequence[int]) -> list[Partial]:
    """Hours with requests that are in no tally, joined. How many pods sent none is not known."""
    runs: list[Partial] = []
    for at in hours:
        start = runs.pop().start if runs and runs[-1].end == at else at
        runs.append(Partial(start=start, end=at + HOUR_S, heard=0, known=0))
    return runs


_Counted = list[int] | None


def _hours(environment: str, tenant: str, begin: int, count: int) -> dict[int, tuple[int, bool, _Counted]]:
    """Start of an hour -> seconds that were measured, whether tenants are missing, and what was counted."""
    number = tenant_number(tenant)
    asked: dict[str, Any] = {
        "environment": environment,
        "number": number,
        "parts": [ABOUT_HOUR, tenant_part(number)],
        "start": datetime.fromtimestamp(begin, UTC),
        "end": datetime.fromtimestamp(begin + count * HOUR_S, UTC),
    }
    with connection.cursor() as cursor:
        cursor.execute(_READ, asked)
        rows = cursor.fetchall()
    # Runs of one gateway follow each other; several gateways measure the same time.
    known: dict[int, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    partial: set[int] = set()
    counted: dict[int, list[int]] = {}
    for at, gateway, part, known_s, is_partial, asked_for, refused in rows:
        if part == ABOUT_HOUR:
            known[at][gateway] += known_s
            partial |= {at} if is_partial else set()
        elif asked_for is not None:
            sums = counted.setdefault(at, [0, 0])
            sums[0] += asked_for
            sums[1] += refused
    return {
        at: (min(HOUR_S, max(gateways.values())), at in partial, counted.get(at))
        for at, gateways in known.items()
    }


def _first(environment: str) -> int | None:
    with connection.cursor() as cursor:
        cursor.execute(_FIRST, [environment, ABOUT_HOUR])
        row = cursor.fetchone()
    return None if row is None or row[0] is None else int(row[0])


def erase_hours(environment: str, tenant: str) -> int:
    """Take a tenant out of all rows; returns their number."""
    with connection.cursor() as cursor:
        cursor.execute(ERASE, erasing(environment, tenant_number(tenant), since="-infinity"))
        return int(cursor.rowcount)


def erasing(environment: str, number: int, *, since: str) -> dict[str, Any]:
    """The values of ``ERASE``, which removes a tenant from the hours from ``since`` on."""
    return {"environment": environment, "number": number, "part": tenant_part(number), "since": since}
