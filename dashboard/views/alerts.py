"""The page of alerts: what fires, who works on it, and what fired in the past."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.people.acknowledge import acknowledge_alert, release_alert
from controlplane.alerts.people.mute_edits import end_mute
from controlplane.alerts.people.routing import warnings
from controlplane.alerts.state.stored_alerts import past_alerts, stored
from controlplane.errors import InvalidEdit, NotFound
from dashboard.forms import whole
from dashboard.hub import hub
from dashboard.list_filters import PERIODS, given_filters, having, in_period
from dashboard.reader import actor_of
from dashboard.table_files import rows_drawn
from dashboard.views.mutes import ended_text
from dashboard.views.page import bounded_text, context_of, text_parameter

_ROWS = 50
_SEVERITIES = ("critical", "warning")
#: No resolved alert is older.
_PERIODS = (*PERIODS[:-1], ("", "Last 90 days"))


@require_http_methods(["GET", "POST"])
@require("view")
def alerts(request: HttpRequest) -> HttpResponse:
    return _act(request) if request.method == "POST" else _page(request)


def _act(request: HttpRequest) -> HttpResponse:
    if not may(request.user, "acknowledge_alert", environment_in(request)):
        raise PermissionDenied("This needs the role operator.")
    if "end_mute" in request.POST or "end_period" in request.POST:
        return _end_mute(request)
    common: dict[str, Any] = {
        "environment": environment_in(request),
        "note": bounded_text(request.POST, "note", most=500),
        "actor": actor_of(request),
    }
    try:
        if "release" in request.POST:
            row = release_alert(number=whole(request.POST["release"], "alert"), **common)
        else:
            number, _, seen = request.POST.get("acknowledge", "").partition(" ")
            row = acknowledge_alert(number=whole(number, "alert"), seen=seen, **common)
    except InvalidEdit as error:
        return _page(request, errors=error.errors, typed=request.POST, status=422)
    except NotFound as missing:
        return _page(request, errors={"alert": [str(missing)]}, typed=request.POST, status=404)
    hub.nudge()
    done = "Acknowledged" if row.acknowledged_by else "Acknowledgement withdrawn"
    messages.success(request, f"{done}: {row.text}.")
    # The filter stays.
    return redirect(request.get_full_path())


def _end_mute(request: HttpRequest) -> HttpResponse:
    if not may(request.user, "mute_alerts", environment_in(request)):
        raise PermissionDenied("This needs the role operator.")
    only_period = "end_period" in request.POST
    try:
        row = end_mute(
            environment=environment_in(request),
            number=whole(request.POST["end_period" if only_period else "end_mute"], "mute"),
            reason="Ended on the Alerts page",
            actor=actor_of(request),
            only_period=only_period,
        )
    except InvalidEdit as error:
        return _page(request, errors=error.errors, typed=request.POST, status=422)
    except NotFound as missing:
        return _page(request, errors={"mute": [str(missing)]}, typed=request.POST, status=404)
    hub.nudge()
    messages.success(request, ended_text(row))
    return redirect(request.get_full_path())


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "alerts", **extra)
    filters = given_filters(request, "q", "period", "severity")
    rows = in_period(past_alerts(environment_in(request)), filters, "resolved_at")
    rows = having(rows, filters.get("q", ""), ("text", "detail", "acknowledged_by", "key"))
    if filters.get("severity") in _SEVERITIES:
        rows = rows.filter(severity=filters["severity"])
    pages = Paginator(rows, rows_drawn(request, _ROWS))
    shown = pages.get_page(text_parameter(request, "page"))
    context |= {
        "warnings": warnings(environment_in(request)),
        "past": [stored(row) for row in shown.object_list],
        "count": pages.count,
        "filters": filters,
        "periods": _PERIODS,
        "span": dict(_PERIODS).get(filters.get("period", ""), _PERIODS[-1][1]),
        "severities": (("", "Any severity"), *((name, name.capitalize()) for name in _SEVERITIES)),
        "previous": shown.previous_page_number() if shown.has_previous() else None,
        "next": shown.next_page_number() if shown.has_next() else None,
    }
    return render(request, "dashboard/alerts.html", context, status=status)
