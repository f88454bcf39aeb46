"""Routes of alerts: in which order they are asked, who gets an alert now, and what reaches no receiver."""

from dataclasses import fields
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.alerts.models import Receiver, Route
from controlplane.alerts.people.route_edits import (
    DAYS,
    LONGEST_ESCALATION_MIN,
    MAX_ESCALATIONS,
    MAX_ROUTES,
    RoutePreview,
    RouteValues,
    escalations_of,
    hours_of,
    preview_route,
    put_route,
    remove_route,
    version_of,
)
from controlplane.alerts.people.routing import DEFAULT, routes_of, warnings
from controlplane.alerts.people.rule_words import RULE_CHOICES
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.models import Dependency
from dashboard.edit_form import EditForm, Errors, chosen_form, run_edit
from dashboard.forms import SentNumberField, TextField, TextsField, WholeField, moment
from dashboard.undo import Saved
from dashboard.views.page import bounded_text, context_of, names_of

_LEVELS = (("1", "1 or higher"), ("2", "2 or higher"), ("3", "3"))
#: Fields that stand in ``RouteValues`` too.
_VALUES = tuple(field.name for field in fields(RouteValues))
_DAYS = {str(number): number for number in range(len(DAYS))}
_SEVERITIES = (("warning", "Warning or critical"), ("critical", "Critical"))


#: Fields of a route that are sent as one text.
_TEXTS = ("name", "place", "owner", "least_level", "least_severity", "begins", "ends", "zone")
_CONFLICT = "{by} changed this route meanwhile. Nothing was saved. The list has the new values."
_NO_STEP: tuple[str, list[str]] = ("", [])


class StepsInput(forms.Widget):
    """The pairs of controls, one for each escalation."""

    def value_from_datadict(self, data: Any, files: Any, name: str) -> list[tuple[str, list[str]]]:
        return _typed_steps(data)


class StepsField(forms.Field):
    widget = StepsInput

    def to_python(self, value: Any) -> tuple[tuple[int, tuple[str, ...]], ...]:
        minutes = WholeField(bounds=(1, LONGEST_ESCALATION_MIN))
        return tuple((minutes.clean(after), tuple(to)) for after, to in value if after or to)


class RouteForm(EditForm):
    name = TextField(64)
    place = WholeField(required=False, bounds=(1, MAX_ROUTES))
    #: Only Undo sends one: it replaces what was saved before it, and nothing later.
    version = WholeField(required=False)
    owner = TextField(200)
    least_level = SentNumberField(0, initial="1")
    least_severity = TextField(initial="warning")
    days = TextsField()
    begins = TextField(5)
    ends = TextField(5)
    zone = TextField(64)
    receivers = TextsField()
    escalations = StepsField(required=False)

    def save(self) -> Saved:
        typed = {name: self.cleaned_data[name] for name in _VALUES}
        # An unknown day is refused together with the other values.
        typed["days"] = tuple(_DAYS.get(day, -1) for day in typed["days"])
        typed["zone"] = typed["zone"] or "UTC"
        name, place = self.cleaned_data["name"], self.cleaned_data["place"]
        before = next((row for row in routes_of(environment_in(self.request)) if row.name == name), None)
        row = put_route(
            name=name,
            place=place,
            values=RouteValues(**typed),
            expected_version=self.cleaned_data["version"],
            **self.common,
        )
        undo = _undo(before, row.name, version_of(row))
        return Saved(f"Route {row.name} was saved.", at=reverse("routes"), undo=undo)


class RemoveForm(EditForm):
    name = TextField(64)
    version = WholeField(required=False)

    def save(self) -> Saved:
        name = self.cleaned_data["name"]
        before = next((row for row in routes_of(environment_in(self.request)) if row.name == name), None)
        remove_route(name=name, expected_version=self.cleaned_data["version"], **self.common)
        undo = _undo(before, name, version_of(None))
        return Saved(f"Route {name} was removed.", at=reverse("routes"), undo=undo)


_ACTS = {"put": RouteForm, "remove": RemoveForm}


@require_http_methods(["GET", "POST"])
@require("acknowledge_alert")
def routes(request: HttpRequest) -> HttpResponse:
    return run_edit(chosen_form(request, _ACTS), page=_page, then="routes", needs="manage_receivers")


def _typed_steps(typed: QueryDict) -> list[tuple[str, list[str]]]:
    return [
        (typed.get(f"after_{number}", "").strip(), typed.getlist(f"to_{number}"))
        for number in range(MAX_ESCALATIONS)
    ]


def _undo(before: Route | None, name: str, version: int) -> dict[str, str | list[str]]:
    """The form that brings a route back as it was, or removes a new one. ``version`` is what it replaces."""
    common = {"version": str(version), "reason": f"Undo of an edit of route {name}"}
    if before is None:
        return {"act": "remove", "name": name, **common}
    shown = _shown(before)
    sent = {field: shown[field] for field in (*_TEXTS, "receivers")}
    for number, (after, to) in enumerate(shown["steps"]):
        sent |= {f"after_{number}": after, f"to_{number}": sorted(to)}
    return {"act": "put", **sent, "days": [str(day) for day in before.days], **common}


def _page(
    request: HttpRequest,
    *,
    typed: QueryDict | None = None,
    errors: Errors | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    environment = environment_in(request)
    rows = routes_of(environment)
    if conflict is not None:
        errors = {"version": [_CONFLICT.format(by=conflict.by or "Another person")]}
    plan = None
    if request.GET.get("rule") and errors is None:
        try:
            plan = _plan(environment, request.GET)
        except InvalidEdit as error:
            errors, status = error.errors, 422
    context = context_of(request, "routes", errors=errors)
    context |= {
        "rows": [(row, hours_of(row), row.steps[0][1], escalations_of(row)) for row in rows],
        "form": _form(request, typed, rows),
        "plan": plan,
        "asked": request.GET,
        "warnings": warnings(environment),
        "receivers": names_of(Receiver, environment),
        "days": list(enumerate(DAYS)),
        "levels": _LEVELS,
        "severities": _SEVERITIES,
        "kinds": (("critical", "Critical"), ("warning", "Warning")),
        "rules": RULE_CHOICES,
        "dependencies": (("", "None"), *names_of(Dependency, environment)),
        "default": DEFAULT,
    }
    return render(request, "dashboard/routes.html", context, status=status)


def _plan(environment: str, asked: QueryDict) -> RoutePreview:
    at = bounded_text(asked, "at", most=40).strip()
    return preview_route(
        environment=environment,
        rule=bounded_text(asked, "rule", most=64),
        dependency=bounded_text(asked, "dependency"),
        severity=asked.get("severity", "critical"),
        at=moment(at, "at") if at else None,
    )


def _form(request: HttpRequest, typed: QueryDict | None, rows: list[Route]) -> dict[str, Any]:
    """The typed values, or the route to change, or an empty form."""
    if typed is not None and typed.get("act") == "put":
        return {
            **typed.dict(),
            "days": {_DAYS[day] for day in typed.getlist("days") if day in _DAYS},
            "receivers": typed.getlist("receivers"),
            "steps": _typed_steps(typed),
        }
    row = next((row for row in rows if row.name == request.GET.get("edit")), None)
    if row is None:
        return {"least_level": "2", "zone": "UTC", "steps": [_NO_STEP] * MAX_ESCALATIONS}
    return {"changes": True, **_shown(row)}


def _shown(row: Route) -> dict[str, Any]:
    """A route as its form shows it."""
    steps = [(str(after_min), names) for after_min, names in row.steps[1:]]
    return {
        "name": row.name,
        "place": "" if row.name == DEFAULT else str(row.place),
        "owner": row.owner,
        "least_level": str(row.least_level),
        "least_severity": row.least_severity,
        "days": set(row.days),
        "begins": row.begins,
        "ends": row.ends,
        "zone": row.zone,
        "receivers": list(row.steps[0][1]),
        "steps": [*steps, *[_NO_STEP] * (MAX_ESCALATIONS - len(steps))],
    }
