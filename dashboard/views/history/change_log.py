"""Changes of an environment from every source that keeps them: edits, breakers, alerts and pods.

This is no second audit: each line leads to the page that has the whole of it.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from django.db.models import Case, Count, F, Func, Max, Min, Q, QuerySet, TextField, Value, When
from django.db.models.functions import TruncMinute
from django.urls import reverse

from controlplane.accounts.by_person import with_authors
from controlplane.alerts.incidents.markers import markers
from controlplane.alerts.models import Alert
from controlplane.alerts.rules.rule import Subject
from controlplane.audit.models import Entry
from controlplane.breakers.models import Transition as TransitionRow
from controlplane.fleet.models import Event, EventKind
from controlplane.phrases import span
from controlplane.policies.models import Change, Revision
from controlplane.status.breaker_lines import BreakerLine, breaker_lines
from controlplane.status.facts import PodEvent, Transition
from controlplane.status.incidents import trip_words
from controlplane.status.read_facts import change_of, transition_of
from dashboard.live.alerts import link_of
from dashboard.live.change_lines import line_of
from dashboard.live.pod_lines import PodLine, own_lines
from dashboard.tables.list_filters import Row
from dashboard.views.history.logged import LoggedChange, logged_entry, logged_revisions
from dashboard.words.labels import (
    cause_words,
    event_detail_words,
    event_words,
    state_verb,
)

#: Kind -> its words; also the values of the filter.
KINDS = {
    "edit": "Edits",
    "override": "Overrides",
    "other": "Other actions",
    "breaker": "Breakers",
    "alert": "Alerts",
    "pod": "Pods",
    "marker": "Deployments",
}
#: Transitions that are read, before those of a breaker that opens again and again become one line.
_TRANSITIONS = 500
#: Events of pods' own breakers that are read, for the same reason.
_OWN_EVENTS = 2_000
#: So many times as many are read if fewer lines came of them than a page has.
_TIMES = (1, 8)
#: Rows of the pages before that are read again.
_DISPLAYED = 5_000
#: Events of pods are counted over ranges up to this one.
PODS_WITHIN = timedelta(days=1)
_POD_KINDS = (
    EventKind.MODE,
    EventKind.SILENT,
    EventKind.JOINED,
    EventKind.CONFIG_REJECTED,
    EventKind.DUPLICATE,
)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Empty for any. ``end`` is excluded."""

    environment: str
    start: datetime
    end: datetime
    #: The end of the range, of which an earlier page may have displayed the newest part. What happened
    #: several times is one line at the last time, so that part is read again.
    until: datetime
    #: Lines, counted from the newest.
    most: int
    kind: str = ""
    actor: str = ""
    thing: str = ""

    def of(
        self, rows: QuerySet[Row], *, environment: str = "environment", at: str = "at", **columns: str
    ) -> QuerySet[Row]:
        """The rows of the environment and range, and of the actor and thing where one is asked for.

        ``columns``: ``kind``, ``actor`` or ``thing`` -> the column of the rows that has it.
        """
        asked = {environment: self.environment, f"{at}__gte": self.start, f"{at}__lt": self.end}
        named = {column: getattr(self, name) for name, column in columns.items()}
        return rows.filter(**asked, **{column: value for column, value in named.items() if value})


def changes_of(wanted: Wanted) -> list[LoggedChange]:
    """The newest first, one more than ``most`` if there are more. Lines of one moment keep their order."""
    sources: dict[str, Callable[[Wanted], Iterable[LoggedChange]]] = {
        "revision": _revisions,
        "entry": _entries,
        "breaker": _breakers,
        "own": _own_breakers,
        "alert": _alerts,
        "pod": _pods,
        "marker": _markers,
    }
    of_kind = {"edit": ("revision",), "override": ("revision",), "other": ("entry",), "pod": ("pod", "own")}
    chosen = of_kind.get(wanted.kind, (wanted.kind,)) if wanted.kind else tuple(sources)
    found = [line for source in chosen for line in sources[source](wanted)]
    return sorted(found, key=lambda line: line.at, reverse=True)[: wanted.most + 1]


def _revisions(wanted: Wanted) -> Iterable[LoggedChange]:
    rows = wanted.of(Revision.objects.all(), actor="actor")
    if wanted.kind == "edit":
        rows = rows.exclude(action__startswith="breaker.")
    elif wanted.kind == "override":
        rows = rows.filter(action__startswith="breaker.")
    if wanted.thing:
        named = Change.objects.filter(name=wanted.thing, revision__environment=wanted.environment)
        rows = rows.filter(Q(target=wanted.thing) | Q(pk__in=named.values("revision")))
    yield from logged_revisions(wanted.environment, rows.order_by("-number")[: wanted.most + 1])


def _entries(wanted: Wanted) -> Iterable[LoggedChange]:
    """Actions of people without a revision: schedules, freezes, drills, approvals, acknowledged alerts."""
    every = Entry.objects.filter(revision__isnull=True).exclude(action="marker.added")
    rows = with_authors(wanted.of(every, actor="actor", thing="target_name"))
    for row in rows.order_by("-at", "-id")[: wanted.most + 1]:
        line = logged_entry(line_of(change_of(row)))
        yield replace(line, link=f"{reverse('audit')}?{urlencode({'q': row.request_id or row.target_name})}")


def _lines_of(
    wanted: Wanted, rows: QuerySet[Any, Any], usual: int, made: Callable[[list[Any]], Sequence[Any]]
) -> list[Any]:
    """The lines of this page that are ``made`` of rows, newest first. Earlier pages may have such rows."""
    displayed = 0
    if wanted.end < wanted.until:
        displayed = rows.filter(at__gte=wanted.end)[: _DISPLAYED + 1].count()
    if displayed > _DISPLAYED:
        # So many are not read again. What began among them is listed once more, for what is left of it.
        rows, displayed = rows.filter(at__lt=wanted.end), 0
    lines: list[Any] = []
    for times in _TIMES:
        most = displayed + times * usual
        read = list(rows[:most])
        lines = [line for line in made(read) if line.at < wanted.end.timestamp()]
        if len(read) < most or len(lines) > wanted.most:
            break
    return lines


def _breakers(wanted: Wanted) -> Iterable[LoggedChange]:
    """Transitions that breakers made by themselves. Those by people are overrides."""
    if wanted.actor:
        return
    every = TransitionRow.objects.select_related("dependency").filter(actor="")
    range_ = replace(wanted, end=wanted.until)
    rows = range_.of(every, environment="dependency__environment", thing="dependency__name")
    found: list[Transition | BreakerLine] = _lines_of(
        wanted,
        rows.order_by("-at", "-generation"),
        _TRANSITIONS,
        lambda read: breaker_lines(map(transition_of, read)),
    )
    for row in found:
        name = row.flapping if isinstance(row, BreakerLine) else row.dependency
        common: dict[str, Any] = {
            "at": datetime.fromtimestamp(row.at, wanted.end.tzinfo),
            "kind": "breaker",
            "who": "" if isinstance(row, BreakerLine) else row.server,
            "thing": name,
            "link": reverse("breaker", args=[name]),
        }
        if isinstance(row, BreakerLine):
            yield LoggedChange(**common, what=f"Breaker {row.did}", css="st-open")
            continue
        yield LoggedChange(
            **common,
            what=f"Breaker {state_verb(row.after)}",
            detail=trip_words(row) if row.figures else cause_words(row.cause),
            css="st-open" if row.after == "open" else "",
        )


def _alerts(wanted: Wanted) -> Iterable[LoggedChange]:
    if wanted.actor:
        return
    every = Alert.objects.filter(fired_at__isnull=False).without_chart()
    for column in ("fired_at", "resolved_at"):
        ranged = wanted.of(every, at=column, thing="subject_name")
        for row in ranged.order_by(f"-{column}", "-pk")[: wanted.most + 1]:
            yield _alert(row, getattr(row, column), resolved=column == "resolved_at")


def _alert(row: Alert, at: datetime, *, resolved: bool) -> LoggedChange:
    kind: Any = row.subject_kind
    subject = Subject(kind=kind, name=row.subject_name, quota=row.subject_quota)
    lasted = span((at - (row.fired_at or at)).total_seconds()) if resolved else ""
    # Its severity when it fired: the figure in its words then is that of a warning, if it worsened later.
    critical = row.worst == "critical" and row.level_since <= (row.fired_at or at)
    ended = row.worst_text or row.begun_text
    return LoggedChange(
        at=at,
        kind="alert",
        who="",
        what=f"Alert resolved after {lasted}" if resolved else "Alert",
        # The words of then, as in the timeline of its incident: an entry of the past does not change.
        thing=(ended if resolved else row.fired_text) or row.text,
        link=link_of(subject),
        detail="" if resolved else row.begun_detail if row.begun_text else row.detail,
        reason=f"Acknowledged by {row.acknowledged_by}." if row.acknowledged_by else "",
        css="" if resolved else "st-open" if critical else "st-warn",
    )


def _own_breakers(wanted: Wanted) -> Iterable[LoggedChange]:
    """One line for each time in which breakers of pods opened and closed, however often."""
    if wanted.actor or wanted.end - wanted.start > PODS_WITHIN:
        return
    rows = replace(wanted, end=wanted.until).of(Event.objects.filter(kind=EventKind.BREAKER))
    if wanted.thing:
        rows = rows.filter(Q(server=wanted.thing) | Q(detail__startswith=f"{wanted.thing}:"))
    found: list[PodLine] = _lines_of(
        wanted,
        rows.order_by("-at").values_list("at", "server", "detail"),
        _OWN_EVENTS,
        lambda read: own_lines(
            PodEvent(at=at.timestamp(), server=server, kind="breaker", detail=detail)
            for at, server, detail in read
        ),
    )
    for line in found:
        yield LoggedChange(
            at=datetime.fromtimestamp(line.at, UTC),
            kind="pod",
            who="",
            what="Own breaker",
            detail=f"{line.pods} {line.did}",
        )


def _pods(wanted: Wanted) -> Iterable[LoggedChange]:
    """One line for what happened to several pods within the same minute."""
    if wanted.actor or wanted.end - wanted.start > PODS_WITHIN:
        return
    rows = wanted.of(Event.objects.filter(kind__in=_POD_KINDS), thing="server")
    # The cause of a lost Redis differs from pod to pod.
    change = Case(
        When(kind=EventKind.MODE, then=Func(F("detail"), Value(": "), Value(1), function="split_part")),
        default=F("detail"),
        output_field=TextField(),
    )
    groups = (
        rows.annotate(minute=TruncMinute("at"), change=change)
        .values("minute", "kind", "change")
        .annotate(
            pods=Count("server", distinct=True), last=Max("at"), one=Min("server"), first_detail=Min("detail")
        )
        .order_by("-last", "kind", "change")[: wanted.most + 1]
    )
    for group in groups:
        alone = group["pods"] == 1
        yield LoggedChange(
            at=group["last"],
            kind="pod",
            who="",
            what=event_words(group["kind"]),
            thing=group["one"] if alone else f"{group['pods']} pods",
            link=reverse("server", args=[group["one"]]) if alone else reverse("servers"),
            detail=event_detail_words(group["first_detail"]),
            css="st-warn" if group["kind"] in (EventKind.SILENT, EventKind.CONFIG_REJECTED) else "",
        )


def _markers(wanted: Wanted) -> Iterable[LoggedChange]:
    """Deployments, as a pipeline reported them."""
    rows = wanted.of(markers(wanted.environment), actor="by", thing="service")
    for row in rows[: wanted.most + 1]:
        named = row.service if row.service not in row.text else ""
        yield LoggedChange(at=row.at, kind="marker", who=row.by, what=row.text, thing=named)
