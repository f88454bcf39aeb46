"""Adds up the sealed hours of all things of one kind: whole days, one statement for any number of things."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django.db import connection

from controlplane.series.kinds import SPAN_S, How, Kind
from controlplane.series.partitions import SPANS_1H

_FOUND = """
    SELECT series_entity.name, series_entity.sub, sum({known}), {values}
    FROM series_1h JOIN series_entity ON series_entity.id = series_1h.entity
    WHERE series_entity.environment = %(environment)s AND series_entity.kind = %(kind)s
      AND series_1h.day >= %(start)s AND series_1h.day < %(end)s
    GROUP BY series_entity.name, series_entity.sub
"""


@dataclass(frozen=True, kw_only=True)
class Total:
    """Counts of one entity in the seconds that were measured."""

    name: str
    sub: str
    known_s: int
    #: In the order of the fields that were asked for; ``None`` for a field that was never measured.
    values: tuple[int | None, ...]

    def per_s(self, place: int) -> float | None:
        value = self.values[place]
        return value / self.known_s if value is not None and self.known_s else None


def totals(
    environment: str, kind: Kind, fields: Sequence[str], *, start: datetime, end: datetime
) -> list[Total]:
    """The sums from the day of ``start`` to before that of ``end``, in UTC.

    An hour is in them a few minutes after its end, when it is sealed. Raises ``ValueError`` for a field that
    the kind does not have, or that cannot be added up.
    """
    places = [kind.place(field) for field in fields]
    if any(kind.fields[place].how is not How.SUM for place in places):
        raise ValueError("Only counts can be added up.")
    values = ", ".join(f"sum({day_sql('sum', place + 1)})" for place in places)
    statement = _FOUND.format(known=day_sql("sum", 0), values=values)
    with connection.cursor() as cursor:
        cursor.execute(
            statement, {"environment": environment, "kind": kind.number, "start": start, "end": end}
        )
        return [
            Total(
                name=name,
                sub=sub,
                known_s=int(known or 0) * SPAN_S,
                values=tuple(None if value is None else int(value) for value in values),
            )
            for name, sub, known, *values in cursor.fetchall()
        ]


def day_sql(how: str, place: int) -> str:
    """SQL for the ``sum`` or ``max`` of one part of a row over the hours of its day. Part 0 is what is known.

    A row of an earlier release has no part for a later field.
    """
    first, last = place * SPANS_1H.across + 1, (place + 1) * SPANS_1H.across
    return f"(SELECT {how}(one) FROM unnest(series_1h.v[{first}:{last}]) AS one)"  # noqa: S608 - numbers
