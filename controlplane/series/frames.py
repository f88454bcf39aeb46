"""Frames of 10 s, read back and put in order: one list of values per field of a thing.

Sealing an hour and reading an hour that is not sealed use the same functions, so that a chart does not
change when its hour is sealed.
"""

from array import array
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from django.db import connection

from controlplane.series.kinds import FLEET, MAX_IN_SPAN, SPAN_S, TENANT, How, Kind

#: In arrays of this process; rows contain NULL.
UNKNOWN = -1
#: Frames that one statement reads.
_AT_ONCE = timedelta(minutes=5)

_SPANS = """
    SELECT span, sum(heard)::int AS heard, sum(known)::int AS known, max(floor) AS floor FROM (
            SELECT extract(epoch FROM at)::bigint AS span, gateway, max(pods_heard) AS heard,
                   max(pods_known) AS known, max(tenant_floor) AS floor
            FROM series_span JOIN series_writer ON series_writer.id = writer
            WHERE at >= %s AND at < %s AND environment = %s
            GROUP BY at, gateway
        ) AS by_gateway
    GROUP BY span
"""
_FRAMES = """
    SELECT extract(epoch FROM at)::bigint, ids, v FROM series_frame
    WHERE kind = %s AND at >= %s AND at < %s
      AND writer IN (SELECT id FROM series_writer WHERE environment = %s)
"""
_LISTED = """
    SELECT DISTINCT unnest(ids) FROM series_frame
    WHERE kind = %s AND at >= %s AND at < %s
      AND writer IN (SELECT id FROM series_writer WHERE environment = %s)
"""
_OF_ONE = """
    SELECT extract(epoch FROM at)::bigint, ARRAY[%s],
           v[(place - 1) * width + 1 : place * width]
    FROM (
        SELECT at, v, array_position(ids, %s) AS place, array_length(v, 1) / array_length(ids, 1) AS width
        FROM series_frame
        WHERE kind = %s AND at >= %s AND at < %s AND %s = ANY(ids)
    ) AS frames
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """That a span was measured: by how many pods, of how many."""

    heard: int
    known: int
    #: 0 if every tenant is listed.
    floor: int


#: Up to Python 3.11, the class itself takes no type.
Packed: TypeAlias = "array[int]"
#: Start of a span in unix seconds -> how it was measured.
Spans = Mapping[int, Measured]
#: Start of a span, things, and their values one after the other.
Frame = tuple[int, Sequence[int], Sequence[int | None]]


def spans_between(environment: str, start: datetime, end: datetime) -> dict[int, Measured]:
    with connection.cursor() as cursor:
        cursor.execute(_SPANS, [start, end, environment])
        return {at: Measured(heard, known, floor) for at, heard, known, floor in cursor.fetchall()}


def frames_of_kind(environment: str, kind: Kind, start: datetime, end: datetime) -> Iterable[Frame]:
    """Reads a few minutes at a time, because an answer of Postgres is in memory as a whole."""
    while start < end:
        until = min(end, start + _AT_ONCE)
        with connection.cursor() as cursor:
            cursor.execute(_FRAMES, [kind.number, start, until, environment])
            yield from cursor.fetchall()
        start = until


def listed_between(environment: str, kind: Kind, start: datetime, end: datetime) -> list[int]:
    """The things that frames list."""
    with connection.cursor() as cursor:
        cursor.execute(_LISTED, [kind.number, start, end, environment])
        return [number for (number,) in cursor.fetchall()]


def frames_of_one(entity: int, kind: Kind, start: datetime, end: datetime) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(_OF_ONE, [entity, entity, kind.number, start, end, entity])
        return list(cursor.fetchall())


def in_order(
    kind: Kind, frames: Iterable[Frame], *, start: int, count: int, only: Container[int] | None = None
) -> dict[int, tuple[Packed, set[int]]]:
    """Thing -> values of ``count`` spans from ``start``, field by field, and the spans that list it.

    ``only`` leaves out the other things.
    """
    found: dict[int, tuple[Packed, set[int]]] = {}
    for at, ids, v in frames:
        place = (at - start) // SPAN_S
        width = len(v) // len(ids)
        for number, entity in enumerate(ids):
            if only is not None and entity not in only:
                continue
            kept = found.get(entity)
            if kept is None:
                kept = found[entity] = (array("q", [UNKNOWN]) * (count * kind.width), set())
            values, listed = kept
            listed.add(place)
            for which, one in enumerate(kind.fields[:width]):
                value = v[number * width + which]
                if value is None:
                    continue
                slot = which * count + place
                old = values[slot]
                if old != UNKNOWN:
                    value = max(old, value) if one.how is How.PEAK else old + value
                values[slot] = min(value, MAX_IN_SPAN)
    return found


def fill(
    kind: Kind,
    name: str,
    values: Packed,
    listed: Iterable[int],
    spans: Spans,
    *,
    start: int,
    first: int,
) -> Packed:
    """Set to 0 what was measured and did not happen, since the thing is known. The rest stays unknown."""
    count = len(values) // kind.width
    there = set(listed)
    for at, measured in spans.items():
        place = (at - start) // SPAN_S
        if not 0 <= place < count or place in there or at < first:
            continue
        if counted_nothing(kind, name, measured):
            for which, one in enumerate(kind.fields):
                if one.how is not How.PEAK:
                    values[which * count + place] = 0
    return values


def counted_nothing(kind: Kind, name: str, measured: Measured) -> bool:
    """Whether a thing that is not listed in a span counted 0, and is not just unknown."""
    if not measured.heard or kind is FLEET:
        return False
    if kind.complete or (kind.name == "rule" and not name):
        return True
    return kind.name in (TENANT.name, "rule") and measured.floor == 0
