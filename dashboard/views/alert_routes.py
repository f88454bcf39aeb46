"""Routes of alerts: in which order they are asked, who gets an alert now, and what reaches no receiver."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.models import Receiver, Route
from controlplane.alerts.people.mute_edits import MUTABLE_RULES
from controlplane.alerts.people.route_edits import (
    DAYS,
    MOST_STEPS,
    Plan,
    RouteValues,
    hours_of,
    plan_of,
    put_route,
    remove_route,
    steps_of,
)
from controlplane.alerts.people.routing import DEFAULT, routes_of, warnings
from controlplane.errors import InvalidEdit, NotFound
from dashboard.forms import whole
from dashboard.moments import WRONG, moment_of
from dashboard.reader import actor_of
from dashboard.views.page import bounded_text, context_of

_LEVELS = ((1, "1 or higher"), (2, "2 or higher"), (3, "3"))
_DAYS = {str(number): number for number in range(len(DAYS))}
_SEVERITIES = (("warning", "Warning or critical"), ("critical", "Critical"))


@require_http_methods(["GET", "POST"])
@require("acknowledge_alert")
def routes(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _page(request)
    if not may(request.user, "manage_receivers", environment_in(request)):
        raise PermissionDenied("This needs the role admin.")
    try:
        return _act(request)
    except InvalidEdit as error:
        return _page(request, errors=error.errors, status=422)
    except NotFound as missing:
        return _page(request, errors={"route": [str(missing)]}, status=404)


def _act(request: HttpRequest) -> HttpResponse:
    typed = request.POST
    common: dict[str, Any] = {
        "environment": environment_in(request),
        "name": bounded_text(typed, "name", most=64).strip(),
        "reason": typed.get("reason", ""),
        "actor": actor_of(request),
    }
    match typed.get("act", ""):
        case "put":
            place = typed.get("place", "").strip()
            row = put_route(values=_values(typed), place=whole(place, "place") if place else None, **common)
            messages.success(request, f"Route {row.name} was saved.")
        case "remove":
            remove_route(**common)
            messages.success(request, f"Route {common['name']} was removed.")
        case _:
            raise InvalidEdit({"act": ["Choose an action."]})
    return redirect("routes")


def _values(typed: QueryDict) -> RouteValues:
    level = typed.get("least_level", "1")
    return RouteValues(
        owner=bounded_text(typed, "owner").strip(),
        least_level=int(level) if level in ("1", "2", "3") else 0,
        least_severity=typed.get("least_severity", "warning"),
        # What is no day is refused with the others.
        days=tuple(_DAYS.get(day, -1) for day in typed.getlist("days")),
        begins=bounded_text(typed, "begins", most=5).strip(),
        ends=bounded_text(typed, "ends", most=5).strip(),
        zone=bounded_text(typed, "zone", most=64).strip() or "UTC",
        receivers=tuple(typed.getlist("receivers")),
        escalations=tuple(
            (whole(after, "escalations"), tuple(filter(None, map(str.strip, to.split(",")))))
            for after, to in _typed_steps(typed)
            if after or to
        ),
    )


def _typed_steps(typed: QueryDict) -> list[tuple[str, str]]:
    return [
        (
            bounded_text(typed, f"after_{number}", most=10).strip(),
            bounded_text(typed, f"to_{number}", most=2_000).strip(),
        )
        for number in range(MOST_STEPS)
    ]


def _page(
    request: HttpRequest, *, errors: dict[str, list[str]] | None = None, status: int = 200
) -> HttpResponse:
    environment = environment_in(request)
    rows = routes_of(environment)
    plan = None
    if request.GET.get("rule") and errors is None:
        try:
            plan = _plan(environment, request.GET)
        except InvalidEdit as error:
            errors, status = error.errors, 422
    context = context_of(request, "routes", errors=errors)
    names = Receiver.objects.filter(environment=environment)
    context |= {
        "rows": [(row, hours_of(row), row.steps[0][1], steps_of(row)) for row in rows],
        "form": _form(request, rows),
        "plan": plan,
        "asked": request.GET,
        "warnings": warnings(environment),
        "receivers": names.order_by("name").values_list("name", flat=True),
        "days": list(enumerate(DAYS)),
        "levels": _LEVELS,
        "severities": _SEVERITIES,
        "kinds": (("critical", "Critical"), ("warning", "Warning")),
        "rules": MUTABLE_RULES,
        "dependencies": (("", "None"), *(one.name for one in context["live"].breakers)),
        "default": DEFAULT,
    }
    return render(request, "dashboard/routes.html", context, status=status)


def _plan(environment: str, asked: QueryDict) -> Plan:
    at = bounded_text(asked, "at", most=40).strip()
    try:
        moment = moment_of(at) if at else None
    except ValueError:
        raise InvalidEdit({"at": [WRONG]}) from None
    return plan_of(
        environment=environment,
        rule=bounded_text(asked, "rule", most=64),
        dependency=bounded_text(asked, "dependency"),
        severity=asked.get("severity", "critical"),
        at=moment,
    )


def _form(request: HttpRequest, rows: list[Route]) -> dict[str, Any]:
    """What was typed, or the route to change, or an empty form."""
    typed = request.POST
    if typed.get("act") == "put":
        return {
            **typed.dict(),
            "days": {_DAYS[day] for day in typed.getlist("days") if day in _DAYS},
            "receivers": set(typed.getlist("receivers")),
            "steps": _typed_steps(typed),
        }
    row = next((row for row in rows if row.name == request.GET.get("edit")), None)
    if row is None:
        return {"least_level": 2, "zone": "UTC", "steps": [("", "")] * MOST_STEPS}
    steps = [(str(after_min), ", ".join(names)) for after_min, names in row.steps[1:]]
    return {
        "name": row.name,
        "changes": True,
        "place": "" if row.name == DEFAULT else row.place,
        "owner": row.owner,
        "least_level": row.least_level,
        "least_severity": row.least_severity,
        "days": set(row.days),
        "begins": row.begins,
        "ends": row.ends,
        "zone": row.zone,
        "receivers": set(row.steps[0][1]),
        "steps": [*steps, *[("", "")] * (MOST_STEPS - len(steps))],
    }
