"""The settings of one dependency: a plain form, with advice while it is typed."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.editing.edits.dependency_settings import (
    preview_dependency,
    scheduled_settings,
    set_dependency,
)
from controlplane.editing.edits.edit_entity import EntityEdit, check_version_of
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.fleet.older_agents import ignored_words
from controlplane.policies.breaker_advice import advice_about
from controlplane.policies.history import Changed
from controlplane.policies.latency_advice import latency_advice_after
from controlplane.policies.models import Dependency
from controlplane.policies.newer_settings import newly_used
from controlplane.policies.protection_advice import queue_max_after
from controlplane.policies.protection_presets import SIZE, size_words
from dashboard.edit_form import SEE_FIELDS, EditForm, run_edit, unchanged
from dashboard.forms import TextField, WholeField
from dashboard.reader import check_owner
from dashboard.setting_controls import unplaced
from dashboard.views.breakers.dependency_form import groups, suggests, typed_settings, values_of
from dashboard.views.editor.edit_request import decides
from dashboard.views.history.schedule_form import schedule_form
from dashboard.views.page import context_of, not_found
from dashboard.words.change_words import change_words
from dashboard.words.setting_lines import wrong_lines

#: Differences that the preview lists.
_MAX_LINES = 30


class DependencyForm(EditForm):
    """The settings have their own controls."""

    missing_status = 409

    version = WholeField()
    starts = TextField(200)

    def __init__(self, request: HttpRequest, row: Dependency) -> None:
        super().__init__(request, dependency=row.name)
        self.row = row

    def save(self) -> int | str | HttpResponse:
        name, version = self.row.name, self.cleaned_data["version"]
        check_version_of(EntityEdit(self.row.environment_id, "dependency", name, version=version))
        settings = typed_settings(self.data, self.row)
        if starts := self.cleaned_data["starts"]:
            if not decides(self.request, "dependency"):
                # Not for the admin of one service: see ADR 0029.
                raise PermissionDenied
            given = {
                "environment": environment_in(self.request),
                "dependency": name,
                "settings": settings,
                "expected_version": version,
            }
            what = f"dependency {name}"
            return schedule_form(self.request, starts, lambda due_at: scheduled_settings(**given), what=what)
        fields = preview_dependency(
            environment=environment_in(self.request), dependency=name, settings=settings
        )
        # A suggestion that is declined is saved, so that it is not made again.
        if not suggests(self.row) and unchanged(self, *fields):
            return ""
        return set_dependency(settings=settings, expected_version=version, **self.common)


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def dependency(request: HttpRequest, name: str) -> HttpResponse:
    row = _editable(request, name)
    if row is None:
        return not_found(request, "No such dependency", "There is no dependency with this name.")
    if request.method != "POST":
        chosen = {part: request.GET.get(part, "") for part in ("bulkhead", "sla", "retry")}
        suggested = not any(chosen.values()) and suggests(row)
        words = size_words(SIZE, timeout_ms=row.timeout_ms) if suggested else ""
        return _page(request, row, typed=values_of(row, chosen), suggested=words)
    return run_edit(
        DependencyForm(request, row), page=partial(_page, row=row), then=reverse("breaker", args=[name])
    )


@require_POST
@require_role("viewer")
def dependency_preview(request: HttpRequest, name: str) -> HttpResponse:
    """Show what saving would change, with advice. Write nothing."""
    row = _editable(request, name)
    if row is None:
        return HttpResponse(status=404)
    return render(request, "dashboard/setting_preview.html", _preview(row, request.POST))


def _editable(request: HttpRequest, name: str) -> Dependency | None:
    """The dependency, if there is one. Refuses readers who may not edit it."""
    row = Dependency.objects.filter(environment_id=environment_in(request), name=name).first()
    check_owner(request, "edit_breaker_policy", row.owner if row else "")
    return row


def _preview(row: Dependency, data: Mapping[str, str]) -> dict[str, Any]:
    environment, name = row.environment_id, row.name
    try:
        before, after = preview_dependency(
            environment=environment, dependency=name, settings=typed_settings(data, row)
        )
    except InvalidEdit as error:
        return {"wrong": wrong_lines(error.errors)}
    except NotFound as missing:
        return {"wrong": [str(missing)]}
    change = Changed("dependency", name, before, after)
    lines = change_words(change)
    ignored = [ignored_words(environment, newly_used([change]))]
    latency = [text for _, text in latency_advice_after(environment, [change])]
    advice = [
        *advice_about(after),
        *queue_max_after(environment, [change]),
        *latency,
        *filter(None, ignored),
    ]
    return {"changes": lines[:_MAX_LINES], "more": len(lines[_MAX_LINES:]), "advice": advice}


def _page(
    request: HttpRequest,
    row: Dependency,
    *,
    typed: Mapping[str, str],
    errors: Mapping[str, Sequence[str]] | None = None,
    conflict: EditConflict | None = None,
    suggested: str = "",
    status: int = 200,
) -> HttpResponse:
    if conflict is not None:
        row.refresh_from_db()
    found, errors = groups(typed, errors or {}, row), errors or {}
    context = context_of(
        request,
        "dependency",
        key=row.name,
        row=row,
        groups=found,
        errors=errors,
        unplaced=unplaced(errors, found, beside=("starts", "reason")),
        conflict=conflict,
        suggested=suggested,
        # The version that the form was drawn at. After a conflict, the present one.
        version=(typed.get("version") if errors else "") or row.version,
        reason=typed.get("reason", ""),
        starts=typed.get("starts", ""),
        schedulable=decides(request, "dependency"),
        **({"wrong": [SEE_FIELDS]} if errors else _preview(row, typed)),
    )
    return render(request, "dashboard/dependency.html", context, status=status)
