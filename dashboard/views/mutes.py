"""Mutes of alerts and maintenance windows: what applies, what a new one would mute, and how one ends."""

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, may, require
from controlplane.alerts.models import Mute
from controlplane.alerts.mute_edits import MUTABLE_RULES, MuteValues, add_mute, end_mute, preview_mute
from controlplane.alerts.mutes import active_until, not_ended, period_of, words_of
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
            messages.success(request, f"Muted: {words_of(row)}, until {row.ends_at:%-d %b %H:%M} UTC.")
        case "end":
            row = end_mute(number=whole(typed.get("mute", ""), "mute"), **common)
            messages.success(request, f"Mute ended: {words_of(row)}. Alerts that still fire are sent.")
        case _:
            raise InvalidEdit({"act": ["Choose an action."]})
    hub.nudge()
    return redirect("mutes")


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
    if errors is None and any(typed.get(name) for name in _MATCHES):
        try:
            preview = preview_mute(environment=environment_in(request), values=_values(typed))
        except InvalidEdit as error:
            errors, status = error.errors, 422
    now = timezone.now()
    context = context_of(request, "mutes", errors=errors, typed=typed)
    context |= {
        "rows": [_row(row) for row in not_ended(environment_in(request), now)],
        "preview": preview,
        "rules": (("", "Any rule"), *MUTABLE_RULES),
        "dependencies": (("", "Any dependency"), *(one.name for one in context["live"].breakers)),
        "repeats": _REPEATS,
    }
    return render(request, "dashboard/mutes.html", context, status=status)


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
