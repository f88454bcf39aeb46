"""Freezes the environment for a time, so that only overrides are possible, or ends the freeze."""

from datetime import datetime

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing.freeze import end_freeze, freeze_edits
from controlplane.errors import InvalidEdit
from dashboard.hub import hub
from dashboard.moments import WRONG, moment_of
from dashboard.reader import actor_of
from dashboard.views.page import context_of


@require_http_methods(["GET", "POST"])
@require("freeze_edits")
def edit_freeze(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _page(request)
    reason, actor = request.POST.get("reason", ""), actor_of(request)
    try:
        if request.POST.get("act") == "end":
            end_freeze(environment=environment_in(request), reason=reason, actor=actor)
            said = "Edits are possible again."
        else:
            until = _moment(request.POST.get("until", ""))
            freeze_edits(environment=environment_in(request), until=until, reason=reason, actor=actor)
            said = f"Edits are frozen until {until:%-d %B %H:%M} UTC."
    except InvalidEdit as error:
        return _page(request, errors=error.errors, status=422)
    hub.nudge()
    messages.success(request, said)
    return redirect("edit_freeze")


def _moment(text: str) -> datetime:
    try:
        return moment_of(text)
    except ValueError:
        raise InvalidEdit({"until": [WRONG]}) from None


def _page(
    request: HttpRequest, *, errors: dict[str, list[str]] | None = None, status: int = 200
) -> HttpResponse:
    context = context_of(request, "edit", errors=errors or {}, typed=request.POST)
    return render(request, "dashboard/edit_freeze.html", context, status=status)
