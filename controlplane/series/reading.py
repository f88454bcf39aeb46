"""Answers a range of one thing's figures: from arrays where the hour is sealed, else from frames."""

from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

from django.db import connection
from django.utils import timezone

from controlplane.series.frames import UNKNOWN, fill, frames_of_one, in_order, spans_between
from controlplane.series.kinds import SPAN_S, How, Kind, roll_up
from controlplane.series.models import MADE_UP, Entity, Seal, Writer
from controlplane.series.partitions import SPANS_1H, SPANS_1M, SPANS_10S, Table
from controlplane.series.sealing import rolled_up

#: A range up to this length has points of 10 s; then of minutes; then of hours.
MAX_10S = timedelta(hours=6)
MAX_MINUTES = timedelta(days=8)
#: The longest range.
MAX_RANGE = timedelta(days=400)
#: Points of one answer. If there are more, neighbours are added up.
MAX_POINTS = 2_200
#: Runs of spans in which not every pod was heard.
MAX_PARTIAL = 100
#: Frames that are not sealed can be this old; see ``UNSEALED_H`` of gateways.
_FRAMES_KEPT = timedelta(hours=50)
_HOUR = timedelta(hours=1)

Values = list[int | None]


@dataclass(frozen=True, kw_only=True)
class Partial:
    """Spans in which only some pods were heard; unix seconds."""

    start: int
    end: int
    heard: int
    known: int


@dataclass(frozen=True, kw_only=True)
class Answer:
    """Points of one thing. Times are unix seconds; a point covers ``step_s`` from its time on."""

    start: int
    step_s: int
    #: Seconds of each point that were measured. Counts are of these seconds.
    known_s: list[int]
    #: Field -> one value per point, ``None`` where it is unknown.
    fields: dict[str, Values]
    #: Before this, nothing is known of the thing; ``None`` if nothing is known at all.
    first_at: int | None
    partial: list[Partial]
    #: The end of the last span that is measured; ``None`` if none is.
    newest: int | None
    #: Nothing measured what is before this: the demo made it up.
    made_up_until: int | None

    @property
    def end(self) -> int:
        return self.start + self.step_s * len(self.known_s)

    def total(self, field: str) -> int | None:
        """The sum of a count over the points that are known; ``None`` if none is."""
        return roll_up(How.SUM, self.fields[field])


def read(
    environment: str,
    kind: Kind,
    name: str = "",
    sub: str = "",
    *,
    fields: Sequence[str],
    start: datetime,
    end: datetime,
    now: datetime | None = None,
) -> Answer:
    """The figures from ``start`` to before ``end``, of at most ``MAX_RANGE``.

    Raises ``ValueError`` for a field that the kind does not have.
    """
    now = now or timezone.now()
    places = [kind.place(field) for field in fields]
    end = min(end, now + timedelta(seconds=SPAN_S))
    start = max(start, end - MAX_RANGE)
    table = table_for(end - start)
    begin = int(start.timestamp()) // table.step_s * table.step_s
    count = max(0, ceil((end.timestamp() - begin) / table.step_s))
    entity = Entity.objects.filter(environment=environment, kind=kind.number, name=name, sub=sub).first()
    points = _Points(kind, places, begin, count, table.step_s)
    spans: dict[int, Any] = {}
    if entity is not None and count:
        spans = _read(points, entity, kind, table, now)
    return points.answer(fields, entity, _partial(spans), _made_up_until(environment, begin))


def _made_up_until(environment: str, begin: int) -> int | None:
    made_up = Writer.objects.filter(environment=environment, gateway=MADE_UP).order_by("-started_at")
    for at in made_up.values_list("started_at", flat=True)[:1]:
        return int(at.timestamp()) if at.timestamp() > begin else None
    return None


def table_for(length: timedelta) -> Table:
    if length <= MAX_10S:
        return SPANS_10S
    return SPANS_1M if length <= MAX_MINUTES else SPANS_1H


class _Points:
    """The points of an answer, empty at first."""

    def __init__(self, kind: Kind, places: list[int], begin: int, count: int, step_s: int) -> None:
        self.kind, self.places, self.step_s = kind, places, step_s
        self.begin, self.count = begin, count
        self.known = [0] * count
        self.values: list[Values] = [[None] * count for _ in places]

    @property
    def start(self) -> datetime:
        return datetime.fromtimestamp(self.begin, UTC)

    @property
    def end(self) -> datetime:
        return datetime.fromtimestamp(self.begin + self.count * self.step_s, UTC)

    def put(
        self, at: int, known: Sequence[int | None], columns: Sequence[Sequence[int | None] | None]
    ) -> None:
        """Values that begin at a unix time; what is outside of the range is left out."""
        offset = (at - self.begin) // self.step_s
        first, last = max(0, -offset), min(len(known), self.count - offset)
        for place in range(first, last):
            if known[place]:
                self.known[offset + place] = known[place] or 0
                for column, values in zip(self.values, columns, strict=True):
                    if values:
                        column[offset + place] = values[place]

    def answer(
        self,
        fields: Sequence[str],
        entity: Entity | None,
        partial: list[Partial],
        made_up_until: int | None,
    ) -> Answer:
        times = max(1, ceil(self.count / MAX_POINTS))
        newest = max((at for at, known in enumerate(self.known) if known), default=None)
        merged = {
            field: [
                roll_up(self.kind.fields[place].how, column[at : at + times])
                for at in range(0, self.count, times)
            ]
            for field, place, column in zip(fields, self.places, self.values, strict=True)
        }
        return Answer(
            start=self.begin,
            step_s=self.step_s * times,
            known_s=[SPAN_S * sum(self.known[at : at + times]) for at in range(0, self.count, times)],
            fields=merged,
            first_at=None if entity is None else int(entity.first_at.timestamp()),
            partial=partial,
            made_up_until=made_up_until,
            newest=None if newest is None else self.begin + (newest + 1) * self.step_s,
        )


def _read(points: _Points, entity: Entity, kind: Kind, table: Table, now: datetime) -> dict[int, Any]:
    """Returns the spans of a short range."""
    recent = max(SPANS_10S.row_of(points.start), SPANS_10S.row_of(now - _FRAMES_KEPT))
    sealed = set(Seal.objects.filter(hour__gte=recent).values_list("hour", flat=True))
    open_hours = [hour for hour in _hours(recent, points.end) if hour not in sealed]
    there = _read_rows(points, entity, kind, table)
    short = table is SPANS_10S
    spans = spans_between(entity.environment, points.start, points.end) if short else {}
    for first, last in _runs(open_hours):
        _read_frames(points, entity, kind, first, last + _HOUR)
    if kind.name in ("tenant", "rule") and table is not SPANS_1H:
        # It has no row for an hour in which it was never listed.
        missing = [
            hour
            for hour in _hours(
                max(SPANS_10S.row_of(points.start), SPANS_10S.row_of(entity.first_at)), points.end
            )
            if hour not in there and hour not in open_hours
        ]
        for first, last in _runs(missing):
            _put(points, entity, kind, [], first, last + _HOUR)
    return spans


def _hours(start: datetime, end: datetime) -> list[datetime]:
    hour, found = SPANS_10S.row_of(start), []
    while hour < end:
        found.append(hour)
        hour += _HOUR
    return found


def _runs(hours: Iterable[datetime]) -> list[tuple[datetime, datetime]]:
    """The first and last of hours that follow each other."""
    runs: list[tuple[datetime, datetime]] = []
    for hour in hours:
        if runs and runs[-1][1] + _HOUR == hour:
            runs[-1] = (runs[-1][0], hour)
        else:
            runs.append((hour, hour))
    return runs


def _read_rows(points: _Points, entity: Entity, kind: Kind, table: Table) -> set[datetime]:
    """Read what is sealed, only the fields that are wanted; returns the times of the rows."""
    # In 10 s, a span is known if its first field is, which is always a count.
    extra = 0 if table is SPANS_10S else 1
    wanted = [0, *(place + extra for place in points.places)]
    slices = ", ".join(f"v[{place * table.across + 1}:{(place + 1) * table.across}]" for place in wanted)
    with connection.cursor() as cursor:
        cursor.execute(
            f"SELECT {table.column}, {slices} FROM {table.name} "  # noqa: S608 - names and numbers of this code
            f"WHERE entity = %s AND {table.column} >= %s AND {table.column} < %s",
            [entity.id, table.row_of(points.start), points.end],
        )
        rows = cursor.fetchall()
    for at, known, *columns in rows:
        if not extra:
            known = [int(value is not None) for value in known]
        points.put(int(at.timestamp()), known, columns)
    return {at for at, *_ in rows}


def _read_frames(points: _Points, entity: Entity, kind: Kind, start: datetime, end: datetime) -> None:
    _put(points, entity, kind, frames_of_one(entity.id, kind, start, end), start, end)


def _put(points: _Points, entity: Entity, kind: Kind, frames: Any, start: datetime, end: datetime) -> None:
    """Put hours that are not in arrays, as sealing would."""
    begin = int(start.timestamp())
    count = int((end - start).total_seconds()) // SPAN_S
    empty = array("q", [UNKNOWN]) * (count * kind.width)
    values, listed = in_order(kind, frames, start=begin, count=count).get(entity.id, (empty, set()))
    spans = spans_between(entity.environment, start, end)
    values = fill(
        kind, entity.name, values, listed, spans, start=begin, first=int(entity.first_at.timestamp())
    )
    fine: Values = [None if value == UNKNOWN else value for value in values]
    times = points.step_s // SPAN_S
    rolled = rolled_up(kind, fine, count, times)
    across = count // times
    columns = [rolled[(place + 1) * across : (place + 2) * across] for place in points.places]
    points.put(begin, rolled[:across], columns)


def _partial(spans: dict[int, Any]) -> list[Partial]:
    runs: list[Partial] = []
    for at, measured in sorted(spans.items()):
        heard, known = min(measured.heard, measured.known), measured.known
        if heard == known or not heard:
            continue
        last = runs[-1] if runs else None
        if last is not None and (last.end, last.heard, last.known) == (at, heard, known):
            runs[-1] = Partial(start=last.start, end=at + SPAN_S, heard=heard, known=known)
        else:
            runs.append(Partial(start=at, end=at + SPAN_S, heard=heard, known=known))
    return runs[-MAX_PARTIAL:]
