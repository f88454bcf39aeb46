"""Mutes of alerts and maintenance windows: what applies, what a new one would mute, and how one ends."""

from datetime import datetime
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.models import Mute
from controlplane.alerts.people.mute_edits import MUTABLE_RULES, MuteValues, add_mute, end_mute, preview_mute
from controlplane.alerts.state.mutes import active_until, not_ended, period_of, words_of
from controlplane.errors import InvalidEdit, NotFound
from dashboard.forms import whole
from dashboard.hub import hub
from dashboard.moments import WRONG, moment_of
from dashboard.reader import actor_of
from dashboard.views.page import bounded_text, context_of

_MATCHES = ("rule", "dependency", "pod")
_REPEATS = (("", "Once"), ("weekly", "Every week, until a person ends it"))


@require_http_methods(["GET", "POST"])
@require("view")
def mutes(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _page(request, request.GET)
    if not may(request.user, "mute_alerts", environment_in(request)):
        raise PermissionDenied("This needs the role operator.")
    try:
        return _act(request)
    except InvalidEdit as error:
        return _page(request, request.POST, errors=error.errors, status=422)
    except NotFound as missing:
        return _page(request, request.POST, errors={"mute": [str(missing)]}, status=404)


def _act(request: HttpRequest) -> HttpResponse:
    typed = request.POST
    common: dict[str, Any] = {
        "environment": environment_in(request),
        "reason": typed.get("reason", ""),
        "actor": actor_of(request),
    }
    match typed.get("act", ""):
        case "preview":
            return _page(request, typed)
        case "add":
            row = add_mute(values=_values(typed), **common)
            messages.success(request, _added_text(row))
        case ("end" | "end_period") as act:
            number = whole(typed.get("mute", ""), "mute")
            row = end_mute(number=number, only_period=act == "end_period", **common)
            messages.success(request, ended_text(row))
        case _:
            raise InvalidEdit({"act": ["Choose an action."]})
    hub.nudge()
    return redirect("mutes")


def ended_text(row: Mute) -> str:
    """What follows when a mute ends, or one period of it."""
    rest = "Alerts that still fire are sent."
    if row.ended_at is None:
        starts, _ = period_of(row, timezone.now())
        return f"This period ended: {words_of(row)}. {rest} The next begins on {_short(starts)} UTC."
    if row.weekly:
        return f"Weekly mute ended: {words_of(row)}. It is not repeated. {rest}"
    return f"Mute ended: {words_of(row)}. {rest}"


def _added_text(row: Mute) -> str:
    planned = row.starts_at > row.created_at
    begins = f"from {_short(row.starts_at)} " if planned else ""
    weekly = ", and every week until a person ends it" if row.weekly else ""
    word = "Planned" if planned else "Muted"
    return f"{word}: {words_of(row)}, {begins}until {_short(row.ends_at)} UTC{weekly}."


def _short(at: datetime) -> str:
    return f"{at:%-d %b %H:%M}"


def _values(typed: QueryDict) -> MuteValues:
    starts = bounded_text(typed, "starts_at", most=40).strip()
    try:
        starts_at = moment_of(starts) if starts else None
    except ValueError:
        raise InvalidEdit({"starts_at": [WRONG]}) from None
    return MuteValues(
        **{name: bounded_text(typed, name).strip() for name in _MATCHES},
        starts_at=starts_at,
        minutes=whole(typed.get("minutes") or "60", "minutes"),
        weekly=typed.get("repeats") == "weekly",
    )


def _page(
    request: HttpRequest,
    typed: QueryDict,
    *,
    errors: dict[str, list[str]] | None = None,
    status: int = 200,
) -> HttpResponse:
    preview = None
    asked = errors is None and any(typed.get(name) for name in _MATCHES)
    if asked and may(request.user, "mute_alerts", environment_in(request)):
        try:
            preview = preview_mute(environment=environment_in(request), values=_values(typed))
        except InvalidEdit as error:
            errors, status = error.errors, 422
    now = timezone.now()
    context = context_of(request, "mutes", errors=errors, typed=typed)
    context |= {
        "rows": [_row(row) for row in not_ended(environment_in(request), now)],
        "preview": preview,
        "rules": _with_typed((("", "Any rule"), *MUTABLE_RULES), typed.get("rule", "")),
        "dependencies": _with_typed(
            (("", "Any dependency"), *(one.name for one in context["live"].breakers)),
            typed.get("dependency", ""),
        ),
        "repeats": _REPEATS,
    }
    return render(request, "dashboard/mutes.html", context, status=status)


def _with_typed(choices: tuple[str | tuple[str, str], ...], typed: str) -> tuple[str | tuple[str, str], ...]:
    """Keep what is no choice: in its place, the form would mute more than its preview shows."""
    return choices if not typed or typed in choices else (*choices, typed)


def _row(mute: Mute) -> dict[str, Any]:
    now = timezone.now()
    starts, ends = period_of(mute, now)
    return {
        "mute": mute,
        "matches": words_of(mute),
        "starts": starts,
        "ends": ends,
        "active": active_until(mute, now) is not None,
    }
