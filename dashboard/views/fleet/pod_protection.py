"""The protection of every pod of the environment: a plain form, with a preview while it is typed."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing.edits.edit_entity import EntityEdit, check_version_of
from controlplane.editing.edits.pod_protection import (
    preview_pod_protection,
    scheduled_pod_protection,
    set_pod_protection,
)
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.policies.history import Changed
from controlplane.policies.protection import PROTECTION
from controlplane.policies.protection_advice import queue_max_after
from dashboard.edit_form import SEE_FIELDS, EditForm, run_edit, unchanged
from dashboard.forms import TextField, WholeField
from dashboard.setting_controls import unplaced
from dashboard.views.fleet.pod_protection_form import groups, typed_settings, values_of
from dashboard.views.history.schedule_form import schedule_form
from dashboard.views.page import context_of
from dashboard.words.change_words import change_words
from dashboard.words.setting_lines import wrong_lines

#: Differences that the preview lists.
_MAX_LINES = 30


class PodProtectionForm(EditForm):
    """The settings have their own controls."""

    base = WholeField()
    starts = TextField(200)

    def save(self) -> int | str | HttpResponse:
        environment = environment_in(self.request)
        base = self.cleaned_data["base"]
        check_version_of(
            EntityEdit(environment, "environment", environment, typed={PROTECTION: {}}, version=base)
        )
        settings = typed_settings(self.data, environment_of(environment))
        if starts := self.cleaned_data["starts"]:
            return schedule_form(
                self.request,
                starts,
                lambda due_at: scheduled_pod_protection(
                    environment=environment, expected_revision=base, due_at=due_at, **settings
                ),
                what="the protection of pods",
            )
        if unchanged(self, *preview_pod_protection(environment=environment, **settings)):
            return ""
        return set_pod_protection(expected_revision=base, **settings, **self.common)


@require_http_methods(["GET", "POST"])
@require("edit_breaker_policy")
def pod_protection(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        row = environment_of(environment_in(request))
        return _page(request, typed=values_of(row, request.GET.get("preset", "")))
    return run_edit(PodProtectionForm(request), page=_page, then="servers")


@require_POST
@require("edit_breaker_policy")
def pod_protection_preview(request: HttpRequest) -> HttpResponse:
    """Show what saving would change. Write nothing."""
    return render(request, "dashboard/setting_preview.html", _preview(environment_in(request), request.POST))


def _preview(environment: str, data: Mapping[str, str]) -> dict[str, Any]:
    try:
        before, after = preview_pod_protection(
            environment=environment, **typed_settings(data, environment_of(environment))
        )
    except InvalidEdit as error:
        return {"wrong": wrong_lines(error.errors)}
    change = Changed("environment", environment, before, after)
    lines = change_words(change)
    return {
        "changes": lines[:_MAX_LINES],
        "more": len(lines[_MAX_LINES:]),
        "advice": queue_max_after(environment, [change]),
    }


def _page(
    request: HttpRequest,
    *,
    typed: Mapping[str, str],
    errors: Mapping[str, Sequence[str]] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
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
        # The revision that the form was drawn at. After a conflict, the present one.
        base=typed.get("base", "") if errors else row.revision,
        reason=typed.get("reason", ""),
        starts=typed.get("starts", ""),
        **({"wrong": [SEE_FIELDS]} if errors else _preview(environment_in(request), typed)),
    )
    return render(request, "dashboard/pod_protection.html", context, status=status)
