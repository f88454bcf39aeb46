"""Events of a range to be marked on charts: transitions, overrides, edits, and events of pods."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from controlplane.audit.models import Entry
from controlplane.breakers.models import Transition
from controlplane.fleet.models import Event, EventKind
from controlplane.series.kinds import DEPENDENCY, POD, TENANT, TENANT_HOUR, Kind

#: Marks of one answer. The newest are kept, and the number of the others is answered.
MAX_MARKS = 40

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
