"""Incidents: what is open, what was, and one of them with its timeline and what people can do."""

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.incidents.edits import (
    LONGEST_NOTE,
    add_note,
    close_incident,
    merge_incident,
    split_alert,
    tick_step,
)
from controlplane.alerts.incidents.reading import alerts_of, find_incident, incidents, state_of
from controlplane.alerts.incidents.timeline import MOST, timeline
from controlplane.alerts.models import Incident
from controlplane.alerts.people.acknowledge import acknowledge_alert, release_alert
from controlplane.alerts.state.stored_alerts import stored
from controlplane.errors import InvalidEdit, NotFound
from dashboard.forms import whole
from dashboard.hub import hub
from dashboard.list_filters import PERIODS, given_filters, having, in_period
from dashboard.reader import actor_of
from dashboard.table_files import rows_drawn
from dashboard.views.page import bounded_text, context_of, not_found, text_parameter

_ROWS = 50
_LINES = 60
_STATES = (("", "Any state"), ("open", "Open"), ("closed", "Closed"))
_PERIODS = (*PERIODS[:-1], ("", "Last 90 days"))
#: Incidents that another one can be merged into.
_MOST_TARGETS = 50


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
        "rows": [{"incident": row, "state": state_of(row)} for row in shown.object_list],
        "count": pages.count,
        "open": every.filter(closed_at=None).count(),
        "filters": filters,
        "periods": _PERIODS,
        "states": _STATES,
        "previous": shown.previous_page_number() if shown.has_previous() else None,
        "next": shown.next_page_number() if shown.has_next() else None,
    }
    return render(request, "dashboard/incidents.html", context)


@require_http_methods(["GET", "POST"])
@require("view")
def incident(request: HttpRequest, number: int) -> HttpResponse:
    if request.method == "POST":
        _check(request)
    try:
        row = find_incident(environment_in(request), number)
    except NotFound:
        return not_found(request, "No such incident", "Closed incidents are kept for 90 days.")
    if request.method != "POST":
        return _page(request, row)
    try:
        return _act(request, row)
    except InvalidEdit as error:
        return _page(request, row, errors=error.errors, typed=request.POST, status=422)
    except NotFound as missing:
        return _page(request, row, errors={"act": [str(missing)]}, typed=request.POST, status=404)


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


def _act(request: HttpRequest, row: Incident) -> HttpResponse:
    action, _ = _asked(request)
    if action is None:
        raise InvalidEdit({"act": ["Choose an action."]})
    number, said = action(request, row)
    hub.nudge()
    messages.success(request, said)
    return redirect("incident", number)


def _check(request: HttpRequest) -> None:
    """Raise ``PermissionDenied`` before anything is looked up."""
    _, right = _asked(request)
    if not may(request.user, right, environment_in(request)):
        raise PermissionDenied("This needs the role operator.")


def _asked(request: HttpRequest) -> "tuple[_Action | None, str]":
    return _ACTS.get(request.POST.get("act", "").partition(":")[0], (None, "edit_incident"))


def _note(request: HttpRequest, row: Incident) -> tuple[int, str]:
    add_note(text=bounded_text(request.POST, "note", most=LONGEST_NOTE), **_common(request, row))
    return row.pk, "Note added."


def _acknowledge(request: HttpRequest, row: Incident) -> tuple[int, str]:
    alert = acknowledge_alert(note="", **_common(request, row) | {"number": _chosen(request)})
    return row.pk, f"Acknowledged: {alert.text}."


def _release(request: HttpRequest, row: Incident) -> tuple[int, str]:
    alert = release_alert(note="", **_common(request, row) | {"number": _chosen(request)})
    return row.pk, f"Acknowledgement withdrawn: {alert.text}."


def _step(request: HttpRequest, row: Incident) -> tuple[int, str]:
    line = tick_step(
        runbook=bounded_text(request.POST, "runbook", most=100),
        step=whole(request.POST.get("step", ""), "step"),
        text=bounded_text(request.POST, "text", most=LONGEST_NOTE),
        done=request.POST.get("done") == "1",
        **_common(request, row),
    )
    return row.pk, f"Step {line.step} {'done' if line.done else 'undone'}."


def _close(request: HttpRequest, row: Incident) -> tuple[int, str]:
    close_incident(reason=request.POST.get("reason", ""), **_common(request, row))
    return row.pk, "Incident closed."


def _merge(request: HttpRequest, row: Incident) -> tuple[int, str]:
    into = whole(request.POST.get("into", ""), "into")
    target = merge_incident(into=into, reason=request.POST.get("reason", ""), **_common(request, row))
    return target.pk, f"Incident {row.pk} was merged into this one."


def _split(request: HttpRequest, row: Incident) -> tuple[int, str]:
    alert = whole(request.POST.get("alert", ""), "alert")
    new = split_alert(alert=alert, reason=request.POST.get("reason", ""), **_common(request, row))
    return new.pk, f"This incident was split off incident {row.pk}."


def _common(request: HttpRequest, row: Incident) -> dict[str, Any]:
    return {"environment": row.environment, "number": row.pk, "actor": actor_of(request)}


def _chosen(request: HttpRequest) -> int:
    """``acknowledge:81``: one button for each alert."""
    return whole(request.POST.get("act", "").partition(":")[2], "alert")


_Action = Callable[[HttpRequest, Incident], tuple[int, str]]
#: Action -> what does it, and the right that it needs.
_ACTS: dict[str, tuple[_Action, str]] = {
    "note": (_note, "edit_incident"),
    "step": (_step, "edit_incident"),
    "close": (_close, "edit_incident"),
    "merge": (_merge, "edit_incident"),
    "split": (_split, "edit_incident"),
    "acknowledge": (_acknowledge, "acknowledge_alert"),
    "release": (_release, "acknowledge_alert"),
}


def _page(request: HttpRequest, row: Incident, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "incidents", **extra) | _now(request, row)
    keys = {alert.key: alert for alert in context["rows"]}
    others = incidents(row.environment).filter(merged_into=None).exclude(pk=row.pk)
    context |= {
        "splittable": [(alert.id, alert.text) for alert in keys.values()] if len(keys) > 1 else [],
        "targets": [(one.pk, f"{one.pk}: {one.title}") for one in others[:_MOST_TARGETS]],
        "longest": LONGEST_NOTE,
    }
    return render(request, "dashboard/incident.html", context, status=status)


def _now(request: HttpRequest, row: Incident) -> dict[str, Any]:
    every = text_parameter(request, "lines") == "all"
    most = MOST if every else _LINES
    lines = timeline(row, most=most)
    alerts = [stored(alert) for alert in alerts_of(row)]
    return {
        "incident": row,
        "state": state_of(row),
        "rows": alerts,
        "affected": sorted({one.subject.name for one in alerts if one.subject.kind == "breaker"}),
        "books": sorted({one.runbook for one in alerts if one.runbook}),
        "lines": lines[:most],
        "more": len(lines) > most,
        "every": every,
        "most": most,
    }
