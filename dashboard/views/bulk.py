"""One change to many tenants: choose them, choose the change, preview it, apply it."""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing import edits
from controlplane.editing.edits import TenantChange, TenantFilter
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.models import Tier, TierQuota
from dashboard.changed_items import items_to_come
from dashboard.forms import whole
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.views.page import bounded_text, context_of

ACTS = (
    ("quota", "Set a quota"),
    ("scale", "Scale a quota by percent"),
    ("remove", "Use the tier quota"),
    ("tier", "Move to a tier"),
    ("move", "Change the parent"),
    ("suspend", "Suspend"),
    ("resume", "Resume"),
)
#: What the page calls the fields of the edit function.
_LABELS = {"scale_percent": "Percent", "window_s": "Window"}
#: Tenants that can be selected in the list and edited together: those of one page.
MOST_SELECTED = 50
_LONGEST_KEY = 200
_FLAGS = {"yes": True, "no": False}


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def bulk(request: HttpRequest) -> HttpResponseBase:
    """Displays what the form would change; the button of that preview applies it."""
    if request.method != "POST":
        return _page(request)
    typed = request.POST
    try:
        who, what = _filter(typed), _change(typed)
        if typed.get("act") == "save":
            seen = typed.get("seen", "")
            revision = edits.bulk_edit(
                environment=environment_in(request),
                filter=who,
                change=what,
                reason=typed.get("reason", ""),
                actor=actor_of(request),
                expected_revision=int(seen) if seen.isascii() and seen.isdigit() and len(seen) < 19 else -1,
            )
            hub.nudge()
            messages.success(request, f"Saved as revision {revision}.")
            return redirect("revision", number=revision)
        found = edits.preview_bulk_edit(environment=environment_in(request), filter=who, change=what)
    except InvalidEdit as error:
        errors = {_LABELS.get(field, field.capitalize()): said for field, said in error.errors.items()}
        return _page(request, errors=errors, preview=_preview(environment_in(request), typed), status=422)
    except EditConflict as conflict:
        return _page(request, conflict=conflict, preview=_preview(environment_in(request), typed), status=409)
    return _page(request, preview=found)


def _preview(environment: str, typed: Any) -> Any:
    """The preview that stays beside an error; ``None`` when the form itself is wrong."""
    if typed.get("act") != "save":
        return None
    try:
        return edits.preview_bulk_edit(environment=environment, filter=_filter(typed), change=_change(typed))
    except InvalidEdit:
        return None


def _page(request: HttpRequest, *, preview: Any = None, status: int = 200, **extra: Any) -> HttpResponse:
    tiers = (
        Tier.objects.filter(environment=environment_in(request))
        .order_by("name")
        .values_list("name", flat=True)
    )
    quotas = TierQuota.objects.filter(tier__environment=environment_in(request)).order_by("name")
    typed = request.POST if request.method == "POST" else request.GET
    context = context_of(
        request,
        "bulk",
        typed=typed,
        selected=_selected(typed),
        tiers=list(tiers),
        quota_names=list(quotas.values_list("name", flat=True).distinct()),
        acts=ACTS,
        what=typed.get("what", "quota"),
        preview=preview,
        count=len(preview.changes) if preview is not None else 0,
        things=items_to_come(preview.environment, preview.changes[:20]) if preview is not None else [],
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
    return tuple(key for key in given if key)[:MOST_SELECTED]


def _change(typed: Any) -> TenantChange:
    what, quota = typed.get("what", ""), bounded_text(typed, "quota", most=64).strip()
    if what == "tier":
        return TenantChange(tier=typed.get("to_tier", ""))
    if what == "move":
        return TenantChange(parent=_key(typed, "to_parent"))
    if what in ("suspend", "resume"):
        return TenantChange(suspended=what == "suspend")
    if what == "remove":
        return TenantChange(remove_quotas=(quota,))
    if what == "scale":
        return TenantChange(scale_percent={quota: whole(typed.get("percent", ""), "percent")})
    if what == "quota":
        names = [name for name in ("limit", "window_s", "burst") if typed.get(name, "").strip()]
        return TenantChange(quotas={quota: {name: whole(typed[name], name) for name in names}})
    raise InvalidEdit({"what": ["Choose an action."]})


def _key(typed: Any, name: str) -> str:
    return bounded_text(typed, name).strip()
