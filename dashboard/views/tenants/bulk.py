"""One change to many tenants: choose them, choose the change, preview it, apply it."""

import re
from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing import edits
from controlplane.editing.edits import TenantChange, TenantFilter
from controlplane.editing.plans.difference import Difference
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.one_at_a_time import StillRunning, alone
from controlplane.policies.models import Tier, TierQuota
from controlplane.validation import Problems
from dashboard.edit_form import with_reason
from dashboard.forms import sent_number, whole, whole_words
from dashboard.hub import hub
from dashboard.reader import actor_of, one_at_a_time_as
from dashboard.undo import saved_at
from dashboard.views.history.schedule_form import schedule_form
from dashboard.views.page import bounded_text, context_of, names_of
from dashboard.words.changed_items import items_to_come
from dashboard.words.limit_values import bounds_of

ACTS = (
    ("quota", "Set a quota"),
    ("scale", "Scale a quota by percent"),
    ("remove", "Use the tier quota"),
    ("tier", "Move to a tier"),
    ("move", "Change the parent"),
    ("suspend", "Suspend"),
    ("resume", "Resume"),
)
#: Field of the form -> its label.
_LABELS = {
    "what": "Action",
    "quota": "Quota",
    "limit": "Limit",
    "window_s": "Window",
    "burst": "Burst",
    "percent": "Percent",
    "to_tier": "New tier",
    "to_parent": "New parent",
    "starts": "Starts",
    "reason": "Reason",
}
#: The error for a quota that a tenant does not have yet.
_MISSING = re.compile(
    r"tenants\.(?P<tenant>.+)\.quotas\.(?P<quota>.+)\.(?P<column>limit|window_s): A new limit needs this\."
)
#: Action -> the field that most errors of it are about.
_FIELDS = {"quota": "limit", "scale": "percent", "remove": "quota", "tier": "to_tier", "move": "to_parent"}
#: Tenants that the preview lists.
_LISTED = 20
#: Tenants that can be selected in the list and edited together: those of one page.
MAX_SELECTED = 50
_LONGEST_KEY = 200
#: Percent of its present value that a quota can become.
_PERCENT = (1, 10_000)
_FLAGS = {"yes": True, "no": False}


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def bulk(request: HttpRequest) -> HttpResponseBase:
    """The form, with a preview of what was typed. Only what the preview showed is saved or scheduled."""
    if request.method != "POST":
        return _page(request)
    typed = request.POST
    try:
        who, what = _filter(typed), _change(typed)
        found = edits.preview_bulk_edit(environment=environment_in(request), filter=who, change=what)
        if typed.get("act") != "save":
            return _page(request, preview=found)
        if typed.get("previewed") != _previewed(who, what):
            # Without a script, or faster than the preview.
            return _page(request, preview=found, unseen=True)
        return _save(request, who, what)
    except InvalidEdit as error:
        errors = _placed(typed.get("what", ""), error.errors)
        if typed.get("act") == "save":
            errors = with_reason(errors, typed.get("reason", ""))
        return _page(request, errors=errors, preview=_preview(environment_in(request), typed), status=422)
    except EditConflict as conflict:
        return _page(request, conflict=conflict, preview=_preview(environment_in(request), typed), status=409)


@require_POST
@require("edit_quota")
def bulk_preview(request: HttpRequest) -> HttpResponse:
    """Show what saving would change. Write nothing. One preview runs at a time for each person."""
    typed, context = request.POST, dict[str, Any]()
    try:
        who, what = _filter(typed), _change(typed)
        with alone(one_at_a_time_as(request)):
            found = edits.preview_bulk_edit(environment=environment_in(request), filter=who, change=what)
        context = _shown(found, who, what)
    except StillRunning:
        context = {"still_runs": True}
    except InvalidEdit as error:
        context = {"wrong": _wrong(_placed(typed.get("what", ""), error.errors))}
    return render(request, "dashboard/bulk_preview.html", context)


def _save(request: HttpRequest, who: TenantFilter, what: TenantChange) -> HttpResponse:
    typed = request.POST
    given: dict[str, Any] = {
        "environment": environment_in(request),
        "filter": who,
        "change": what,
        "expected_revision": sent_number(typed.get("seen", ""), -1),
    }
    if starts := typed.get("starts", "").strip():
        return schedule_form(
            request, starts, lambda due_at: edits.scheduled_bulk_edit(**given), what="the tenants"
        )
    revision = edits.bulk_edit(reason=typed.get("reason", ""), actor=actor_of(request), **given)
    hub.nudge()
    return redirect(saved_at(reverse("revision", args=[revision]), revision))


def _previewed(who: TenantFilter, what: TenantChange) -> str:
    """Identify what was typed, so that nothing is saved that the page did not preview."""
    return sha256(repr((who, what)).encode()).hexdigest()[:32]


def _placed(act: str, errors: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
    """Return errors by the field of the form."""
    found: dict[str, list[str]] = {}
    for where, texts in errors.items():
        column = where.rpartition(".")[2]
        field = _FIELDS.get(act, "") if column in ("change", "parent", "tier", "quotas") else column
        field = {"scale_percent": "percent", "remove_quotas": "quota"}.get(field, field)
        for text in texts:
            if one := _MISSING.fullmatch(text):
                # The errors of a plan name the tenant and the column. One tenant is enough.
                said = f"{one['tenant']} has no quota {one['quota']} yet: fill in this field, too."
                found.setdefault(one["column"], [said])
            else:
                found.setdefault(field, []).append(text)
    return found


def _wrong(errors: Mapping[str, Sequence[str]]) -> list[str]:
    return [
        f"{_LABELS[field]}: {' '.join(texts)}" if field in _LABELS else " ".join(texts)
        for field, texts in errors.items()
    ]


def _preview(environment: str, typed: Any) -> Any:
    """The preview that stays beside an error; ``None`` when the form itself is wrong."""
    try:
        return edits.preview_bulk_edit(environment=environment, filter=_filter(typed), change=_change(typed))
    except InvalidEdit:
        return None


def _shown(preview: Difference, who: TenantFilter, what: TenantChange) -> dict[str, Any]:
    """Return the context of the template of the preview."""
    return {
        "preview": preview,
        "previewed": _previewed(who, what),
        "count": len(preview.changes),
        "things": items_to_come(preview.environment, preview.changes, _LISTED),
    }


def _page(
    request: HttpRequest,
    *,
    preview: Any = None,
    errors: dict[str, list[str]] | None = None,
    status: int = 200,
    **extra: Any,
) -> HttpResponse:
    quotas = TierQuota.objects.filter(tier__environment=environment_in(request)).order_by("name")
    typed, errors = request.POST if request.method == "POST" else request.GET, errors or {}
    shown = _shown(preview, _filter(typed), _change(typed)) if preview is not None else {}
    context = context_of(
        request,
        "bulk",
        typed=typed,
        errors=errors,
        unplaced=[text for field, texts in errors.items() if field not in _LABELS for text in texts],
        selected=_selected(typed),
        tiers=list(names_of(Tier, environment_in(request))),
        quota_names=list(quotas.values_list("name", flat=True).distinct()),
        acts=ACTS,
        what=typed.get("what", "quota"),
        **shown,
        **extra,
    )
    return render(request, "dashboard/bulk.html", context, status=status)


def _filter(typed: Any) -> TenantFilter:
    return TenantFilter(
        tier=bounded_text(typed, "tier", most=64),
        prefix=_key(typed, "prefix"),
        has_quota=_FLAGS.get(typed.get("has_quota", "")),
        suspended=_FLAGS.get(typed.get("suspended", "")),
        parent=_key(typed, "parent"),
        keys=_selected(typed),
        everybody=typed.get("everybody") == "1",
    )


def _selected(typed: Any) -> tuple[str, ...]:
    """Tenants that were selected in the list."""
    given = dict.fromkeys(key[:_LONGEST_KEY].replace("\x00", "") for key in typed.getlist("b"))
    return tuple(key for key in given if key)[:MAX_SELECTED]


def _change(typed: Any) -> TenantChange:
    what, quota = typed.get("what", ""), bounded_text(typed, "quota", most=65).strip()
    if what in ("quota", "scale", "remove"):
        problems = Problems()
        problems.slug("quota", quota)
        problems.settle()
    if what == "tier":
        return TenantChange(tier=typed.get("to_tier", ""))
    if what == "move":
        return TenantChange(parent=_key(typed, "to_parent"))
    if what in ("suspend", "resume"):
        return TenantChange(suspended=what == "suspend")
    if what == "remove":
        return TenantChange(remove_quotas=(quota,))
    if what == "scale":
        return TenantChange(scale_percent={quota: whole(typed.get("percent", ""), "percent", _PERCENT)})
    if what == "quota":
        columns, errors = dict[str, int](), dict[str, list[str]]()
        for name in ("limit", "window_s", "burst"):
            try:
                # A field that is left empty stays as it is.
                if typed.get(name, "").strip():
                    columns[name] = whole(typed[name], name, bounds_of(name))
            except InvalidEdit as error:
                errors |= error.errors
        if errors or not columns:
            raise InvalidEdit(errors or {"limit": [whole_words(*bounds_of("limit"))]})
        return TenantChange(quotas={quota: columns})
    raise InvalidEdit({"what": ["Choose an action."]})


def _key(typed: Any, name: str) -> str:
    return bounded_text(typed, name).strip()
