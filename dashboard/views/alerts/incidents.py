"""Incidents: what is open, what was, and one of them with its timeline and what people can do."""

from collections.abc import Iterable
from functools import partial
from typing import Any

from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import check, environment_in, may, require
from controlplane.alerts.incidents.edits import (
    LONGEST_NOTE,
    add_note,
    close_incident,
    merge_incident,
    split_alert,
    tick_step,
)
from controlplane.alerts.incidents.reading import (
    alerts_of,
    described,
    find_incident,
    incidents,
    open_counts,
)
from controlplane.alerts.incidents.timeline import MAX, Line, timeline
from controlplane.alerts.models import Incident
from controlplane.alerts.people.acknowledge import acknowledge_alert, release_alert
from controlplane.alerts.state.stored_alerts import StoredAlert, stored
from controlplane.errors import NotFound
from controlplane.phrases import moment
from controlplane.status.breakers import PHRASES
from dashboard.edit_form import EditForm, UnknownAct, run_edit
from dashboard.forms import TextField, WholeField, whole
from dashboard.live.breakers import Breaker
from dashboard.tables.list_filters import PERIODS, given_filters, having, in_period
from dashboard.tables.table_files import rows_drawn
from dashboard.views.page import context_of, not_found, recent_live, text_parameter

_ROWS = 50
_LINES = 60
#: Lines of the time before the incident, besides markers.
_BEFORE = 5
_STATES = (("", "Any state"), ("open", "Active or recovering"), ("closed", "Closed"))
_PERIODS = (*PERIODS[:-1], ("", "Last 90 days"))
#: Incidents that another one can be merged into.
_MAX_TARGETS = 50


@require_GET
@require("view")
def list_incidents(request: HttpRequest) -> HttpResponse:
    context = context_of(request, "incidents")
    filters = given_filters(request, "q", "period", "state")
    every = incidents(environment_in(request))
    rows = having(in_period(every, filters, "started_at"), filters.get("q", ""), ("title", "cause"))
    if filters.get("state") in ("open", "closed"):
        rows = rows.filter(closed_at__isnull=filters["state"] == "open")
    pages = Paginator(rows, rows_drawn(request, _ROWS))
    shown = pages.get_page(text_parameter(request, "page"))
    context |= {
        "rows": described(shown.object_list),
        "count": pages.count,
        "open": _open_words(*open_counts(environment_in(request))),
        "filters": filters,
        "periods": _PERIODS,
        "states": _STATES,
        "previous": shown.previous_page_number() if shown.has_previous() else None,
        "next": shown.next_page_number() if shown.has_next() else None,
    }
    return render(request, "dashboard/incidents.html", context)


def _open_words(active: int, recovering: int) -> str:
    """``2 active, 1 recovering``: the side bar counts those that are active."""
    numbers = {"active": active, "recovering": recovering}
    return ", ".join(f"{number} {word}" for word, number in numbers.items() if number) or "None active"


class NoteForm(EditForm):
    note = TextField(LONGEST_NOTE)
    reason = None

    def save(self) -> str:
        add_note(text=self.cleaned_data["note"], **self.common)
        return "Note added."


class AlertForm(EditForm):
    """``acknowledge:81``: one button for each alert."""

    reason = None

    def save(self) -> str:
        act, _, number = self.act.partition(":")
        given = self.common | {"number": whole(number, "alert"), "note": ""}
        if act == "acknowledge":
            return f"Acknowledged: {acknowledge_alert(**given).text}."
        return f"Acknowledgement withdrawn: {release_alert(**given).text}."


class StepForm(EditForm):
    runbook = TextField(100)
    step = WholeField()
    text = TextField(LONGEST_NOTE)
    done = TextField()
    reason = None

    def save(self) -> str:
        line = tick_step(**self.given | {"done": self.cleaned_data["done"] == "1"})
        return f"Step {line.step} {'done' if line.done else 'undone'}."


class CloseForm(EditForm):
    def save(self) -> str:
        close_incident(**self.given)
        return "Incident closed."


class MergeForm(EditForm):
    into = WholeField()

    def save(self) -> str:
        self.then = reverse("incident", args=[merge_incident(**self.given).pk])
        return f"Incident {self.known['number']} was merged into this one."


class SplitForm(EditForm):
    alert = WholeField()

    def save(self) -> str:
        self.then = reverse("incident", args=[split_alert(**self.given).pk])
        return f"This incident was split off incident {self.known['number']}."


_ACTS: dict[str, type[EditForm]] = {
    "note": NoteForm,
    "step": StepForm,
    "close": CloseForm,
    "merge": MergeForm,
    "split": SplitForm,
    "acknowledge": AlertForm,
    "release": AlertForm,
}


@require_http_methods(["GET", "POST"])
@require("view")
def incident(request: HttpRequest, number: int) -> HttpResponse:
    asked = _ACTS.get(request.POST.get("act", "").partition(":")[0], UnknownAct)
    if request.method == "POST":
        # Before anything is looked up.
        needs = "acknowledge_alert" if asked is AlertForm else "edit_incident"
        check(request.user, needs, environment_in(request), service="")
    try:
        row = find_incident(environment_in(request), number)
    except NotFound:
        return not_found(request, "No such incident", "Closed incidents are kept for 90 days.")
    form = asked(request, number=row.pk)
    return run_edit(form, page=partial(_page, row=row), then=reverse("incident", args=[number]))


@require_GET
@require("view")
def incident_now(request: HttpRequest, number: int) -> HttpResponse:
    """The parts of the page that change while the incident is open."""
    try:
        row = find_incident(environment_in(request), number)
    except NotFound:
        return HttpResponse(status=404)
    operates = may(request.user, "edit_incident", environment_in(request))
    context = {"operates": operates, **_now(request, row)}
    return render(request, "dashboard/incident.html#now", context)


def _affected(row: Incident, alerts: Iterable[StoredAlert]) -> list[dict[str, str]]:
    """The dependencies of the alerts, and how their breakers are now, until the incident is closed."""
    names = sorted({one.dependency for one in alerts} - {""})
    live = recent_live(row.environment) if names and row.closed_at is None else None
    return [{"name": name, "now": _now_words(live.breaker(name)) if live else ""} for name in names]


def _now_words(found: Breaker | None) -> str:
    """How the breaker is now, which its alert does not say: a person may have forced it open."""
    if found is None:
        return ""
    state = PHRASES[found.effective]
    if found.override is None:
        return state
    return f"{state} by {found.override.actor} until {moment(found.override.expires_at)}"


def _page(request: HttpRequest, row: Incident, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "incidents", **extra) | _now(request, row)
    keys = {alert.key: alert for alert in context["rows"]}
    others = incidents(row.environment).filter(merged_into=None).exclude(pk=row.pk)
    context |= {
        "splittable": [(alert.id, alert.words) for alert in keys.values()] if len(keys) > 1 else [],
        "targets": [
            (one["incident"].pk, f"{one['incident'].pk}: {one['title']}")
            for one in described(others[:_MAX_TARGETS])
        ],
        "longest": LONGEST_NOTE,
    }
    return render(request, "dashboard/incident.html", context, status=status)


def _with_few_before(lines: list[Line], row: Incident) -> tuple[list[Line], int]:
    """The lines without most of the minutes before it began, and how many are left out.

    A deployment explains more than the rest of that time.
    """
    others = [one for one in lines if one.at < row.started_at and one.kind != "marker"]
    left_out = others[_BEFORE:]
    return [one for one in lines if one not in left_out], len(left_out)


def _now(request: HttpRequest, row: Incident) -> dict[str, Any]:
    every = text_parameter(request, "lines") == "all"
    most = MAX if every else _LINES
    lines = timeline(row, most=most)
    shown, left_out = (lines[:most], 0) if every else _with_few_before(lines[:most], row)
    alerts = [stored(alert) for alert in alerts_of(row)]
    return {
        **described([row])[0],
        "rows": alerts,
        "affected": _affected(row, alerts),
        "books": sorted({one.runbook for one in alerts if one.runbook}),
        "lines": shown,
        "left_out": left_out,
        "more": len(lines) > most,
        "every": every,
        "most": most,
    }
