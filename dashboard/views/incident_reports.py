"""The report of an incident: as a page, as Markdown, and by a link for people without an account."""

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.incidents.markdown import as_markdown
from controlplane.alerts.incidents.reading import find_incident
from controlplane.alerts.incidents.report import report_of
from controlplane.alerts.incidents.share import (
    MOST_DAYS,
    end_links,
    make_link,
    shared_incident,
    shared_title,
    without_names,
)
from controlplane.errors import InvalidEdit, NotFound
from dashboard.forms import whole
from dashboard.reader import actor_of
from dashboard.views.page import context_of, not_found

_DAYS = (("1", "1 day"), ("3", "3 days"), (str(MOST_DAYS), f"{MOST_DAYS} days"))


@require_http_methods(["GET", "POST"])
@require("view")
def incident_report(request: HttpRequest, number: int) -> HttpResponse:
    said: dict[str, Any] = {}
    status = 200
    if request.method == "POST":
        if not may(request.user, "edit_incident", environment_in(request)):
            raise PermissionDenied("This needs the role operator.")
        try:
            said = _share(request, number)
        except InvalidEdit as error:
            said, status = {"errors": error.errors}, 422
        except NotFound:
            return _missing(request)
    try:
        report = report_of(find_incident(environment_in(request), number))
    except NotFound:
        return _missing(request)
    context = context_of(
        request, "incidents", report=report, markdown=as_markdown(report), days=_DAYS, **said
    )
    return render(request, "dashboard/incident_report.html", context, status=status)


@require_GET
@require("view")
def incident_file(request: HttpRequest, number: int) -> HttpResponse:
    try:
        report = report_of(find_incident(environment_in(request), number))
    except NotFound:
        return _missing(request)
    headers = {"Content-Disposition": f'attachment; filename="incident-{number}.md"'}
    return HttpResponse(as_markdown(report), content_type="text/markdown; charset=utf-8", headers=headers)


@require_GET
def shared_report(request: HttpRequest, token: str) -> HttpResponse:
    """For whoever has the link: the report alone, without a form and without a way into the application."""
    found = shared_incident(token)
    if found is None:
        return _outside(request, {}, 404)
    incident, ends = found
    report = without_names(report_of(incident))
    context = {"title": shared_title(incident), "report": report, "ends": ends, "shared": True}
    return _outside(request, context, 200)


def _outside(request: HttpRequest, context: dict[str, Any], status: int) -> HttpResponse:
    response = render(request, "dashboard/shared_report.html", context, status=status)
    response["X-Robots-Tag"] = "noindex"
    response["Referrer-Policy"] = "no-referrer"
    return response


def _share(request: HttpRequest, number: int) -> dict[str, Any]:
    common: dict[str, Any] = {
        "environment": environment_in(request),
        "number": number,
        "actor": actor_of(request),
    }
    match request.POST.get("act", ""):
        case "share":
            path = make_link(days=whole(request.POST.get("days", ""), "days"), **common)
            return {"link": request.build_absolute_uri(path)}
        case "unshare":
            end_links(**common)
            return {"ended": True}
        case _:
            raise InvalidEdit({"act": ["Choose an action."]})


def _missing(request: HttpRequest) -> HttpResponse:
    return not_found(request, "No such incident", "Closed incidents are kept for 90 days.")
