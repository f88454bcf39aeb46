"""The editor of one thing: a tier, a tenant, a dependency or the environment.

Each follows the same steps: show the thing as of a revision, preview what was typed, then save it,
propose it, or schedule it. Values that another person changed meanwhile stay unless they conflict.

``edit_request`` reads what was sent, and ``edit_preview`` draws the preview.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.editing import edits
from controlplane.editing.edits.edit_entity import UnitConflict
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.policies.models import Dependency, Template, Tenant, Tier
from controlplane.policies.runbook_texts import runbook_choices
from controlplane.schedules.models import Needs
from dashboard.edit_form import SEE_FIELDS, with_reason
from dashboard.hub import hub
from dashboard.live.edited import edited_key
from dashboard.reader import actor_of
from dashboard.setting_controls import Group, unplaced
from dashboard.undo import saved_at
from dashboard.views.editor.edit_preview import preview_of
from dashboard.views.editor.edit_request import KINDS, EditRequest, decides, for_editors, read_request
from dashboard.views.editor.entity_form import groups_of, placed
from dashboard.views.history.schedule_form import schedule_form
from dashboard.views.page import context_of, names_of, not_found

#: Field -> what is wrong with it.
Errors = Mapping[str, Sequence[str]]


@require_http_methods(["GET", "POST"])
@for_editors
def edit(request: HttpRequest, kind: str) -> HttpResponse:
    """Show the editor of the thing that the address names, or save, schedule or delete it."""
    if kind == "dependency" and "new" in request.GET:
        # Runbooks and bookmarks have this address.
        return redirect("new_dependency")
    asked = read_request(request, kind)
    if kind == "tenant" and asked.shown is None and not asked.new and request.method != "POST":
        # Pods also list callers that are not registered. Their page offers to register them.
        return redirect(_address(kind, asked.name))
    if asked.shown is None and not asked.new:
        return not_found(request, f"No such {kind}", f"There is no {kind} {asked.name}.")
    if request.method != "POST":
        return _page(request, asked)
    if request.POST.get("act") == "remove" and KINDS[kind].removable and not asked.new:
        return _remove(request, asked)
    return _save(request, asked)


def _save(request: HttpRequest, asked: EditRequest) -> HttpResponse:
    if "owner" in asked.typed.fields and not decides(request, asked.kind):
        asked.typed.errors["own.owner"] = ["It decides who may edit: ask an admin of the environment."]
    reason = request.POST.get("reason", "")
    if asked.typed.errors:
        return _page(request, asked, errors=with_reason(asked.typed.errors, reason), status=422)
    try:
        if starts := request.POST.get("starts", "").strip():
            return _schedule(request, asked, starts)
        if not asked.typed and asked.took_theirs:
            messages.info(request, "Nothing was saved: the values of the other person stay.")
            return redirect(request.get_full_path())
        if not asked.typed and not asked.new:
            raise InvalidEdit({"form": ["Nothing is changed. Change a value first."]})
        revision = edits.save_edit(
            asked.edit,
            reason=reason,
            actor=actor_of(request),
            replace=asked.replace,
            seen=asked.seen,
        )
    except UnitConflict as conflict:
        return _page(request, asked, conflict=conflict, status=409)
    except InvalidEdit as error:
        new_limit = asked.inputs.get("new.name", "").strip()
        section = KINDS[asked.kind].section
        errors = placed(asked.kind, asked.name, section, error.errors, new_limit=new_limit, new=asked.new)
        return _page(request, asked, errors=with_reason(errors, reason), status=422)
    except NotFound as missing:
        return _page(request, asked, errors={"form": [str(missing)]}, status=409)
    hub.nudge()
    return redirect(saved_at(_address(asked.kind, asked.name), revision))


def _words_of(asked: EditRequest) -> str:
    """Its name in the message about a scheduled change."""
    return asked.name if asked.kind == "environment" else f"{asked.kind} {asked.name}"


def _schedule(request: HttpRequest, asked: EditRequest, starts: str) -> HttpResponse:
    if asked.typed.removed:
        raise InvalidEdit({"starts": ["A removal cannot be scheduled. Save it now, or keep the limit."]})
    return schedule_form(
        request,
        starts,
        lambda due_at: edits.check_scheduled(asked.edit, replace=asked.replace, seen=asked.seen),
        what=_words_of(asked),
        needs=Needs.NEW if asked.new else Needs.PRESENT,
    )


def _remove(request: HttpRequest, asked: EditRequest) -> HttpResponse:
    name = asked.name
    try:
        if request.POST.get("confirm", "").strip() != name:
            raise InvalidEdit({"confirm": [f"Type {name} exactly: {asked.kind} {name} is deleted."]})
        revision = edits.remove_entity(
            environment=asked.environment,
            kind=asked.kind,
            name=name,
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
            base=asked.base,
        )
    except InvalidEdit as error:
        errors = with_reason(error.errors, request.POST.get("reason", ""))
        return _page(request, asked, remove_errors=errors, status=422)
    except EditConflict as conflict:
        by = conflict.by or "Another person"
        messages.error(request, f"Nothing was deleted: {by} changed {name} meanwhile. Check it first.")
        return redirect(request.get_full_path())
    except NotFound as missing:
        return not_found(request, f"No such {asked.kind}", str(missing))
    hub.nudge()
    return redirect(saved_at(_list_address(asked.kind), revision))


def _page(
    request: HttpRequest,
    asked: EditRequest,
    *,
    errors: Errors | None = None,
    remove_errors: Errors | None = None,
    conflict: UnitConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    """Show the editor. What was typed stays in its inputs."""
    kind, name, errors = asked.kind, asked.name, errors or {}
    groups = [] if asked.only else _groups(request, asked, errors, status)
    context = context_of(
        request,
        "edit",
        key=kind if asked.new else edited_key(kind, name, asked.base),
        kind=kind,
        name=name,
        new=asked.new,
        base=asked.base,
        groups=groups,
        errors=errors,
        unplaced=unplaced(errors, groups, beside=("name", "starts", "reason")),
        conflict=conflict,
        # The page has two forms with a reason. Each keeps its own.
        typed={} if remove_errors else asked.inputs,
        remove=_remove_form(request, remove_errors) if remove_errors else {},
        removable=KINDS[kind].removable and not (asked.new or asked.only) and decides(request, kind),
        schedulable=decides(request, kind),
        back=_list_address(kind) if asked.new else _address(kind, name),
    )
    if asked.only:
        children = Tenant.objects.filter(environment=asked.environment, deleted=False, parent=name)
        context |= {"only": asked.only, "shown": asked.shown, "children": children.count()}
    if kind == "tier":
        rows = Tenant.objects.filter(environment=asked.environment, deleted=False, tier__name=name)
        context["tenants"] = rows.count()
    if asked.typed or status != 200:
        context |= {"wrong": [SEE_FIELDS]} if errors else preview_of(asked)
    return render(request, "dashboard/edit.html", context, status=status)


def _groups(request: HttpRequest, asked: EditRequest, errors: Errors, status: int) -> list[Group]:
    return groups_of(
        asked.kind,
        asked.shown,
        data=asked.inputs,
        errors=errors,
        choices=_choices(asked.environment, asked.kind, new=asked.new),
        inherited=asked.of_tier,
        at=request.GET.get("at", "") if status == 200 else "",
    )


def _remove_form(request: HttpRequest, errors: Errors) -> dict[str, Any]:
    """Return what the form that deletes the thing shows after a mistake."""
    shown = ("confirm", "reason")
    found: dict[str, Any] = {field: request.POST.get(field, "") for field in shown}
    found |= {f"{field}_errors": errors.get(field, ()) for field in shown}
    others = [texts for field, texts in errors.items() if field not in shown]
    return found | {"problems": [text for texts in others for text in texts]}


def _choices(environment: str, kind: str, *, new: bool) -> dict[str, list[tuple[str, str]]]:
    found = {"templates": [(name, name) for name in names_of(Template, environment)]}
    if kind in ("tenant", "environment"):
        found["tiers"] = [(name, name) for name in names_of(Tier, environment)]
        if new:
            # The first of the list would give a new tenant quotas that no person chose.
            found["tiers"].insert(0, ("", "Choose a tier"))
    if kind in ("tenant", "tier"):
        found["dependencies"] = [(name, name) for name in names_of(Dependency, environment)]
    if kind == "dependency":
        found["runbooks"] = [("", "None"), *runbook_choices()]
    return found


def _address(kind: str, name: str) -> str:
    if kind == "tenant":
        return reverse("tenant", query={"key": name})
    if kind == "dependency":
        return reverse("breaker", args=[name])
    return reverse("edit", args=[kind], query={"key": name} if kind == "tier" else None)


def _list_address(kind: str) -> str:
    return reverse({"tier": "tiers", "tenant": "tenants", "dependency": "breakers"}.get(kind, "tiers"))
