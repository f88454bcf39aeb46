"""What protects every pod of the environment: a plain form, with a preview while it is typed."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing.edits.pod_protection import (
    preview_pod_protection,
    scheduled_pod_protection,
    set_pod_protection,
)
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.policies.history import Changed
from controlplane.policies.protection_advice import queue_max_after
from dashboard.change_words import change_words
from dashboard.forms import whole
from dashboard.hub import hub
from dashboard.pod_protection_form import PodSettings, groups, typed_settings, values_of
from dashboard.reader import actor_of
from dashboard.setting_controls import unplaced
from dashboard.setting_lines import wrong_lines
from dashboard.views.page import context_of
from dashboard.views.schedule_form import schedule_form

#: Differences that the preview lists.
_MOST = 30


@require_http_methods(["GET", "POST"])
@require("edit_breaker_policy")
def pod_protection(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        row = environment_of(environment_in(request))
        return _page(request, typed=values_of(row, request.GET.get("preset", "")))
    try:
        settings = typed_settings(request.POST)
        if starts := request.POST.get("starts", "").strip():
            return _schedule(request, settings, starts)
        revision = set_pod_protection(
            environment=environment_in(request),
            protection=settings.protection,
            observe_for_s=settings.observe_for_s,
            expected_revision=whole(request.POST.get("base", ""), "base"),
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
        )
    except InvalidEdit as error:
        base = request.POST.get("base", "")
        return _page(request, typed=request.POST, base=base, errors=error.errors, status=422)
    except EditConflict as conflict:
        return _page(request, typed=request.POST, conflict=conflict, status=409)
    hub.nudge()
    messages.success(request, f"The protection of pods is saved as revision {revision}.")
    return redirect("servers")


def _schedule(request: HttpRequest, settings: PodSettings, starts: str) -> HttpResponse:
    return schedule_form(
        request,
        starts,
        lambda due_at: scheduled_pod_protection(
            environment=environment_in(request),
            protection=settings.protection,
            observe_for_s=settings.observe_for_s,
            expected_revision=whole(request.POST.get("base", ""), "base"),
            due_at=due_at,
        ),
        what="The protection of pods",
    )


@require_POST
@require("edit_breaker_policy")
def pod_protection_preview(request: HttpRequest) -> HttpResponse:
    """What saving would change; nothing is written."""
    return render(request, "dashboard/setting_preview.html", _preview(environment_in(request), request.POST))


def _preview(environment: str, data: Mapping[str, str]) -> dict[str, Any]:
    try:
        settings = typed_settings(data)
        before, after = preview_pod_protection(
            environment=environment, protection=settings.protection, observe_for_s=settings.observe_for_s
        )
    except InvalidEdit as error:
        return {"wrong": wrong_lines(error.errors)}
    change = Changed("environment", environment, before, after)
    lines = change_words(change)
    return {
        "changes": lines[:_MOST],
        "more": len(lines[_MOST:]),
        "advice": queue_max_after(environment, [change]),
    }


def _page(
    request: HttpRequest,
    *,
    typed: Mapping[str, str],
    base: str = "",
    errors: Mapping[str, Sequence[str]] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    """``base`` is the revision that the form was drawn at. After a conflict it is the present one."""
    row, errors = environment_of(environment_in(request)), errors or {}
    found = groups(row, typed, errors, datetime.now(UTC))
    context = context_of(
        request,
        "pod_protection",
        row=row,
        groups=found,
        errors=errors,
        unplaced=unplaced(errors, found, beside=("starts", "reason")),
        conflict=conflict,
        base=base or row.revision,
        reason=request.POST.get("reason", ""),
        starts=request.POST.get("starts", ""),
        **_preview(environment_in(request), typed),
    )
    return render(request, "dashboard/pod_protection.html", context, status=status)
