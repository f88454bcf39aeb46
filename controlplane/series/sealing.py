"""Turns the frames of an hour into one row of arrays per thing: of 10 s, of minutes, and of hours.

An hour is sealed when no gateway has anything of it in memory any more, and once more before its frames
are deleted. Each time, its rows are computed from all of its frames and replaced. So it may happen late,
twice, or in two processes.

Rows are computed outside of transactions, for some things at a time, and each transaction writes a few
of them: so no transaction waits for a computation, and memory is bounded. Until all of them are written, the
hour counts as not sealed, and readers use its frames.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import Any

import structlog
from django.db import connection, transaction
from django.utils import timezone

from controlplane.postgres import session_lock
from controlplane.series import partitions
from controlplane.series.frames import (
    UNKNOWN,
    Packed,
    fill,
    frames_of_kind,
    in_order,
    listed_between,
    spans_between,
)
from controlplane.series.kinds import KINDS, MINUTES, SPAN_S, SPANS, Kind, roll_up
from controlplane.series.models import Entity, Seal
from controlplane.series.partitions import SPANS_1H, SPANS_1M, SPANS_10S, Table

Values = list[int | None]
#: Number, name, and since when it is known.
_Thing = tuple[int, str, datetime]

#: After the end of an hour. Gateways keep 5 minutes in memory.
SEAL_AFTER = timedelta(minutes=6)
#: When its frames are deleted. Until then, nothing is lost if a gateway's clock is late.
FINAL_AFTER = timedelta(hours=2)
#: A task may take 30 s. What is left is done a minute later.
MAX_S = 15.0
#: Things whose values are in memory at once, at most 60 KB each.
TOGETHER = 500
#: Things that one transaction writes.
PER_WRITE = 100

_HOUR = timedelta(hours=1)
_MINUTE_SPANS = SPANS // MINUTES

#: A lock of a session, because an hour takes several transactions. An older worker uses the same name.
_LOCK = "fuseboard.series.seal"
_OLDEST = "SELECT min(at) FROM series_frame"
_ENVIRONMENTS = """
    SELECT DISTINCT environment FROM series_writer
    WHERE id IN (SELECT writer FROM series_span WHERE at >= %s AND at < %s)
"""
_DROP_FRAMES = "DELETE FROM series_frame WHERE at >= %s AND at < %s"
_LAST_AT = """
    UPDATE series_entity SET last_at = GREATEST(last_at, heard.at)
    FROM unnest(%s::integer[], %s::timestamptz[]) AS heard (id, at) WHERE series_entity.id = heard.id
"""

log = structlog.get_logger(__name__)


def seal(now: datetime | None = None) -> int:
    """Seal every hour that is due, the oldest first; returns their number.

    Another process that is at it does the same work, so this one stops.
    """
    now = now or timezone.now()
    until, sealed = monotonic() + MAX_S, 0
    with session_lock(_LOCK) as alone:
        if not alone:
            return 0
        for hour in list(_due(now)):
            if monotonic() > until:
                break
            partitions.ensure(hour)
            final = hour + _HOUR + FINAL_AFTER <= now
            rows = seal_hour(hour)
            with transaction.atomic(), connection.cursor() as cursor:
                if final:
                    cursor.execute(_DROP_FRAMES, [hour, hour + _HOUR])
                Seal.objects.update_or_create(hour=hour, defaults={"final": final, "sealed_at": now})
            sealed += 1
            log.info("series.sealed", hour=hour.isoformat(), rows=rows, final=final)
    return sealed


def _due(now: datetime) -> Iterator[datetime]:
    with connection.cursor() as cursor:
        cursor.execute(_OLDEST)
        (oldest,) = cursor.fetchone()
    if oldest is None:
        return
    hour = SPANS_10S.row_of(oldest)
    seals = dict(Seal.objects.filter(hour__gte=hour).values_list("hour", "final"))
    while hour + _HOUR + SEAL_AFTER <= now:
        if seals.get(hour):
            _drop_late(hour)
        elif hour not in seals or hour + _HOUR + FINAL_AFTER <= now:
            yield hour
        hour += _HOUR


def _drop_late(hour: datetime) -> None:
    """Frames of an hour whose other frames are deleted cannot be added: they may be in it already."""
    with connection.cursor() as cursor:
        cursor.execute(_DROP_FRAMES, [hour, hour + _HOUR])
        if cursor.rowcount:
            log.warning("series.frames_too_late", hour=hour.isoformat(), frames=cursor.rowcount)


def seal_hour(hour: datetime) -> int:
    """Write the rows of one hour from its frames; returns the number of things."""
    with connection.cursor() as cursor:
        cursor.execute(_ENVIRONMENTS, [hour, hour + _HOUR])
        environments = sorted(name for (name,) in cursor.fetchall())
    return sum(_seal_kind(name, kind, hour) for name in environments for kind in KINDS)


def _seal_kind(environment: str, kind: Kind, hour: datetime) -> int:
    start, end = int(hour.timestamp()), hour + _HOUR
    spans = spans_between(environment, hour, end)
    things = Entity.objects.filter(environment=environment, kind=kind.number, first_at__lt=end)
    if not kind.complete:
        # A rule of all tenants together is listed whenever it counts.
        things = things.filter(id__in=listed_between(environment, kind, hour, end))
    known = list(things.order_by("id").values_list("id", "name", "first_at"))
    nothing: tuple[Packed, set[int]] = (array("q", [UNKNOWN]) * (SPANS * kind.width), set())
    for some in _batches(known, TOGETHER):
        frames = frames_of_kind(environment, kind, hour, end)
        found = in_order(kind, frames, start=start, count=SPANS, only={number for number, _, _ in some})
        for few in _batches(some, PER_WRITE):
            rows, heard = [], []
            for number, name, first_at in few:
                values, listed = found.pop(number, nothing)
                first = int(first_at.timestamp())
                values = fill(kind, name, values[:], listed, spans, start=start, first=first)
                if listed:
                    heard.append((number, datetime.fromtimestamp(start + SPAN_S * max(listed), UTC)))
                rows.append((number, [None if value == UNKNOWN else value for value in values]))
            _write(kind, hour, rows, heard)
    return len(known)


def _batches(things: list[_Thing], most: int) -> Iterator[list[_Thing]]:
    for first in range(0, len(things), most):
        yield things[first : first + most]


def _write(
    kind: Kind, hour: datetime, rows: list[tuple[int, Values]], heard: list[tuple[int, datetime]]
) -> None:
    """Write the rows of a few things, in one transaction that computes nothing."""
    minutes = [(number, rolled_up(kind, v, SPANS, _MINUTE_SPANS)) for number, v in rows]
    days = _hours_in_days(kind, hour, rows) if kind.hourly else []
    with transaction.atomic():
        write_rows(SPANS_10S, hour, rows)
        write_rows(SPANS_1M, hour, minutes)
        write_rows(SPANS_1H, SPANS_1H.row_of(hour), days)
        with connection.cursor() as cursor:
            cursor.execute(_LAST_AT, [[number for number, _ in heard], [at for _, at in heard]])


def rolled_up(kind: Kind, values: Sequence[int | None], count: int, times: int) -> Values:
    """How many of each ``times`` spans are known, then the values of each field over them."""
    coarse = count // times
    known: Values = [
        sum(value is not None for value in values[at * times : (at + 1) * times]) for at in range(coarse)
    ]
    for which, one in enumerate(kind.fields):
        of_field = values[which * count : (which + 1) * count]
        known += [roll_up(one.how, of_field[at * times : (at + 1) * times]) for at in range(coarse)]
    return known


def write_rows(table: Table, at: datetime, rows: Iterable[tuple[int, Values]]) -> None:
    """Write rows of things, in the place of those that are there; their partition exists."""
    statement = f"""
        INSERT INTO {table.name} (entity, {table.column}, v) VALUES (%s, %s, %s)
        ON CONFLICT (entity, {table.column}) DO UPDATE SET v = EXCLUDED.v
    """  # noqa: S608 - names of this code
    with connection.cursor() as cursor:
        cursor.executemany(statement, [(number, at, values) for number, values in rows])


def _hours_in_days(
    kind: Kind, hour: datetime, rows: Sequence[tuple[int, Values]]
) -> list[tuple[int, Values]]:
    """The rows of a day with this hour in them. Only the process that seals changes them."""
    day, place, across = SPANS_1H.row_of(hour), hour.astimezone(UTC).hour, SPANS_1H.across
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT entity, v FROM series_1h WHERE day = %s AND entity = ANY(%s)",
            [day, [number for number, _ in rows]],
        )
        stored: dict[int, Any] = dict(cursor.fetchall())
    days = []
    for number, values in rows:
        kept: Values = list(stored.get(number) or ())
        kept += [None] * (across * (kind.width + 1) - len(kept))
        for which, value in enumerate(rolled_up(kind, values, SPANS, SPANS)):
            kept[which * across + place] = value
        days.append((number, kept))
    return days
