"""The preview of an edit: what it would change, in words, and would have changed in the last days."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_POST

from controlplane.editing import edits
from controlplane.editing.edits.edit_entity import EntityEdit, Preview
from controlplane.editing.plans import plan_from_document
from controlplane.errors import InvalidEdit, NotFound
from controlplane.fleet.live import divisor
from controlplane.one_at_a_time import StillRunning, alone
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.models import Tenant
from controlplane.usage.what_if import what_if
from dashboard.reader import one_at_a_time_as
from dashboard.views.editor.edit_request import EditRequest, for_editors, read_request
from dashboard.views.limits.outage import outage_words
from dashboard.words.change_words import ChangeWords, change_words
from dashboard.words.changed_items import TiersAsOf
from dashboard.words.rate_words import ends_words, rate_words
from dashboard.words.setting_lines import wrong_lines

#: Lines of a preview.
_MAX_LINES = 40
#: Fields that change which requests are refused, so that a replay can show a difference.
_REPLAYED = frozenset({"quotas", "tier", "suspended"})


@require_POST
@for_editors
def edit_preview(request: HttpRequest, kind: str) -> HttpResponse:
    """Show in words what saving would change. Write nothing."""
    asked = read_request(request, kind)
    context = {"kind": kind, "name": asked.name, "new": asked.new, **preview_of(asked)}
    return render(request, "dashboard/edit_preview.html", context)


@require_POST
@for_editors
def edit_replay(request: HttpRequest, kind: str) -> HttpResponse:
    """Replay the last days with the typed values. One replay runs at a time for each person."""
    asked = read_request(request, kind)
    context: dict[str, Any] = {"kind": kind, "name": asked.name, "new": asked.new}
    # The preview displays what is wrong.
    if not asked.typed.errors and asked.name:
        try:
            with alone(one_at_a_time_as(request)):
                context["whatif"] = what_if(asked.environment, plan_from_document(asked.edit.document))
        except StillRunning:
            context |= {"replays": True, "still_runs": True}
        except InvalidEdit:
            pass
    return render(request, "dashboard/edit_replay.html", context)


def preview_of(asked: EditRequest) -> dict[str, Any]:
    """Return the context of the template of the preview."""
    edit, typed = asked.edit, asked.typed
    if typed.errors:
        return {"wrong": wrong_lines(typed.errors)}
    if not typed and not asked.new:
        return {}
    if not asked.name:
        return {"wrong": ["Enter a name."]}
    try:
        found = edits.preview_edit(edit)
    except InvalidEdit as error:
        return {"wrong": [text for texts in error.errors.values() for text in texts]}
    except NotFound as missing:
        return {"wrong": [str(missing)]}
    changes = found.difference.changes
    own = [change for change in changes if (change.kind, change.name) == (edit.kind, edit.name)]
    tiers = TiersAsOf(edit.environment, edit.base)
    lines = [line for change in own for line in change_words(change, tiers, tiers)]
    if edit.kind == "tenant" and asked.new:
        lines += _from_tier(found.after or {}, tiers)
    return {
        "lines": lines[:_MAX_LINES],
        "left_off": max(0, len(lines) - _MAX_LINES),
        "others": len(changes) - len(own),
        "advice": found.difference.advice,
        "temporary": _temporary(edit, found),
        "outages": _outages(edit, found),
        **_reach(edit, found),
    }


def _from_tier(after: Fields, tiers: TiersAsOf) -> list[ChangeWords]:
    """The quotas that a new tenant gets from its tier."""
    tier, own = str(after.get("tier", "")), limits_in("quotas", after)
    quotas = {name: columns for name, columns in tiers(tier).items() if name not in own}
    if not quotas and not own:
        return [ChangeWords("Quotas", "", f"none: tier {tier} allows every request")]
    return [ChangeWords(name, "", f"{rate_words(columns)} (tier {tier})") for name, columns in quotas.items()]


def _temporary(edit: EntityEdit, found: Preview) -> list[str]:
    """The changed quotas that end, and what applies afterwards."""
    if edit.kind != "tenant":
        return []
    changed = edit.typed.get("quotas", {})
    return [
        f"{name} is temporary: {ends_words(columns)}."
        for name, columns in limits_in("quotas", found.after or {}).items()
        if name in changed and columns.get("expires_at")
    ]


def _outages(edit: EntityEdit, found: Preview) -> list[tuple[str, str, bool]]:
    """The use that each changed quota allows while Redis is down, and whether it is nearly none."""
    changed = edit.typed.get("quotas")
    if edit.kind not in ("tier", "tenant") or not changed:
        return []
    before, after = (limits_in("quotas", fields or {}) for fields in (found.before, found.after))
    names = [name for name in sorted(changed) if name in after and after[name] != before.get(name)]
    pods = divisor(edit.environment)
    return [(name, *outage_words(edit.environment, after[name], pods=pods)) for name in names[:_MAX_LINES]]


def _reach(edit: EntityEdit, found: Preview) -> dict[str, Any]:
    """The tenants that the edit reaches, and whether a replay of the last days shows its effect."""
    if edit.kind not in ("tier", "tenant") or not found.difference:
        return {}
    # A replay has no limit to compare with what a removed one refused.
    context: dict[str, Any] = {"removes": bool(edit.removed)}
    if edit.kind == "tier":
        rows = Tenant.objects.filter(environment=edit.environment, deleted=False, tier__name=edit.name)
        quotas = [*edit.typed.get("quotas", {}), *edit.removed]
        own = rows.filter(quotas__name__in=quotas).distinct() if quotas else rows.none()
        context |= {"followers": rows.count(), "own": own.count()}
    return context | {"replays": not edit.removed and bool(edit.typed.keys() & _REPLAYED)}
