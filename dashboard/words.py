"""What changed, in the words of the pages."""

import re
from typing import Any

#: How a plan says what it did: ``tenant.changed`` to the number of them.
_COUNT = re.compile(r"(\w+)\.(created|changed|removed)")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d.\d\d:\d\d")
#: Action -> as a heading, and as what somebody did to the target.
_ACTIONS = {
    "breaker.held": ("Held", "held"),
    "breaker.released": ("Released", "released"),
    "breaker.reset": ("Reset", "reset"),
    "override.expired": ("Override ended", "ended the hold on"),
    "tenant_quota.set": ("Quota changed", "changed a quota of"),
    "tenant_quota.removed": ("Quota removed", "removed a quota of"),
    "tier_quota.set": ("Tier quota changed", "changed a quota of tier"),
    "tier_quota.removed": ("Tier quota removed", "removed a quota of tier"),
    "vendor_limit.set": ("Vendor limit changed", "changed a vendor limit of"),
    "template.set": ("Template changed", "changed template"),
    "template.removed": ("Template removed", "removed template"),
    "tenant.created": ("Tenant added", "added tenant"),
    "tenant.moved": ("Tenant moved to another parent", "moved"),
    "tenant.suspended": ("Tenant suspended", "suspended"),
    "tenant.resumed": ("Tenant resumed", "resumed"),
    "tenant.removed": ("Tenant removed", "removed tenant"),
    "dependency.created": ("Dependency added", "added dependency"),
    "runbook.saved": ("Runbook saved", "saved runbook"),
    "breaker_policy.set": ("Breaker policy changed", "changed the breaker of"),
    "configuration.rolled_back": ("Rolled back", "rolled back"),
    "plan.applied": ("Plan applied", "applied a plan to"),
    "tenants.changed": ("Tenants changed", "changed tenants of"),
    "tenant_quota.expired": ("Quota ended", "ended a temporary quota of"),
    "change_request.opened": ("Change proposed", "proposed"),
    "change_request.rebased": ("Request made anew", "made anew"),
    "change_request.approved": ("Change approved", "approved"),
    "change_request.rejected": ("Change rejected", "rejected"),
    "change_request.withdrawn": ("Change withdrawn", "withdrew"),
    "change_request.applied": ("Change applied", "applied"),
    "change_request.expired": ("Request expired", "let expire"),
    "approvals.set": ("Approvals needed", "set the approvals needed in"),
    "drill.begun": ("Drill begun", "began a drill of"),
    "drill.ended": ("Drill ended", "ended the drill of"),
    "environment.created": ("Environment created", "created environment"),
    "sql.inserted": ("Added with SQL", "added with SQL"),
    "sql.updated": ("Changed with SQL", "changed with SQL"),
    "sql.deleted": ("Removed with SQL", "removed with SQL"),
    "sql.truncated": ("Emptied with SQL", "emptied with SQL"),
}
#: First parts of a field's name that go without saying.
_GROUPS = {"override", "quotas", "vendor_limits", "breaker"}
#: Fields that say nothing without the others.
_QUIET_FIELDS = {
    "version",
    "title",
    "body",
    "reason",
    "revision",
    "epoch",
    "name",
    "environment",
    "id",
    "changed_revision",
    "reset_revision",
}


def action_words(action: str) -> str:
    """``tenant_quota.set`` to "Quota changed"; an action nobody listed is still readable."""
    if action in _ACTIONS:
        return _ACTIONS[action][0]
    subject, _, verb = action.partition(".")
    return f"{subject} {verb}".replace("_", " ").strip().capitalize()


def action_verb(action: str) -> str:
    """``tenant_quota.set`` to "changed a quota of", to stand between actor and target."""
    if action in _ACTIONS:
        return _ACTIONS[action][1]
    subject, _, verb = action.partition(".")
    return f"{verb} {subject}".replace("_", " ").strip()


def difference(before: dict[str, Any] | None, after: dict[str, Any] | None) -> tuple[str, str]:
    """What a change replaced and what by, as short texts; empty where there was nothing."""
    old, new = _flat(before), _flat(after)
    fields = [
        field
        for field in (new.keys() | old.keys()) - _QUIET_FIELDS
        if old.get(field) != new.get(field)
        and (old.get(field) or new.get(field))
        and not isinstance(new.get(field) or old.get(field), dict | list)
    ]
    shown = sorted(fields, key=_weight)
    limits = [field for field in shown if field.endswith(" limit")]
    # A new limit says it all, but for its window and whether it refuses; the rest is in the quota.
    besides = [field for field in shown if field.endswith((" window_s", " shadow"))]
    counts = [field for field in shown if _COUNT.fullmatch(field)]
    shown = counts or ([*limits[:2], *besides[:2]] if limits else shown[:2])
    return (
        ", ".join(_said(field, old[field]) for field in shown if old.get(field) not in (None, "")),
        ", ".join(_said(field, new[field]) for field in shown if new.get(field) not in (None, "")),
    )


def _flat(fields: dict[str, Any] | None) -> dict[str, Any]:
    """``quotas.orders.limit`` to ``orders limit``: the target says whose it is."""
    flat = {}
    for field, value in (fields or {}).items():
        group, _, rest = field.partition(".")
        flat[rest.replace(".", " ") if rest and group in _GROUPS else field] = value
    return flat


def _weight(field: str) -> tuple[int, str]:
    first, last = ("mode", "limit", "tier", "suspended", "burst", "window_s"), field.rpartition(" ")[2]
    return (first.index(last) if last in first else len(first), field)


def _said(field: str, value: Any) -> str:
    if field == "mode":
        return str(value).replace("_", " ")
    if field == "expires_at":
        return f"until {str(value)[11:16]}"
    if field.endswith("_at") and _MOMENT.match(str(value)):
        return f"{field.removesuffix('_at').replace('_', ' ')} {str(value)[:16].replace('T', ' ')} UTC"
    if isinstance(value, bool):
        return field.replace("_", " ") if value else f"not {field.replace('_', ' ')}"
    if counted := _COUNT.fullmatch(field):
        what, done = counted[1].replace("_", " "), counted[2]
        plural = "" if value == 1 else "ies" if what.endswith("y") else "s"
        return f"{value:,} {what.removesuffix('y') if plural == 'ies' else what}{plural} {done}"
    if field.endswith("window_s"):
        return f"{field.removesuffix('_s')} {value:,} s"
    if isinstance(value, int):
        return f"{field.replace('_', ' ')} {value:,}"
    return f"{field.replace('_', ' ')} {value}"


def cause_words(cause: str) -> str:
    """A transition's cause, for a person."""
    return {
        "consecutive": "failures in a row",
        "ratio": "too many of the window failed",
        "slow": "too many calls were slow",
        "probe_failed": "a probe failed",
        "elapsed": "open time is over, probing",
        "probing": "open time is over, probing",
        "recovered": "probes succeeded",
        "forced": "held by hand",
        "forced_open": "held open by hand",
        "forced_closed": "held closed by hand",
        "metrics_only": "only watched, by hand",
        "disabled": "switched off by hand",
        "reset": "reset by hand",
        "expired": "the override ended by itself",
        "override_ended": "the override was ended",
    }.get(cause, cause.replace("_", " "))


def policy_words(policy: str) -> str:
    """What a limit does without Redis."""
    return {
        "fail_open": "allows",
        "fail_closed": "refuses",
        "local_share": "limits by share",
        "reserved": "spends its reserve",
    }.get(policy, policy)
