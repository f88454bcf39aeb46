"""Adds a dependency: its name and owner, and all of its settings, as one edit."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing.edits.dependencies import (
    create_dependency,
    preview_new_dependency,
    scheduled_new_dependency,
)
from controlplane.errors import InvalidEdit, NotFound
from controlplane.fleet.older_agents import ignored_words
from controlplane.policies.breaker_advice import advice_about_new
from controlplane.policies.history import Changed
from controlplane.policies.latency_advice import latency_advice_after
from controlplane.policies.models import Kind
from controlplane.policies.newer_settings import newly_used
from controlplane.policies.protection_advice import queue_max_after
from controlplane.policies.runbook_texts import runbook_choices
from controlplane.schedules.models import Needs
from controlplane.validation import Problems
from dashboard.edit_form import SEE_FIELDS, EditForm, Errors, run_edit
from dashboard.forms import TextField
from dashboard.setting_controls import Control, unplaced
from dashboard.views.breakers.dependency_form import groups, new_row, of_kind, row_of_kind, typed_settings
from dashboard.views.breakers.setting_summaries import summary_of
from dashboard.views.history.schedule_form import schedule_form
from dashboard.views.page import context_of
from dashboard.words.setting_lines import wrong_lines

_KINDS = [(str(value), str(label)) for value, label in Kind.choices]
_LONGEST = 200
#: Part -> its name, for the parts that the preview names.
_PARTS = {"breaker": "Breaker", "timeout": "Timeout", "bulkhead": "Bulkhead", "retry": "Retries"}


class NewDependencyForm(EditForm):
    """The settings have their own controls."""

    name = TextField(_LONGEST)
    starts = TextField(_LONGEST)

    def save(self) -> int | HttpResponse:
        name, given = self.cleaned_data["name"], _given(self.data)
        environment = environment_in(self.request)
        try:
            if starts := self.cleaned_data["starts"]:
                return schedule_form(
                    self.request,
                    starts,
                    lambda due_at: scheduled_new_dependency(environment, name, given),
                    what=name,
                    needs=Needs.NEW,
                )
            revision = create_dependency(dependency=name, **given, **self.common)
        except InvalidEdit as error:
            raise InvalidEdit(_placed(error.errors)) from error
        except NotFound as missing:
            raise InvalidEdit({"runbook": [str(missing)]}) from missing
        self.then = reverse("breaker", args=[name])
        return revision


@require_http_methods(["GET", "POST"])
@require("edit_breaker_policy")
def new_dependency(request: HttpRequest) -> HttpResponse:
    if request.method != "POST":
        return _page(request, typed=request.GET)
    return run_edit(NewDependencyForm(request), page=_page)


@require_POST
@require("edit_breaker_policy")
def new_dependency_preview(request: HttpRequest) -> HttpResponse:
    """Show what would be added, with advice. Write nothing."""
    return render(request, "dashboard/setting_preview.html", _preview(environment_in(request), request.POST))


@require_POST
@require("edit_breaker_policy")
def new_dependency_groups(request: HttpRequest) -> HttpResponse:
    """Draw the settings again after another kind was chosen. Write nothing."""
    kind = _kind_in(request.POST)
    context = {
        "groups": groups(of_kind(request.POST, kind), {}, new_row(kind), new=True),
        "drawn_for": kind,
    }
    return render(request, "dashboard/dependency.html#settings", context)


def _kind_in(data: Mapping[str, str]) -> str:
    return data.get("kind", "") if data.get("kind", "") in Kind.values else Kind.EXTERNAL.value


def _given(data: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of the edit. Raises ``InvalidEdit`` with every wrong field."""
    wrong: dict[str, list[str]] = {}
    kind = _kind_in(data)
    if data.get("kind", kind) != kind:
        wrong["kind"] = ["Choose one of the values."]
    name, problems = data.get("name", "").strip(), Problems()
    if name:
        problems.slug("name", name)
        wrong |= problems.errors
    else:
        wrong["name"] = ["Enter a name, such as payments-api."]
    values = of_kind(data, kind)
    try:
        settings = typed_settings(values, row_of_kind(data, kind))
    except InvalidEdit as error:
        raise InvalidEdit({**wrong, **error.errors}) from error
    if wrong:
        raise InvalidEdit(wrong)
    return {
        "kind": kind,
        "title": data.get("title", "").strip(),
        "owner": data.get("owner", "").strip(),
        "runbook": data.get("runbook", "") or None,
        "breaker": settings.breaker,
        "timeout_ms": settings.timeout_ms,
        "wait_ms": settings.wait_ms,
        "first_part_ms": settings.first_part_ms,
        "between_parts_ms": settings.between_parts_ms,
        "store_wait_ms": settings.store_wait_ms,
        "latency_rise_percent": settings.latency_rise_percent,
        "fallback_note": settings.fallback_note,
        "protection": settings.protection,
    }


def _placed(errors: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """An error of the dependency as a whole stands at its name."""
    return {"name" if field == "dependency" else field: [*texts] for field, texts in errors.items()}


def _preview(environment: str, data: Mapping[str, str]) -> dict[str, Any]:
    """A name that is missing yet is not wrong."""
    name, kind = data.get("name", "").strip(), _kind_in(data)
    values = of_kind(data, kind)
    try:
        given = _given({**{field: data[field] for field in data}, "name": name or "new"})
        after = preview_new_dependency(environment, name or "new", given)
    except InvalidEdit as error:
        return {"wrong": wrong_lines(_placed(error.errors))}
    except NotFound as missing:
        return {"wrong": [str(missing)]}
    parts = [(title, summary_of(part, values)) for part, title in _PARTS.items()]
    change = Changed("dependency", name, None, after)
    ignored = [ignored_words(environment, newly_used([change]))]
    latency = [text for _, text in latency_advice_after(environment, [change])]
    advice = [
        *advice_about_new(after),
        *queue_max_after(environment, [change]),
        *latency,
        *filter(None, ignored),
    ]
    return {"adds": name or "the dependency", "parts": parts, "advice": advice}


def _page(
    request: HttpRequest, *, typed: Mapping[str, str], errors: Errors | None = None, status: int = 200
) -> HttpResponse:
    kind = _kind_in(typed)
    row, values = new_row(kind), of_kind(typed, kind)
    shown = {name: list(texts) for name, texts in (errors or {}).items()}
    found = groups(values, shown, row, new=True)

    def control(name: str, label: str, **more: Any) -> Control:
        return Control(name=name, label=label, value=typed.get(name, ""), errors=shown.get(name, ()), **more)

    own = [
        control(
            "owner", "Owner", hint="a service: people with a role for it may edit this", longest=_LONGEST
        ),
        control("title", "Title", hint="optional", longest=_LONGEST),
        control("runbook", "Runbook", choices=[("", "None"), *runbook_choices()]),
    ]
    beside = ("name", "kind", "starts", "reason", *(one.name for one in own))
    context = context_of(
        request,
        "dependency",
        row=row,
        new=True,
        own=own,
        groups=found,
        errors=shown,
        unplaced=unplaced(shown, found, beside=beside),
        typed=typed,
        kinds=_KINDS,
        kind=kind,
        drawn_for=kind,
        reason=typed.get("reason", ""),
        starts=typed.get("starts", ""),
        schedulable=True,
        **({"wrong": [SEE_FIELDS]} if shown else _preview(environment_in(request), typed)),
    )
    return render(request, "dashboard/dependency.html", context, status=status)
