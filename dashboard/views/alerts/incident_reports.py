"""The report of an incident: as a page, as Markdown, and by a link for people without an account."""

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.alerts.incidents.markdown import as_markdown
from controlplane.alerts.incidents.reading import find_incident, title_of
from controlplane.alerts.incidents.report import report_of
from controlplane.alerts.incidents.share import (
    MAX_DAYS,
    end_links,
    make_link,
    shared_incident,
    shared_title,
    without_names,
)
from controlplane.errors import NotFound
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import WholeField
from dashboard.views.page import context_of, not_found

_DAYS = (("1", "1 day"), ("3", "3 days"), (str(MAX_DAYS), f"{MAX_DAYS} days"))


class ShareForm(EditForm):
    days = WholeField(bounds=(1, MAX_DAYS))
    reason = None

    def save(self) -> HttpResponse:
        link = self.request.build_absolute_uri(make_link(**self.given))
        return _page(self.request, self.known["number"], link=link)


class EndLinksForm(EditForm):
    reason = None

    def save(self) -> HttpResponse:
        end_links(**self.common)
        return _page(self.request, self.known["number"], ended=True)


@require_http_methods(["GET", "POST"])
@require("view")
def incident_report(request: HttpRequest, number: int) -> HttpResponse:
    form = chosen_form(request, {"share": ShareForm, "unshare": EndLinksForm}, number=number)
    return run_edit(form, page=partial(_page, number=number), needs="edit_incident")


def _page(request: HttpRequest, number: int, *, status: int = 200, **extra: Any) -> HttpResponse:
    try:
        report = report_of(find_incident(environment_in(request), number))
    except NotFound:
        return _missing(request)
    context = context_of(request, "incidents", report=report, days=_DAYS, **extra)
    context |= {"title": title_of(report.incident), "markdown": as_markdown(report)}
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
    """The report for people with its link: without a form, and without a way into the application."""
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


def _missing(request: HttpRequest) -> HttpResponse:
    return not_found(request, "No such incident", "Closed incidents are kept for 90 days.")
