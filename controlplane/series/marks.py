"""Events of a range to be marked on charts: transitions, overrides, edits, and events of pods."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from controlplane.audit.models import Entry
from controlplane.breakers.models import Transition
from controlplane.fleet.models import Event, EventKind
from controlplane.series.kinds import DEPENDENCY, POD, TENANT, TENANT_HOUR, Kind
from fuseboard.contract.words import BreakerState, OverrideMode

#: Marks of one answer. The newest are kept, and the number of the others is answered.
MAX_MARKS = 40
#: Transitions that are read for the open periods of one answer, the newest.
MAX_MOVES = 1_000

_POD_EVENTS = (
    EventKind.JOINED,
    EventKind.LEFT,
    EventKind.SILENT,
    EventKind.OFFLINE,
    EventKind.BACK,
    EventKind.MODE,
)


@dataclass(frozen=True, kw_only=True)
class Mark:
    #: Unix seconds.
    at: float
    #: ``transition``, ``override``, ``change`` or ``pod``.
    kind: str
    text: str
    #: The revision that made it, if one did.
    revision: int | None = None


@dataclass(frozen=True, kw_only=True)
class OpenPeriod:
    """From the moment a breaker left "closed" until it was closed again; failed probes are part of it."""

    #: Unix seconds, within the range that was asked for.
    start: float
    end: float
    #: An operator forced it open.
    forced: bool


def open_periods(
    environment: str, kind: Kind, name: str, *, start: datetime, end: datetime
) -> list[OpenPeriod]:
    """When the breaker of a dependency was not closed, oldest first; empty for other things."""
    if kind is not DEPENDENCY:
        return []
    rows = Transition.objects.filter(
        dependency__environment=environment, dependency__name=name, at__lt=end
    ).order_by("-at", "-id")
    moves = list(rows.filter(at__gte=start)[:MAX_MOVES])
    # The state at the start, unless older transitions of the range were left out.
    moves += rows.filter(at__lt=start)[:1] if len(moves) < MAX_MOVES else ()
    found: list[OpenPeriod] = []
    since: Transition | None = None
    for move in reversed(moves):
        is_open = move.to_state != BreakerState.CLOSED
        forced = bool(since and since.cause == OverrideMode.FORCED_OPEN)
        if since is not None and (not is_open or forced != (move.cause == OverrideMode.FORCED_OPEN)):
            found.append(_period(since, move.at, forced=forced, start=start))
            since = None
        if is_open and since is None:
            since = move
    if since is not None:
        ends = min(end, timezone.now())
        found.append(_period(since, ends, forced=since.cause == OverrideMode.FORCED_OPEN, start=start))
    return [one for one in found if one.end > one.start]


def _period(since: Transition, until: datetime, *, forced: bool, start: datetime) -> OpenPeriod:
    return OpenPeriod(start=max(since.at, start).timestamp(), end=until.timestamp(), forced=forced)


def marks_of(
    environment: str, kind: Kind, name: str, *, start: datetime, end: datetime
) -> tuple[list[Mark], int]:
    """The newest marks of a thing, oldest first, and how many older ones there are."""
    found: list[Mark] = []
    count = 0
    for marks, total in (
        _transitions(environment, kind, name, start, end),
        _changes(environment, kind, name, start, end),
        _pod_events(environment, kind, name, start, end),
    ):
        found += marks
        count += total
    found.sort(key=lambda mark: mark.at)
    newest = found[-MAX_MARKS:]
    return newest, count - len(newest)


_Found = tuple[list[Mark], int]


def _transitions(environment: str, kind: Kind, name: str, start: datetime, end: datetime) -> _Found:
    if kind is not DEPENDENCY:
        return [], 0
    rows = Transition.objects.filter(
        dependency__environment=environment, dependency__name=name, at__gte=start, at__lt=end
    )

    def mark(row: Transition) -> Mark:
        by = f", {row.actor}" if row.actor else ""
        text = f"{row.to_state.replace('_', '-')}: {row.cause}{by}"
        return Mark(at=row.at.timestamp(), kind="override" if row.actor else "transition", text=text)

    return _newest(rows, mark)


def _changes(environment: str, kind: Kind, name: str, start: datetime, end: datetime) -> _Found:
    rows = Entry.objects.filter(environment=environment, revision__isnull=False, at__gte=start, at__lt=end)
    if kind is DEPENDENCY:
        rows = rows.filter(target_kind="dependency", target_name=name)
    elif kind in (TENANT, TENANT_HOUR) or kind.name == "rule":
        rows = rows.filter(target_kind__startswith="tenant", target_name=name)
    elif kind is POD:
        return [], 0

    def mark(row: Entry) -> Mark:
        made = "override" if row.action.startswith("breaker.") else "change"
        text = f"revision {row.revision}: {row.actor}, {row.target_kind} {row.target_name}"
        return Mark(at=row.at.timestamp(), kind=made, text=text, revision=row.revision)

    return _newest(rows, mark)


def _pod_events(environment: str, kind: Kind, name: str, start: datetime, end: datetime) -> _Found:
    rows = Event.objects.filter(environment=environment, at__gte=start, at__lt=end)
    if kind is POD:
        rows = rows.filter(server=name, kind__in=_POD_EVENTS)
    elif kind.name == "fleet":
        rows = rows.filter(kind=EventKind.MODE)
    else:
        return [], 0

    def mark(row: Event) -> Mark:
        text = f"{row.server}: {EventKind(row.kind).label.lower()}"
        return Mark(at=row.at.timestamp(), kind="pod", text=f"{text}, {row.detail}" if row.detail else text)

    return _newest(rows, mark)


def _newest(rows: QuerySet[Any], mark: Callable[[Any], Mark]) -> _Found:
    """The marks of the newest rows, and how many rows there are."""
    marks = [mark(row) for row in rows.order_by("-at", "-id")[:MAX_MARKS]]
    return marks, rows.count() if len(marks) == MAX_MARKS else len(marks)
