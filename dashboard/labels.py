"""The words of the pages for what is stored as keys: actions, causes, states and kinds."""

import re
from datetime import UTC, datetime
from typing import Any

from controlplane.status.incidents import CAUSES
from dashboard.store_errors import mode_cause_words

#: What a plan did, as a key of its counts: ``tenant.changed``.
_COUNT = re.compile(r"(\w+)\.(created|changed|removed)")
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d.\d\d:\d\d")
#: Action -> as a heading, and as the verb between actor and target.
_ACTIONS = {
    "receiver.created": ("Receiver added", "added receiver"),
    "receiver.enabled": ("Receiver enabled", "enabled receiver"),
    "receiver.removed": ("Receiver removed", "removed receiver"),
    "receiver.secret_changed": ("Secret of receiver changed", "changed the secret of receiver"),
    "revision.reverted": ("Change reverted", "reverted a change of"),
    "alert.acknowledged": ("Alert acknowledged", "acknowledged alert"),
    "alert.released": ("Acknowledgement withdrawn", "withdrew the acknowledgement of alert"),
    "agent_token.created": ("Agent token created", "created agent token"),
    "api_token.created": ("API token created", "created API token"),
    "approvals.set": ("Approval rule changed", "changed the approval rule of"),
    "breaker.held": ("Override set", "set an override on"),
    "breaker.released": ("Override ended", "ended the override on"),
    "breaker.reset": ("Breaker reset", "reset"),
    "breaker_policy.set": ("Breaker policy changed", "changed the breaker policy of"),
    "change.scheduled": ("Change scheduled", "scheduled change"),
    "change_request.applied": ("Change applied", "applied change request"),
    "change_request.approved": ("Change approved", "approved change request"),
    "change_request.expired": ("Change request expired", "closed expired change request"),
    "change_request.opened": ("Change proposed", "opened change request"),
    "change_request.rebased": ("Change request rebased", "rebased change request"),
    "change_request.rejected": ("Change rejected", "rejected change request"),
    "change_request.withdrawn": ("Change withdrawn", "withdrew change request"),
    "configuration.copied": ("Configuration copied", "copied the configuration to"),
    "configuration.rolled_back": ("Rolled back", "rolled back"),
    "default_tier.set": ("Default tier changed", "changed the default tier of"),
    "dependency.created": ("Dependency added", "added dependency"),
    "dependency.set": ("Dependency changed", "changed the settings of"),
    "dependency.described": ("Dependency changed", "changed dependency"),
    "drill.begun": ("Drill started", "started a drill on"),
    "drill.ended": ("Drill ended", "ended the drill on"),
    "edit_freeze.begun": ("Edits frozen", "froze edits of"),
    "edit_freeze.ended": ("Freeze ended", "ended the freeze of"),
    "environment.created": ("Environment created", "created environment"),
    "epoch.raised": ("New epoch started", "started a new epoch of"),
    "history.erased": ("History erased", "erased the history of"),
    "fleet.freeze_lifted": ("Silent pods marked offline", "marked silent pods as offline in"),
    "incident.closed": ("Incident closed", "closed incident"),
    "incident.merged": ("Incident merged", "merged incident"),
    "incident.noted": ("Note added", "added a note to incident"),
    "incident.shared": ("Report of incident shared", "made a link to the report of incident"),
    "incident.split": ("Alert split off", "split an alert off incident"),
    "incident.step_done": ("Step done", "did a step of incident"),
    "incident.step_undone": ("Step undone", "withdrew a step of incident"),
    "incident.unshared": ("Links to report ended", "ended the links to the report of incident"),
    "marker.added": ("Marker added", "added marker"),
    "mute.created": ("Alerts muted", "muted alerts of"),
    "mute.ended": ("Mute ended", "ended the mute of"),
    "mute.period_ended": ("Period of a mute ended", "ended this period of the mute of"),
    "override.expired": ("Override expired", "ended the expired override on"),
    "pod_protection.set": ("Protection of pods changed", "changed the protection of pods in"),
    "plan.applied": ("Plan applied", "applied a plan to"),
    "policy.tenants_repaired": ("Tenants published again", "published tenants again in"),
    "protection.set": ("Protection changed", "changed the protection of"),
    "runbook.created": ("Runbook added", "added runbook"),
    "runbook.kept": ("Edited runbook kept", "kept the edited text of runbook"),
    "runbook.removed": ("Runbook removed", "removed runbook"),
    "runbook.replaced": ("Runbook replaced", "replaced runbook"),
    "runbook.restored": ("Runbook restored", "restored an earlier text of runbook"),
    "runbook.saved": ("Runbook saved", "saved runbook"),
    "route.removed": ("Route removed", "removed route"),
    "route.set": ("Route changed", "changed route"),
    "schedule.acknowledged": ("Failed change acknowledged", "acknowledged failed change"),
    "schedule.applied": ("Scheduled change applied", "applied a scheduled change to"),
    "schedule.cancelled": ("Scheduled change cancelled", "cancelled scheduled change"),
    "schedule.due_soon": ("Scheduled change is due soon", "announced scheduled change"),
    "schedule.failed": ("Scheduled change failed", "could not apply scheduled change"),
    "server.forgotten": ("Pod removed", "removed pod"),
    "sql.deleted": ("Removed with SQL", "removed with SQL"),
    "sql.inserted": ("Added with SQL", "added with SQL"),
    "sql.truncated": ("Truncated with SQL", "truncated with SQL"),
    "sql.updated": ("Changed with SQL", "changed with SQL"),
    "subject.erased": ("Caller erased", "erased the samples of"),
    "subject_limit.removed": ("Subject limit removed", "removed a subject limit of"),
    "subject_limit.set": ("Subject limit changed", "changed a subject limit of"),
    "template.removed": ("Template deleted", "deleted template"),
    "template.set": ("Template changed", "changed template"),
    "tenant.created": ("Tenant added", "added tenant"),
    "tenant.moved": ("Parent of tenant changed", "changed the parent of"),
    "tenant.removed": ("Tenant removed", "removed tenant"),
    "tenant.resumed": ("Tenant resumed", "resumed"),
    "tenant.suspended": ("Tenant suspended", "suspended"),
    "tenant.tier_changed": ("Tier of tenant changed", "changed the tier of"),
    "tenant_quota.ends_soon": ("Quota ends soon", "announced the end of a quota of"),
    "tenant_quota.expired": ("Quota ended", "ended a temporary quota of"),
    "tenant_quota.removed": ("Quota removed", "removed a quota of"),
    "tenant_quota.set": ("Quota changed", "changed a quota of"),
    "tenants.changed": ("Tenants changed", "changed tenants in"),
    "tier.created": ("Tier added", "added tier"),
    "tier_quota.removed": ("Tier quota removed", "removed a quota of tier"),
    "tier_quota.set": ("Tier quota changed", "changed a quota of tier"),
    "token.revoked": ("Token revoked", "revoked token"),
    "token.rotated": ("Token rotated", "rotated token"),
    "tuning.set": ("Tuning changed", "changed the tuning of"),
    "user.created": ("Person added", "added"),
    "user.invited": ("Person invited", "invited"),
    "user.link_made": ("Password link created", "created a password link for"),
    "user.logged_out": ("Logged out everywhere", "ended all sessions of"),
    "user.password_changed": ("Password changed", "changed the password of"),
    "user.password_set": ("Password set", "set the password of"),
    "user.role_changed": ("Roles changed", "changed the roles of"),
    "user.second_factor_added": ("Second factor added", "added a second factor for"),
    "user.second_factor_failed": ("Wrong code of second factor", "entered a wrong code for"),
    "user.second_factor_removed": ("Second factor removed", "removed the second factor of"),
    "user.switched_off": ("Person deactivated", "deactivated"),
    "user.switched_on": ("Person reactivated", "reactivated"),
    "vendor_limit.removed": ("Vendor limit removed", "removed a vendor limit of"),
    "vendor_limit.set": ("Vendor limit changed", "changed a vendor limit of"),
    "view.unshared": ("View no longer shared", "stopped sharing view"),
}
#: Cause of a transition, as it is stored.
_CAUSES = CAUSES | {
    "elapsed": "open time is over, probing",
    "probing": "open time is over, probing",
    "recovered": "probes succeeded",
    "forced": "override",
    "forced_open": "override: forced open",
    "forced_closed": "override: forced closed",
    "metrics_only": "override: metrics only",
    "disabled": "override: disabled",
    "reset": "reset by an operator",
    "own_breaker": "own breaker",
    "expired": "the override expired",
    "override_ended": "an operator ended the override",
}
#: The first word of what was done -> of what is proposed.
_TO_DO = {
    "added": "add",
    "applied": "apply",
    "cancelled": "cancel",
    "changed": "change",
    "copied": "copy",
    "created": "create",
    "deleted": "delete",
    "ended": "end",
    "removed": "remove",
    "restored": "restore",
    "replaced": "replace",
    "resumed": "resume",
    "rolled": "roll",
    "saved": "save",
    "scheduled": "schedule",
    "set": "set",
    "started": "start",
    "suspended": "suspend",
}
#: What a proposal says in place of an audit entry, whose target has a number.
_PROPOSED = {"change.scheduled": "scheduled a change of"}
_DRILLS = {"gone": "Redis unreachable", "slow": "Redis slow"}
#: First parts of a field name that add nothing for a reader.
_GROUPS = {"override", "quotas", "vendor_limits", "breaker", "protection"}
#: Fields of change requests and approval rules -> what they count.
_COUNTED = {"things": "item", "needed": "approval"}
#: Last parts of a field name that are units.
_UNITS = {"s": "s", "ms": "ms", "us": "\u00b5s", "percent": "%"}
#: Fields that mean nothing without the others.
_QUIET_FIELDS = {
    "version",
    "author",
    "base",
    "drill",
    "title",
    "body",
    "reason",
    "ticket",
    "revision",
    "epoch",
    "name",
    "environment",
    "id",
    "changed_revision",
    "reset_revision",
}


def action_words(action: str) -> str:
    """``tenant_quota.set`` to "Quota changed"; an action without an entry is still readable."""
    if action in _ACTIONS:
        return _ACTIONS[action][0]
    subject, _, verb = action.partition(".")
    return f"{subject} {verb}".replace("_", " ").strip().capitalize()


def action_verb(action: str) -> str:
    """``tenant_quota.set`` to "changed a quota of", between actor and target."""
    if action in _ACTIONS:
        return _ACTIONS[action][1]
    subject, _, verb = action.partition(".")
    return f"{verb} {subject}".replace("_", " ").strip()


def proposal_words(action: str, target: str = "") -> str:
    """``tenant_quota.set`` to "Change a quota of initech", or without a target to "Change a quota".

    A change request waits: what it would do has not happened.
    """
    verb, _, rest = _PROPOSED.get(action, action_verb(action)).partition(" ")
    words = f"{_TO_DO.get(verb, verb)} {rest}".strip()
    if not target:
        words = re.sub(r" (of|in|to|on|for)$", "", words)
    return f"{words[:1].upper()}{words[1:]} {target}".strip()


def target_words(target: str) -> str:
    """``#7 tenants.changed production``, a change request, to "#7, change tenants, production"."""
    number, _, rest = target.partition(" ")
    action, _, of = rest.partition(" ")
    words = proposal_words(action) if action else ""
    return ", ".join(part for part in (number, words[:1].lower() + words[1:], of) if part)


def schedule_words(target: str) -> str:
    """``17 tenant acme``, a scheduled change, to "#17, tenant acme"."""
    number, _, title = target.partition(" ")
    return ", ".join(part for part in (f"#{number}", title) if part)


def difference(before: dict[str, Any] | None, after: dict[str, Any] | None) -> tuple[str, str]:
    """The old and the new values of a change, as short texts; empty when there are none."""
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
    # Of a limit: its size, its window and whether it refuses. The rest is on the page of the quota.
    besides = [field for field in shown if field.endswith((" window_s", " shadow"))]
    counts = [field for field in shown if _COUNT.fullmatch(field)]
    shown = counts or ([*limits[:2], *besides[:2]] if limits else shown[:2])
    was = ", ".join(_said(field, old[field]) for field in shown if old.get(field) not in (None, ""))
    now = ", ".join(_said(field, new[field]) for field in shown if new.get(field) not in (None, ""))
    # Values that differ by less than the texts show, such as seconds, are not a change to a reader.
    return ("" if was == now else was, now)


def planned_words(fields: dict[str, Any]) -> list[str]:
    """Every value that a plan sets, also one that switches something off or empties it."""
    flat = _flat(fields)
    return [_planned(field, flat[field]) for field in sorted(flat, key=_weight)]


def _planned(field: str, value: Any) -> str:
    if value == "":
        return f"no {field.replace('_', ' ')}"
    if isinstance(value, list):
        return f"{field.replace('_', ' ')} {', '.join(map(str, value)) or 'none'}"
    moment = f"{str(value)[:16].replace('T', ' ')} UTC"
    return f"until {moment}" if field.endswith("expires_at") else _said(field, value)


def _flat(fields: dict[str, Any] | None) -> dict[str, Any]:
    """``quotas.orders.limit`` to ``orders limit``: the target names the owner."""
    flat = {}
    for field, value in (fields or {}).items():
        group, _, rest = field.partition(".")
        # A quota may have dots in its name; its column has none.
        flat[" ".join(rest.rpartition(".")[::2]).strip() if rest and group in _GROUPS else field] = value
    return flat


def _weight(field: str) -> tuple[int, str]:
    first, last = ("mode", "limit", "tier", "suspended", "burst", "window_s"), field.rpartition(" ")[2]
    return (first.index(last) if last in first else len(first), field)


def _said(field: str, value: Any) -> str:
    if field == "mode":
        return str(value).replace("_", " ")
    if field in _COUNTED:
        return f"{value:,} {_COUNTED[field]}{'' if value == 1 else 's'}"
    if field == "kind":
        return drill_words(str(value)) if str(value) in _DRILLS else f"kind {value}"
    if field.endswith("_until_us") and isinstance(value, int):
        # Of a part that only observes.
        moment = datetime.fromtimestamp(value / 1_000_000, UTC)
        return f"{field.removesuffix('_until_us').replace('_', ' ')} until {moment:%Y-%m-%d %H:%M} UTC"
    if field == "expires_at":
        return f"until {str(value)[11:16]}"
    if _MOMENT.match(str(value)):
        name = "" if field == "at" else f"{field.removesuffix('_at').replace('_', ' ')} "
        return f"{name}{str(value)[:16].replace('T', ' ')} UTC"
    if isinstance(value, bool):
        return field.replace("_", " ") if value else f"not {field.replace('_', ' ')}"
    if _COUNT.fullmatch(field):
        return count_words(field, value)
    name, _, suffix = field.rpartition("_")
    if isinstance(value, int) and name and suffix in _UNITS:
        return f"{name.replace('_', ' ')} {value:,} {_UNITS[suffix]}"
    if isinstance(value, int):
        return f"{field.replace('_', ' ')} {value:,}"
    return f"{field.replace('_', ' ')} {value}"


def count_words(key: str, count: int) -> str:
    """``tenant.changed`` and 2 to "2 tenants changed"."""
    what, _, done = key.replace("_", " ").partition(".")
    plural = what if count == 1 else f"{what.removesuffix('y')}ies" if what.endswith("y") else f"{what}s"
    return f"{count:,} {plural} {done}"


def cause_words(cause: str) -> str:
    """The cause of a transition, for people."""
    return _CAUSES.get(cause, cause.replace("_", " "))


def state_verb(state: str, *, own: bool = False) -> str:
    """What a breaker does that changes to a state; with ``own``, what a pod does with its own breaker."""
    return {"open": "opened", "half_open": "probes with" if own else "is probing"}.get(state, state)


def policy_words(policy: str) -> str:
    """What a limit does without Redis."""
    return {
        "fail_open": "allows",
        "fail_closed": "refuses",
        "local_share": "local share",
        "reserved": "reserved share",
    }.get(policy, policy)


def event_words(kind: str) -> str:
    """What happened to a pod."""
    return {
        "joined": "Joined",
        "left": "Left",
        "silent": "No heartbeat",
        "offline": "Offline",
        "back": "Heartbeat is back",
        "mode": "Mode changed",
        "config_rejected": "Configuration rejected",
        "config_accepted": "Configuration applied",
        "duplicate": "Duplicate name",
        "breaker": "Own breaker",
    }.get(kind, kind.replace("_", " "))


def config_source_words(source: str) -> str:
    """Where a pod got its configuration from."""
    return {
        "http": "from the control plane",
        "redis": "from Redis",
        "disk": "from the copy on its disk",
        "bootstrap": "from its bootstrap file",
        "built_in": "from the built-in defaults",
    }.get(source, f"from {source}")


def event_detail_words(detail: str) -> str:
    """The detail of an event of a pod; a trigger of the database stores it."""
    change, found, cause = detail.partition(": ")
    if found and " -> " in change:
        return f"{change}: {mode_cause_words(cause)}"
    return {"it said goodbye": "stopped cleanly"}.get(detail, detail)


def request_words(state: str) -> str:
    """The state of a change request."""
    return "Waiting for approval" if state == "open" else state.capitalize()


def drill_words(kind: str) -> str:
    """What a drill simulates."""
    return _DRILLS.get(kind, kind)
