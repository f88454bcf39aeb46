"""The editor of one thing: a tier, a tenant, a dependency or the environment.

Each follows the same steps: show the thing as of a revision, preview what was typed, then save it,
propose it, or schedule it. Values that another person changed meanwhile stay unless they conflict.
"""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing import edits
from controlplane.editing.edits.edit_thing import Preview, ThingEdit, UnitConflict, thing_as_of
from controlplane.editing.plans import plan_from_document
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.fleet.live import divisor
from controlplane.one_at_a_time import StillRunning, alone
from controlplane.policies.document import environment_of
from controlplane.policies.fields import limits_in
from controlplane.policies.history import Changed
from controlplane.policies.limits import ALONE
from controlplane.policies.models import Dependency, Runbook, Template, Tenant, Tier
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Needs
from controlplane.usage.what_if import what_if
from dashboard.change_words import change_words
from dashboard.hub import hub
from dashboard.live.edited import edited_key
from dashboard.moments import WRONG, moment_of
from dashboard.rate_words import ends_words
from dashboard.reader import actor_of, one_at_a_time_as
from dashboard.setting_controls import unplaced
from dashboard.setting_lines import wrong_lines
from dashboard.thing_fields import choices_of_kinds
from dashboard.thing_form import groups_of, placed
from dashboard.typed_thing import Typed, typed_in
from dashboard.undo import saved_at
from dashboard.views.edit_request import KINDS, base_in, edit_of, inherited, name_in, number_in, typed_of
from dashboard.views.outage import outage_words
from dashboard.views.page import context_of, not_found

#: Lines of a preview.
_MOST = 40
#: Fields that change which requests are refused, so that a replay says something.
_REPLAYED = frozenset({"quotas", "tier", "suspended"})


@require_http_methods(["GET", "POST"])
def edit(request: HttpRequest, kind: str) -> HttpResponseBase:
    """Show the editor of the thing that the address names, or save, remove or schedule it."""
    if kind not in KINDS:
        return not_found(request, "No such page", "Fuseboard has no editor with this name.")
    return require(KINDS[kind].permission)(_edit)(request, kind)


@require_POST
def edit_preview(request: HttpRequest, kind: str) -> HttpResponseBase:
    """What saving would change, in words. Nothing is written."""
    if kind not in KINDS:
        return HttpResponse(status=404)
    return require(KINDS[kind].permission)(_preview_fragment)(request, kind)


@require_POST
def edit_replay(request: HttpRequest, kind: str) -> HttpResponseBase:
    """What the last days would have been with what was typed. One runs at a time for each person."""
    if kind not in KINDS:
        return HttpResponse(status=404)
    return require(KINDS[kind].permission)(_replay_fragment)(request, kind)


def _edit(request: HttpRequest, kind: str) -> HttpResponseBase:
    name, new = name_in(request, kind), "new" in request.GET
    if request.method != "POST":
        return _page(request, kind, name, new=new)
    act = request.POST.get("act", "")
    if act == "remove" and KINDS[kind].removable and not new:
        return _remove(request, kind, name)
    return _save(request, kind, name, new=new)


def _save(request: HttpRequest, kind: str, name: str, *, new: bool) -> HttpResponse:
    typed = typed_of(request, kind, name, new=new)
    if typed.errors:
        return _page(request, kind, name, new=new, errors=typed.errors, status=422)
    made = edit_of(request, kind, name, typed, new=new)
    try:
        if starts := request.POST.get("starts", "").strip():
            return _schedule(request, made, starts)
        if not typed and not new and request.POST.getlist("drop"):
            messages.info(request, "Nothing was saved: the values of the other person stay.")
            return redirect(f"{reverse('edit', args=[kind])}?{request.META['QUERY_STRING']}")
        if not typed and not new:
            raise InvalidEdit({"form": ["Nothing is changed. Change a value first."]})
        revision = edits.save_edit(
            made,
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
            replace=request.POST.getlist("replace"),
            seen=number_in(request.POST.get("seen", "")),
        )
    except UnitConflict as conflict:
        return _page(request, kind, name, new=new, conflict=conflict, status=409)
    except InvalidEdit as error:
        errors = placed(kind, name, KINDS[kind].section, error.errors)
        return _page(request, kind, name, new=new, errors=errors, status=422)
    except NotFound as missing:
        return _page(request, kind, name, new=new, errors={"form": [str(missing)]}, status=409)
    hub.nudge()
    return redirect(saved_at(_address(kind, name), revision))


def _schedule(request: HttpRequest, made: ThingEdit, starts: str) -> HttpResponse:
    if made.removed:
        raise InvalidEdit({"starts": ["A removal cannot be scheduled. Save it now, or keep the limit."]})
    try:
        due_at = moment_of(starts)
    except ValueError:
        raise InvalidEdit({"starts": [WRONG]}) from None
    edits.check_edit(
        made, replace=request.POST.getlist("replace"), seen=number_in(request.POST.get("seen", ""))
    )
    try:
        schedule_change(
            environment=environment_in(request),
            due_at=due_at,
            document=made.document,
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
            needs=Needs.NEW if made.base is None else Needs.PRESENT,
        )
    except InvalidEdit as error:
        found = {"starts" if field == "due_at" else field: texts for field, texts in error.errors.items()}
        raise InvalidEdit(found) from error
    messages.success(request, f"{made.name} will be changed at {due_at:%-d %B %H:%M} UTC.")
    return redirect("schedules")


def _remove(request: HttpRequest, kind: str, name: str) -> HttpResponse:
    try:
        if request.POST.get("confirm", "").strip() != name:
            raise InvalidEdit({"confirm": [f"Type {name} exactly: {KINDS[kind].word} {name} is deleted."]})
        revision = edits.remove_thing(
            environment=environment_in(request),
            kind=kind,
            name=name,
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
            base=base_in(request.POST),
        )
    except InvalidEdit as error:
        return _page(request, kind, name, new=False, errors=error.errors, removing=True, status=422)
    except EditConflict as conflict:
        by = conflict.by or "Another person"
        messages.error(request, f"Nothing was deleted: {by} changed {name} meanwhile. Check it first.")
        return redirect(f"{reverse('edit', args=[kind])}?{request.META['QUERY_STRING']}")
    except NotFound as missing:
        return not_found(request, f"No such {KINDS[kind].word}", str(missing))
    hub.nudge()
    return redirect(saved_at(_list_address(kind), revision))


def _preview_fragment(request: HttpRequest, kind: str) -> HttpResponse:
    name, new = name_in(request, kind), "new" in request.GET
    typed = typed_of(request, kind, name, new=new)
    context = {"kind": kind, "name": name, "new": new}
    context |= _preview(edit_of(request, kind, name, typed, new=new), typed)
    return render(request, "dashboard/edit_preview.html", context)


def _replay_fragment(request: HttpRequest, kind: str) -> HttpResponse:
    name, new = name_in(request, kind), "new" in request.GET
    typed = typed_of(request, kind, name, new=new)
    made = edit_of(request, kind, name, typed, new=new)
    context: dict[str, Any] = {"kind": kind, "name": name, "new": new}
    # The preview displays what is wrong.
    if not typed.errors and made.name:
        try:
            with alone(one_at_a_time_as(request)):
                replayed = what_if(environment_in(request), plan_from_document(made.document))
            context["whatif"] = replayed
        except StillRunning:
            context |= {"replays": True, "still_runs": True}
        except InvalidEdit:
            pass
    return render(request, "dashboard/edit_replay.html", context)


def _preview(made: ThingEdit, typed: Typed) -> dict[str, Any]:
    if typed.errors:
        return {"wrong": wrong_lines(typed.errors)}
    if not typed and made.base is not None:
        return {}
    if not made.name:
        return {"wrong": ["Enter a name."]}
    try:
        found = edits.preview_edit(made)
    except InvalidEdit as error:
        return {"wrong": [text for texts in error.errors.values() for text in texts]}
    except NotFound as missing:
        return {"wrong": [str(missing)]}
    changes = found.difference.changes
    mine = [
        _beside_the_tier(change, made)
        for change in changes
        if (change.kind, change.name) == (made.kind, made.name)
    ]
    lines = [line for change in mine for line in change_words(change)]
    return {
        "lines": lines[:_MOST],
        "left_off": max(0, len(lines) - _MOST),
        "others": len(changes) - len(mine),
        "advice": found.difference.advice,
        "temporary": _temporary(made, found),
        "outages": _outages(made, found),
        **_reach(made, found),
    }


def _beside_the_tier(change: Changed, made: ThingEdit) -> Changed:
    """Add the quotas of its tier where a tenant has none of its own, so that both values are shown."""
    before, after = change.before, change.after
    if made.kind != "tenant" or made.base is None or not before or not after:
        return change
    if before["tier"] != after["tier"]:
        return change
    tier = limits_in("quotas", thing_as_of(made.environment, made.base, "tier", after["tier"]) or {})
    own = limits_in("quotas", before).keys() ^ limits_in("quotas", after).keys()
    of_tier = {
        f"quotas.{name}.{column}": value
        for name in own & tier.keys()
        for column, value in tier[name].items()
        if column not in ALONE
    }
    return Changed(change.kind, change.name, {**of_tier, **before}, {**of_tier, **after})


def _temporary(made: ThingEdit, found: Preview) -> list[str]:
    """Which of the changed quotas end, and what applies afterwards."""
    if made.kind != "tenant":
        return []
    changed = made.typed.get("quotas", {})
    return [
        f"{name} is temporary: {ends_words(columns)}."
        for name, columns in limits_in("quotas", found.after or {}).items()
        if name in changed and columns.get("expires_at")
    ]


def _outages(made: ThingEdit, found: Preview) -> list[tuple[str, str]]:
    """What each changed quota allows while Redis is down."""
    if made.kind not in ("tier", "tenant") or made.removed or not found.difference:
        return []
    changed = limits_in("quotas", found.after or {}).items() if made.typed.get("quotas") else ()
    before, pods = limits_in("quotas", found.before or {}), divisor(made.environment)
    return [
        (name, outage_words(made.environment, columns, pods=pods))
        for name, columns in changed
        if name in made.typed["quotas"] and columns != before.get(name)
    ][:_MOST]


def _reach(made: ThingEdit, found: Preview) -> dict[str, Any]:
    """Which tenants the edit reaches, and whether a replay of the last days says something about it."""
    if made.kind not in ("tier", "tenant") or made.removed or not found.difference:
        return {}
    context: dict[str, Any] = {}
    if made.kind == "tier":
        rows = Tenant.objects.filter(environment=made.environment, deleted=False, tier__name=made.name)
        quotas = list(made.typed.get("quotas", {}))
        own = rows.filter(quotas__name__in=quotas).distinct() if quotas else rows.none()
        context |= {"followers": rows.count(), "own": own.count()}
    return context | {"replays": bool(made.typed.keys() & _REPLAYED)}


def _page(
    request: HttpRequest,
    kind: str,
    name: str,
    *,
    new: bool,
    errors: Mapping[str, list[str]] | None = None,
    conflict: UnitConflict | None = None,
    removing: bool = False,
    status: int = 200,
) -> HttpResponse:
    posted = request.method == "POST" and not removing
    environment = environment_in(request)
    head = environment_of(environment).revision
    base = base_in(request.POST) if posted and not new else head
    shown = None if new else thing_as_of(environment, base, kind, name)
    if shown is None and not new:
        return not_found(request, f"No such {KINDS[kind].word}", f"There is no {KINDS[kind].word} {name}.")
    errors = errors or {}
    # What the address names is typed already: a link can open the form filled in.
    typed = request.POST if posted else request.GET
    of_tier = inherited(environment, kind, shown, base)
    groups = groups_of(
        kind,
        shown,
        data=typed,
        errors=errors,
        choices=_choices(environment, kind),
        inherited=of_tier,
        at="" if posted else request.GET.get("at", ""),
    )
    context = context_of(
        request,
        "edit",
        key=kind if new else edited_key(kind, name, base),
        kind=kind,
        word=KINDS[kind].word,
        name=name,
        new=new,
        base=base,
        groups=groups,
        errors=errors,
        unplaced=[text for text in unplaced(errors, groups) if text not in _at_end(errors)],
        conflict=conflict,
        starts=request.POST.get("starts", ""),
        reason=typed.get("reason", ""),
        removable=KINDS[kind].removable and not new,
        removing=removing,
        back=_list_address(kind) if new else _address(kind, name),
        **_counts(environment, kind, name),
    )
    if posted or typed:
        found = typed_in(kind, typed, shown, of_tier)
        if posted:
            found.drop(request.POST.getlist("drop"))
        made = ThingEdit(
            environment=environment,
            kind=kind,
            name=name,
            typed=found.fields,
            removed=tuple(found.removed),
            base=None if new else base,
        )
        context |= _preview(made, found)
    return render(request, "dashboard/edit.html", context, status=status)


def _at_end(errors: Mapping[str, list[str]]) -> list[str]:
    """Errors that the end of the form displays."""
    return [text for field in ("reason", "starts", "confirm", "name") for text in errors.get(field, ())]


def _counts(environment: str, kind: str, name: str) -> dict[str, Any]:
    if kind != "tier":
        return {}
    return {"tenants": Tenant.objects.filter(environment=environment, deleted=False, tier__name=name).count()}


def _choices(environment: str, kind: str) -> dict[str, list[tuple[str, str]]]:
    def named(rows: Any, column: str = "name") -> list[tuple[str, str]]:
        return [(one, one) for one in rows.order_by(column).values_list(column, flat=True)]

    found = {"templates": named(Template.objects.filter(environment=environment))}
    if kind in ("tenant", "environment"):
        found["tiers"] = named(Tier.objects.filter(environment=environment))
    if kind in ("tenant", "tier"):
        found["dependencies"] = named(Dependency.objects.filter(environment=environment))
    if kind == "dependency":
        found["runbooks"] = [("", "None"), *Runbook.objects.order_by("title").values_list("slug", "title")]
        found["kinds"] = choices_of_kinds()
    return found


def _address(kind: str, name: str) -> str:
    if kind == "tenant":
        return reverse("tenant", query={"key": name})
    if kind == "dependency":
        return reverse("breaker", args=[name])
    return reverse("edit", args=[kind], query={"key": name} if kind == "tier" else None)


def _list_address(kind: str) -> str:
    return reverse({"tier": "tiers", "tenant": "tenants", "dependency": "breakers"}.get(kind, "tiers"))
