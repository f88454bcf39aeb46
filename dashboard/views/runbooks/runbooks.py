"""Runbooks beside what they are for: with live values, and steps that an incident keeps."""

from functools import partial
from typing import Any
from urllib.parse import urlencode

from django.db import InterfaceError, OperationalError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import check, environment_in, may, require
from controlplane.alerts.incidents.edits import steps_done, tick_step
from controlplane.alerts.incidents.reading import described, incidents
from controlplane.alerts.models import Incident
from controlplane.errors import InvalidEdit
from controlplane.policies.models import RunbookRevision
from controlplane.policies.runbook_texts import Origin
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import TextField
from dashboard.live.overview import Live
from dashboard.reader import actor_of
from dashboard.views.page import context_of, not_found, recent_live, show, text_parameter
from dashboard.views.runbooks.runbook_html import Drawing, Tick, draw_runbook
from dashboard.views.runbooks.runbook_texts import (
    Page,
    Unreadable,
    every_runbook,
    find_runbook,
    permits,
    scene_of,
)

#: Open incidents, and dependencies, that can be chosen.
_MAX_INCIDENTS = 20
_MAX_DEPENDENCIES = 12
_UNREADABLE = (
    "This runbook cannot be read",
    "Postgres is unavailable, and the release has no runbook of this name. The list has those it has.",
)
_CHANGED = "The runbook was changed. Read the step again, then tick it."


@require_GET
@require("view")
def runbooks(request: HttpRequest) -> HttpResponse:
    return show(
        request, "runbooks", "runbooks.html", books=every_runbook(), edits=may(request.user, "edit_runbook")
    )


class TickForm(EditForm):
    """A box beside a step: ``incident:step:done``."""

    tick = TextField(200)
    reason = None

    def save(self) -> str:
        number, _, rest = self.cleaned_data["tick"].partition(":")
        key, _, done = rest.partition(":")
        found: Page = self.known["found"]
        step = next((step for step in found.document.steps if step.key == key), None)
        if step is None or not number.isdecimal():
            raise InvalidEdit({"step": [_CHANGED]})
        tick_step(
            environment=environment_in(self.request),
            number=int(number[:9]),
            runbook=found.slug,
            step=step.number,
            text=step.text,
            done=done == "1",
            actor=actor_of(self.request),
        )
        asked = {"incident": number}
        if of := text_parameter(self.request, "of"):
            asked["of"] = of
        self.then = f"{reverse('runbook', args=[found.slug])}?{urlencode(asked)}#step-{key}"
        return ""


@require_http_methods(["GET", "POST"])
@require("view")
def runbook(request: HttpRequest, slug: str) -> HttpResponse:
    if request.method == "POST":
        check(request.user, "edit_incident", environment_in(request), service="")
    try:
        found = find_runbook(slug)
    except Unreadable:
        return show(
            request, "missing", "refused.html", status=503, heading=_UNREADABLE[0], text=_UNREADABLE[1]
        )
    if found is None:
        return not_found(request, "No such runbook", "The list of runbooks has every one of them.")
    return run_edit(TickForm(request, found=found), page=partial(_page, found=found))


@require_GET
@require("view")
def runbook_now(request: HttpRequest, slug: str) -> HttpResponse:
    """The text with its values and ticks, which the page reads again every 5 s."""
    try:
        found = find_runbook(slug)
    except Unreadable:
        return HttpResponse(status=503)
    if found is None:
        return HttpResponse(status=404)
    live = recent_live(environment_in(request))
    return render(request, "dashboard/runbook.html#now", _now(request, found, live))


def _page(request: HttpRequest, found: Page, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "runbooks", **extra)
    live = recent_live(environment_in(request))
    context |= _now(request, found, live)
    context["used_by"] = [one.name for one in live.facts.dependencies if one.runbook == found.slug]
    context["edits"] = may(request.user, "edit_runbook")
    if found.origin in (Origin.EDITED, Origin.OWN):
        context["last"] = RunbookRevision.objects.filter(runbook=found.slug, number=found.version).first()
    return render(request, "dashboard/runbook.html", context, status=status)


def _now(request: HttpRequest, found: Page, live: Live) -> dict[str, Any]:
    environment = environment_in(request)
    operates = may(request.user, "edit_incident", environment)
    chosen, others, readable = _incidents(request, found)
    breaker = live.breaker(_dependency(request, found, chosen, live))
    ticks = steps_done(chosen, found.slug) if chosen is not None else {}
    drawing = Drawing(
        scene=scene_of(live, breaker),
        ticks={text: Tick(by=line.by, at=line.at) for text, line in ticks.items()},
        incident=chosen.pk if chosen is not None and operates else None,
        permits=permits(request.user, environment, breaker),
    )
    steps = found.document.steps
    return {
        "runbook": found,
        "html": draw_runbook(found.document, drawing),
        **(described([chosen])[0] if chosen is not None else {"incident": None}),
        "others": described(others),
        "incidents_readable": readable,
        "operates": operates,
        "breaker": breaker,
        # In the order of the page of breakers: what is open first.
        "dependencies": [one.name for one in live.breakers[:_MAX_DEPENDENCIES]]
        if breaker is None and found.document.of_dependency
        else [],
        "steps": sum(not step.of_one_case for step in steps),
        "done": sum(step.text in ticks and not step.of_one_case for step in steps),
        "cases": sum(step.of_one_case for step in steps),
        "query": request.GET.urlencode(),
    }


def _incidents(request: HttpRequest, found: Page) -> tuple[Incident | None, list[Incident], bool]:
    """The incident whose ticks are displayed, other open ones, and whether they could be read.

    That is the one from which the reader came, or else the newest open one with an alert of this runbook.
    """
    every = incidents(environment_in(request))
    asked = text_parameter(request, "incident")
    try:
        opened = list(every.filter(closed_at=None)[:_MAX_INCIDENTS])
        chosen = every.filter(pk=int(asked)).first() if asked.isdecimal() and len(asked) < 10 else None
        if chosen is None:
            chosen = every.filter(closed_at=None, alerts__runbook=found.slug).first()
    except (OperationalError, InterfaceError):
        return None, [], False
    return chosen, [one for one in opened if chosen is None or one.pk != chosen.pk], True


def _dependency(request: HttpRequest, found: Page, chosen: Incident | None, live: Live) -> str:
    """The dependency of values and buttons: asked for, of the incident, or the only one of the page."""
    if asked := text_parameter(request, "of"):
        return asked
    if chosen is not None:
        rows = chosen.alerts.filter(subject_kind="breaker", runbook=found.slug).order_by("resolved_at", "pk")
        if name := rows.values_list("subject_name", flat=True).first():
            return name
    users = [one.name for one in live.facts.dependencies if one.runbook == found.slug]
    return users[0] if len(users) == 1 else ""
