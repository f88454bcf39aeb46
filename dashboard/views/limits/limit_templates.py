"""Limit templates: which limits a change would reach, and what it would have refused, before it is saved."""

from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.editing.edits.limit_templates import changed_followers, template_plan
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.fleet.live import divisor
from controlplane.phrases import window_words
from controlplane.policies.models import Dependency, Template, Tier
from controlplane.policies.template_followers import Followers, count_followers, followers
from controlplane.policies.template_starts import STARTS
from controlplane.usage.what_if import what_if
from controlplane.validation import check_reason
from dashboard.edit_form import NOT_SENT, NOTHING_CHANGED, EditForm, VersionForm, chosen_form, run_edit
from dashboard.forms import TextField, sent_number
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.undo import saved_at
from dashboard.views.limits.outage import outage_words
from dashboard.views.limits.template_form import TemplateForm
from dashboard.views.page import context_of, find_named, names_of, not_found, show, text_parameter
from dashboard.words.change_words import column_words
from dashboard.words.changed_items import items_to_come
from dashboard.words.setting_lines import column_label, lower_first

#: How many of the limits that follow a template are listed; there may be a hundred thousand.
_SHOWN = 100


class FollowForm(EditForm):
    """A limit takes all values of the template."""

    owner = TextField()
    limit = TextField(64)
    missing_status = 409
    shown_at: ClassVar = {"quota": "limit", "name": "limit"}

    def save(self) -> int:
        kind, _, owner = self.cleaned_data["owner"].partition(":")
        limit = self.cleaned_data["limit"]
        if kind == "tier":
            return edits.set_tier_quota(tier=owner, quota=limit, expected_version=None, **self.common)
        if kind == "dependency":
            return edits.set_vendor_limit(dependency=owner, name=limit, expected_version=None, **self.common)
        raise InvalidEdit({"owner": ["Choose a tier or a dependency."]})


class RemoveForm(VersionForm):
    """The template is deleted. ``instead`` is the choice for the limits that follow it."""

    instead = TextField()
    missing_status = 409
    shown_at: ClassVar = {"template": "instead"}

    def save(self) -> int:
        kind, _, other = self.cleaned_data["instead"].partition(":")
        self.then = reverse("templates")
        return edits.remove_template(
            keep_values=kind == "keep",
            instead=other if kind == "use" else None,
            **self.common,
        )


#: Button -> its form. The button that saves has a form with the values of the template.
_ACTS = {"follow": FollowForm, "remove": RemoveForm}


@require_GET
@require_role("viewer")
def templates(request: HttpRequest) -> HttpResponse:
    return _list(request)


@require_POST
@require("edit_quota")
def make_template(request: HttpRequest) -> HttpResponse:
    form = TemplateForm(request.POST)
    form.fields["name"].required = form.fields["limit"].required = form.fields["window_s"].required = True
    if not form.is_valid():
        return _list(request, form=form, status=422)
    name = form.cleaned_data["name"]
    try:
        revision = _save(request, name, form, version=0)
    except InvalidEdit as error:
        return _list(request, form=_with_errors(form, error), status=422)
    except EditConflict:
        form.add_error("name", "A template with this name exists.")
        return _list(request, form=form, status=409)
    return _saved(name, revision)


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def template(request: HttpRequest, name: str) -> HttpResponseBase:
    """One template, the limits that follow it, and the forms to change it, apply it and delete it."""
    if request.method == "POST":
        return require("edit_quota")(_edit)(request, name)
    row = _find(environment_in(request), name)
    return _page(request, row) if row else _missing(request)


@require_POST
@require("edit_quota")
def template_preview(request: HttpRequest, name: str) -> HttpResponse:
    """Show what saving would change, and where. Write nothing."""
    return render(
        request,
        "dashboard/template.html#reach",
        _reach(environment_in(request), name, TemplateForm(request.POST)),
    )


def _address(name: str) -> str:
    return reverse("template", args=[name])


def _saved(name: str, revision: int) -> HttpResponse:
    return redirect(saved_at(_address(name), revision))


def _missing(request: HttpRequest) -> HttpResponse:
    return not_found(request, "No such template", "There is no template with this name.")


def _edit(request: HttpRequest, name: str) -> HttpResponse:
    row = _find(environment_in(request), name)
    if row is None:
        return _missing(request)
    act = request.POST.get("act", "")
    if act in _ACTS:
        buttons = chosen_form(request, _ACTS, template=row.name)
        return run_edit(buttons, page=partial(_page, row=row, act=act), then=_address(row.name))
    form = TemplateForm(request.POST)
    if not form.is_valid():
        return _page(request, row, form=form, status=422)
    try:
        if not edits.preview_template(environment=row.environment_id, template=row.name, **form.values()):
            check_reason(form.cleaned_data["reason"])
            messages.info(request, NOTHING_CHANGED)
            return redirect("template", name=row.name)
        version = sent_number(request.POST.get("version", ""), -1)
        revision = _save(request, row.name, form, version=version)
    except InvalidEdit as error:
        return _page(request, row, form=_with_errors(form, error), status=422)
    except EditConflict as conflict:
        return _page(request, row, form=form, conflict=conflict, status=409)
    except NotFound as missing:
        return _page(request, row, errors={"it": [str(missing)]}, status=409)
    return _saved(row.name, revision)


def _save(request: HttpRequest, name: str, form: TemplateForm, *, version: int) -> int:
    revision = edits.set_template(
        environment=environment_in(request),
        template=name,
        expected_version=version,
        reason=form.cleaned_data["reason"],
        actor=actor_of(request),
        **form.values(),
    )
    hub.nudge()
    return revision


def _list(request: HttpRequest, *, form: TemplateForm | None = None, status: int = 200) -> HttpResponse:
    who = count_followers(environment_in(request))
    rows = Template.objects.filter(environment=environment_in(request)).order_by("name")
    shown = [(row, window_words(row.window_s), who.get(row.name, Followers())) for row in rows]
    return show(
        request,
        "templates",
        "templates.html",
        status=status,
        rows=shown,
        form=form or TemplateForm(initial=_start(request)),
        starts=STARTS,
    )


def _start(request: HttpRequest) -> dict[str, Any]:
    """The usual values that the address names, for a new template."""
    name = text_parameter(request, "start", most=64)
    return {"name": name, **asdict(STARTS[name])} if name in STARTS else {}


def _page(
    request: HttpRequest,
    row: Template,
    *,
    form: TemplateForm | None = None,
    status: int = 200,
    **sent: Any,
) -> HttpResponse:
    sent = {**NOT_SENT, **sent}
    environment = environment_in(request)
    following = followers(environment, row.name, most=_SHOWN)
    count = count_followers(environment).get(row.name, Followers())
    context = context_of(
        request,
        "templates",
        row=row,
        window=window_words(row.window_s),
        form=form or TemplateForm(initial=TemplateForm.initial_of(row)),
        # After a conflict, the next save knowingly replaces the other person's values.
        version=row.version if status != 422 or form is None else form.data.get("version", ""),
        followers=[(each, _own_words(each.own)) for each in following],
        count=count,
        left_off=count.limits - len(following),
        owners=[
            *((f"tier:{name}", f"tier {name}") for name in names_of(Tier, environment)),
            *((f"dependency:{name}", f"dependency {name}") for name in names_of(Dependency, environment)),
        ],
        instead=[
            ("", f"Choose what happens to {count}"),
            ("keep", "Keep their current values"),
            *(
                (f"use:{name}", f"Use {name} instead")
                for name in names_of(Template, environment).exclude(pk=row.pk)
            ),
        ],
        beside=_beside(sent["act"], bool(count.limits)),
        **sent,
    )
    if form is not None and sent["conflict"] is not None:
        context |= _reach(environment, row.name, form)
    return render(request, "dashboard/template.html", context, status=status)


def _beside(act: str, used: bool) -> str:
    """The errors that stand beside a field of the form of this button."""
    if act == "follow":
        return "owner,limit,reason"
    return "instead,reason" if used else "reason"


def _own_words(own: Mapping[str, Any]) -> list[str]:
    """The values with which a limit differs from its template."""
    return [
        f"{lower_first(column_label(name))}: {lower_first(column_words(name, {name: value}))}"
        for name, value in own.items()
    ]


def _reach(environment: str, name: str, form: TemplateForm) -> dict[str, Any]:
    """The limits that would change, and a replay of the last days with the new values."""
    form.fields["reason"].required = False
    if not form.is_valid():
        # The form reports it when it is sent. An incomplete number is not a mistake yet.
        return {"reach": None}
    try:
        found = edits.preview_template(environment=environment, template=name, **form.values())
        replayed = what_if(environment, template_plan(name, **form.values()))
    except InvalidEdit as error:
        return {"reach": None, "wrong": [text for texts in error.errors.values() for text in texts][:3]}
    outage, most = outage_words(environment, form.columns(), pods=divisor(environment))
    changes = [change for change in found.changes if change.kind != "template"]
    return {
        "outage": outage,
        "refuses_most": most,
        "reach": str(changed_followers(found, name)),
        "things": items_to_come(environment, changes, 5),
        "more": max(0, len(changes) - 5),
        "whatif": replayed,
    }


def _with_errors(form: TemplateForm, error: InvalidEdit) -> TemplateForm:
    names = {"quota": "name", "template": None}
    for field, found in error.errors.items():
        known = names.get(field, field)
        form.add_error(
            known if known in form.fields else None, [forms.ValidationError(text) for text in found]
        )
    return form


def _find(environment: str, name: str) -> Template | None:
    return find_named(Template.objects.filter(environment=environment), name)
