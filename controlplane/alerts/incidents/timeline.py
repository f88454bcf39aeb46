"""The timeline of an incident, from every source that keeps what happened.

Only notes, steps and markers are stored for it. Each source is read up to the number of lines that is asked
for, so that no incident is too long for a page.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.db.models import Case, Count, F, Func, Max, Min, TextField, Value, When
from django.db.models.functions import TruncMinute
from django.utils import timezone

from controlplane.accounts.by_person import with_authors
from controlplane.alerts.incidents.reading import subjects_of
from controlplane.alerts.lifecycle import AlertEvent
from controlplane.alerts.models import Alert, Delivery, DeliveryState, Incident, IncidentLine, Marker
from controlplane.alerts.people.rule_words import target_in_words
from controlplane.audit.action_words import action_words, adds
from controlplane.audit.models import Entry
from controlplane.breakers.models import Transition
from controlplane.fleet.mode_words import mode_change_words
from controlplane.fleet.models import Event, EventKind
from controlplane.phrases import span
from controlplane.status.breaker_lines import BreakerLine, breaker_lines
from controlplane.status.incidents import trip_words
from controlplane.status.read_facts import change_of, transition_of

#: An event shortly before may be the reason. A deployment takes longer to show.
BEFORE = timedelta(minutes=15)
MARKERS_BEFORE = timedelta(hours=1)
#: People still act for this time after the end.
AFTER = timedelta(minutes=10)
#: Lines of an export, and those that a page can lead to.
MAX = 2_000
#: Episodes of one alert that become one line, if there are more.
_FLAPS = 3
_POD_KINDS = (
    EventKind.MODE,
    EventKind.SILENT,
    EventKind.BACK,
    EventKind.JOINED,
    EventKind.LEFT,
    EventKind.CONFIG_REJECTED,
)
_NEWS = {
    AlertEvent.FIRED.value: "Alert",
    AlertEvent.RESOLVED.value: "End of alert",
}
#: Audit entries that are lines by themselves.
_OWN_ACTIONS = ("incident.noted", "incident.step_done", "incident.step_undone", "marker.added")


@dataclass(frozen=True, kw_only=True)
class Line:
    at: datetime
    #: ``alert``, ``delivery``, ``breaker``, ``override``, ``edit``, ``other``, ``pod``, ``marker``, ``step``
    #: or ``note``.
    kind: str
    what: str
    #: A person, or a program with a token; empty for what happened automatically.
    who: str = ""
    #: The entity that it happened to.
    thing: str = ""
    #: ``breaker`` or ``server`` if the thing has a page.
    thing_kind: str = ""
    detail: str = ""
    reason: str = ""
    #: The key of the alert, and whether this is where it begins: its text is ``what``.
    alert: str = ""
    begins: bool = False
    revision: int | None = None
    #: ``bad``, ``warn`` or ``good``.
    look: str = ""
    #: Whether a person did it, or a program with a token.
    human: bool = False


@dataclass(frozen=True, kw_only=True)
class _Range:
    incident: Incident
    start: datetime
    end: datetime
    most: int
    #: The dependencies that it is about, if it is about nothing else. Breakers of others are left out then.
    dependencies: frozenset[str]


def timeline(incident: Incident, *, most: int = MAX) -> list[Line]:
    """The newest first, one more than ``most`` if there are more."""
    most = min(most, MAX)
    ended = incident.closed_at
    wanted = _Range(
        incident=incident,
        start=incident.started_at - BEFORE,
        end=ended + AFTER if ended else timezone.now() + timedelta(seconds=1),
        most=most,
        dependencies=_dependencies(incident),
    )
    sources: tuple[Callable[[_Range], Iterable[Line]], ...] = (
        *(_alerts, _deliveries, _transitions, _entries, _pods, _markers, _lines),
    )
    found = [line for source in sources for line in source(wanted)]
    return sorted(found, key=lambda line: line.at, reverse=True)[: most + 1]


def _dependencies(incident: Incident) -> frozenset[str]:
    subjects = subjects_of(incident)
    return frozenset(name for _, name in subjects if {kind for kind, _ in subjects} == {"breaker"})


def _alerts(wanted: _Range) -> Iterable[Line]:
    every = Alert.objects.filter(incident=wanted.incident).without_chart()
    rows = every.order_by("-true_since", "-pk")[: wanted.most + 1]
    episodes: dict[str, list[Alert]] = defaultdict(list)
    for row in rows:
        episodes[row.key].append(row)
    for found in episodes.values():
        if len(found) >= _FLAPS:
            yield _flapping(found)
            # Its present state is not hidden among the episodes before.
            found = found[:1]
        for row in found:
            yield from _alert(row)


def _alert(row: Alert) -> Iterable[Line]:
    look = "bad" if row.worst == "critical" else "warn"
    subject = {"breaker": "breaker", "server": "server"}.get(row.subject_kind, "")
    thing = row.subject_name if subject else ""
    yield Line(
        at=row.true_since,
        kind="alert",
        # The text is that of then: the figures have changed since.
        what=row.begun_text or row.text,
        thing=thing,
        thing_kind=subject,
        detail=row.begun_detail if row.begun_text else row.detail,
        look=look,
        alert=row.key,
        begins=True,
    )
    if row.fired_at is not None and row.fired_at - row.true_since >= timedelta(seconds=1):
        yield Line(
            at=row.fired_at,
            kind="alert",
            what="Alert fired",
            detail=row.fired_text or row.text,
            look=look,
            alert=row.key,
        )
    if row.resolved_at is not None:
        lasted = span((row.resolved_at - row.true_since).total_seconds())
        yield Line(
            at=row.resolved_at,
            kind="alert",
            what=f"Alert resolved after {lasted}",
            detail=row.worst_text or row.begun_text or row.text,
            look="good",
            alert=row.key,
        )


def _flapping(found: list[Alert]) -> Line:
    first, last = found[-1], found[0]
    took = span((last.true_since - first.true_since).total_seconds())
    return Line(
        at=last.true_since,
        kind="alert",
        what=f"Alert began {len(found)} times in {took}",
        detail=last.begun_text or last.text,
        look="warn",
        alert=last.key,
    )


def _deliveries(wanted: _Range) -> Iterable[Line]:
    """One line for each news of an alert, whoever got it."""
    rows = Delivery.objects.filter(
        alert__incident=wanted.incident, state__in=(DeliveryState.SENT, DeliveryState.GAVE_UP)
    ).select_related("receiver", "alert")
    groups: dict[tuple[int, str, str, datetime], list[Delivery]] = defaultdict(list)
    for row in rows.order_by("-created_at")[: wanted.most + 1]:
        # An alert can worsen twice. Deliveries of one news are made in one transaction.
        groups[(row.alert_id or 0, row.kind, row.state, row.created_at)].append(row)
    for (_, kind, state, _), sent in groups.items():
        names = ", ".join(sorted({row.receiver.name for row in sent}))
        what = _NEWS.get(kind, f"{kind.capitalize()} alert")
        gave_up = state == DeliveryState.GAVE_UP
        yield Line(
            at=min(row.sent_at or row.created_at for row in sent),
            kind="delivery",
            what=f"{what} not delivered to {names}" if gave_up else f"{what} sent to {names}",
            # The text as it was sent: the figures of the alert have changed since.
            detail=sent[0].document.get("data", {}).get("text", ""),
            look="bad" if gave_up else "",
        )


def _transitions(wanted: _Range) -> Iterable[Line]:
    """Changes that breakers made by themselves. The audit has those that a person made."""
    rows = Transition.objects.select_related("dependency").filter(
        dependency__environment=wanted.incident.environment,
        actor="",
        at__gte=wanted.start,
        at__lt=wanted.end,
    )
    if wanted.dependencies:
        rows = rows.filter(dependency__name__in=wanted.dependencies)
    newest = rows.order_by("-at", "-generation")[: wanted.most + 1]
    for row in breaker_lines(transition_of(one) for one in newest):
        at = datetime.fromtimestamp(row.at, UTC)
        if isinstance(row, BreakerLine):
            first = f"The first time at {datetime.fromtimestamp(row.since, UTC):%H:%M:%S}."
            yield _breaker(at, row.flapping, row.did, look="bad", detail=first)
            continue
        look = {"open": "bad", "closed": "good"}.get(row.after, "")
        yield _breaker(at, row.dependency, row.after.replace("_", "-"), detail=trip_words(row), look=look)


def _breaker(at: datetime, name: str, did: str, *, look: str, detail: str = "") -> Line:
    return Line(
        at=at,
        kind="breaker",
        what=f"Breaker {did}",
        thing=name,
        thing_kind="breaker",
        detail=detail,
        look=look,
    )


def _entries(wanted: _Range) -> Iterable[Line]:
    """Edits, overrides, acknowledgements, and whatever else people and schedules did."""
    every = Entry.objects.filter(
        environment=wanted.incident.environment, at__gte=wanted.start, at__lt=wanted.end
    )
    rows = with_authors(every.exclude(action__in=_OWN_ACTIONS))
    mine = f"{wanted.incident.pk} "
    for row in rows.order_by("-at", "-id")[: wanted.most + 1]:
        if row.target_kind == "incident" and not row.target_name.startswith(mine):
            continue
        change = change_of(row)
        override = row.action.startswith("breaker.")
        if override and wanted.dependencies and row.target_name not in wanted.dependencies:
            continue
        yield Line(
            at=row.at,
            kind="override" if override else "edit" if row.revision is not None else "other",
            what=action_words(row.action, added=adds(row.before, row.after)),
            who=row.actor,
            human=change.human or bool(change.token),
            thing=target_in_words(row.target_kind, row.target_name),
            thing_kind="breaker" if override or row.target_kind == "dependency" else "",
            reason=row.reason,
            revision=row.revision,
        )


def _pods(wanted: _Range) -> Iterable[Line]:
    """One line for what happened to several pods within the same minute, without the error of each."""
    rows = Event.objects.filter(
        environment=wanted.incident.environment, kind__in=_POD_KINDS, at__gte=wanted.start, at__lt=wanted.end
    )
    change = Case(
        When(kind=EventKind.MODE, then=Func(F("detail"), Value(": "), Value(1), function="split_part")),
        default=Value(""),
        output_field=TextField(),
    )
    groups = (
        rows.annotate(minute=TruncMinute("at"), change=change)
        .values("minute", "kind", "change")
        .annotate(pods=Count("server", distinct=True), last=Max("at"), one=Min("server"))
        .order_by("-last", "kind", "change")[: wanted.most + 1]
    )
    for group in groups:
        alone = group["pods"] == 1
        yield Line(
            at=group["last"],
            kind="pod",
            what=EventKind(group["kind"]).label,
            thing=group["one"] if alone else f"{group['pods']} pods",
            thing_kind="server" if alone else "",
            detail=mode_change_words(group["change"]),
            look="warn" if group["kind"] in (EventKind.SILENT, EventKind.CONFIG_REJECTED) else "",
        )


def _markers(wanted: _Range) -> Iterable[Line]:
    rows = Marker.objects.filter(
        environment=wanted.incident.environment,
        at__gte=wanted.incident.started_at - MARKERS_BEFORE,
        at__lt=wanted.end,
    )
    for row in rows.order_by("-at", "-id")[: wanted.most + 1]:
        named = row.service if row.service not in row.text else ""
        yield Line(at=row.at, kind="marker", what=row.text, who=row.by, thing=named)


def _lines(wanted: _Range) -> Iterable[Line]:
    rows = IncidentLine.objects.filter(incident=wanted.incident).order_by("-at", "-id")
    for row in rows[: wanted.most + 1]:
        if not row.runbook:
            yield Line(at=row.at, kind="note", what="Note", who=row.by, human=True, detail=row.text)
            continue
        yield Line(
            at=row.at,
            kind="step",
            what=f"Step {row.step} {'done' if row.done else 'undone'}",
            who=row.by,
            human=True,
            thing=row.runbook,
            thing_kind="runbook",
            detail=row.text,
            look="good" if row.done else "",
        )
