"""The weekly summary: as a page, and as Markdown."""

from dataclasses import dataclass
from datetime import date
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require
from controlplane.weekly.keep import find_summary
from controlplane.weekly.markdown import as_markdown
from controlplane.weekly.models import WeeklySummary
from controlplane.weekly.sections import Opens
from dashboard.limit_controls import limit_editor
from dashboard.templatetags.dashboard_tags import tenant_url
from dashboard.views.page import not_found, show, text_parameter


@dataclass(frozen=True, kw_only=True)
class LineRow:
    line: dict[str, Any]
    #: The page of the thing, or the editor with the suggestion filled in.
    href: str
    edits: bool


@dataclass(frozen=True, kw_only=True)
class SectionRows:
    section: dict[str, Any]
    rows: list[LineRow]


@require_GET
@require("view")
def weekly(request: HttpRequest) -> HttpResponse:
    summary, problem = _asked(request)
    if summary is None and problem:
        return not_found(request, "No such week", problem)
    weeks = WeeklySummary.objects.filter(environment=environment_in(request)).order_by("-begins")
    sections = [
        SectionRows(section=section, rows=[_row(line) for line in section["lines"]])
        for section in (summary.sections if summary is not None else ())
    ]
    return show(
        request,
        "weekly",
        "weekly.html",
        summary=summary,
        sections=sections,
        weeks=weeks.values_list("begins", flat=True),
        markdown=as_markdown(summary) if summary is not None else "",
    )


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
    else:
        href = tenant_url(key) if key else ""
    return LineRow(line=line, href=href, edits=opens in (Opens.TIER, Opens.DEPENDENCY))
