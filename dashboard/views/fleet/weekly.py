"""The weekly summary: as a page, and as Markdown."""

from dataclasses import dataclass
from datetime import date
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import check, environment_in, may, require
from controlplane.alerts.delivery.apprise.services import PAGERS, scheme_of
from controlplane.alerts.models import Receiver
from controlplane.weekly.keep import find_summary
from controlplane.weekly.markdown import as_markdown
from controlplane.weekly.models import WeeklySummary
from controlplane.weekly.sections import Opens
from controlplane.weekly.send import document_of, send_now
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import TextField
from dashboard.links import limit_editor
from dashboard.templatetags.dashboard_tags import tenant_url
from dashboard.views.page import not_found, show, text_parameter


@dataclass(frozen=True, kw_only=True)
class LineRow:
    line: dict[str, Any]
    #: The page of the thing, or the editor with the suggestion filled in.
    href: str
    edits: bool


class SendForm(EditForm):
    """Send the week in the address to one receiver."""

    receiver = TextField(64)
    reason = None

    def save(self) -> str:
        send_now(**self.given)
        name = self.cleaned_data["receiver"]
        return f"The summary waits for the worker, which sends it to {name}."


@require_http_methods(["GET", "POST"])
@require("view")
def weekly(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _page(request)
    check(request.user, "manage_receivers", environment_in(request), service="")
    summary, problem = _asked(request)
    if summary is None:
        return not_found(request, "No such week", problem or "No week is summarized yet.")
    return run_edit(SendForm(request, begins=summary.begins), page=_page, then="receivers")


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    summary, problem = _asked(request)
    if summary is None and problem:
        return not_found(request, "No such week", problem)
    weeks = WeeklySummary.objects.filter(environment=environment_in(request)).order_by("-begins")
    sections = [
        (section, [_row(line) for line in section["lines"]])
        for section in (summary.sections if summary is not None else ())
    ]
    return show(
        request,
        "weekly",
        "weekly.html",
        summary=summary,
        sections=sections,
        weeks=weeks.values_list("begins", flat=True),
        status=status,
        **_sending(request, summary),
        **extra,
    )


def _sending(request: HttpRequest, summary: WeeklySummary | None) -> dict[str, Any]:
    """The receivers that can get it, and the message, for people who may send it."""
    environment = environment_in(request)
    if summary is None or not may(request.user, "manage_receivers", environment):
        return {}
    rows = [
        row
        for row in Receiver.objects.filter(environment=environment, disabled_because="").order_by("name")
        if scheme_of(row.url) not in PAGERS
    ]
    return {
        "sends": True,
        "choices": [(row.name, row.name) for row in rows],
        "wanting": [row.name for row in rows if row.weekly],
        "preview": document_of(summary)["data"],
    }


@require_GET
@require("view")
def weekly_file(request: HttpRequest) -> HttpResponse:
    summary, problem = _asked(request)
    if summary is None:
        return not_found(request, "No such week", problem or "No week is summarized yet.")
    name = f"week-{summary.environment}-{summary.begins}.md"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return HttpResponse(as_markdown(summary), content_type="text/markdown; charset=utf-8", headers=headers)


def _asked(request: HttpRequest) -> tuple[WeeklySummary | None, str]:
    """The summary of the week in the address, or the newest one; and what is wrong."""
    text = text_parameter(request, "week")
    if not text:
        return find_summary(environment_in(request)), ""
    try:
        begins = date.fromisoformat(text)
    except ValueError:
        return None, "Enter the Monday of a week, like 2026-05-04."
    return find_summary(environment_in(request), begins), "There is no summary of this week."


def _row(line: dict[str, Any]) -> LineRow:
    key, size = line["key"], line["size"]
    opens = Opens(line["opens"])
    if opens is Opens.TIER:
        href = limit_editor("tier", key, line["limit"], limit=str(size))
    elif opens is Opens.DEPENDENCY:
        at = "protection.bulkhead.max_concurrent"
        href = reverse("edit", args=["dependency"], query={"key": key, at: str(size), "at": at})
    elif opens is Opens.BREAKER:
        href = reverse("breaker", args=[key])
    elif opens is Opens.ALERTS:
        href = reverse("alerts")
    elif opens is Opens.COSTS:
        href = reverse("costs")
    else:
        href = tenant_url(key) if key else ""
    return LineRow(line=line, href=href, edits=opens in (Opens.TIER, Opens.DEPENDENCY))
