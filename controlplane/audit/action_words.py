"""The actions of audit entries in words, for pages and reports."""

import re
from collections.abc import Callable, Mapping
from typing import Any

#: Action -> as a heading, and as the verb between actor and target.
_ACTIONS = {
    "receiver.created": ("Receiver added", "added receiver"),
    "receiver.enabled": ("Receiver enabled", "enabled receiver"),
    "receiver.removed": ("Receiver removed", "removed receiver"),
    "receiver.secret_changed": ("Secret of receiver changed", "changed the secret of receiver"),
    "receiver.weekly_set": ("Weekly summary of receiver changed", "changed the weekly summary of receiver"),
    "revision.reverted": ("Change reverted", "reverted a change of"),
    "alert.acknowledged": ("Alert acknowledged", "acknowledged alert"),
    "alert.released": ("Acknowledgement withdrawn", "withdrew the acknowledgement of alert"),
    "agent_token.created": ("Agent token created", "created agent token"),
    "api_token.created": ("API token created", "created API token"),
    "approvals.set": ("Approval rule changed", "changed the approval rule of"),
    "audit_export.skipped": ("Audit entry not exported", "left an audit entry out of the export to"),
    "backlog.dead_deleted": ("Dead jobs deleted", "deleted dead jobs of"),
    "backlog.dead_returned": ("Dead jobs returned", "returned dead jobs of"),
    "breaker.extended": ("Override extended", "extended the override on"),
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
    "descriptors.created": ("Rules for Envoy added", "added the rules for domain"),
    "descriptors.removed": ("Rules for Envoy removed", "removed the rules for domain"),
    "descriptors.set": ("Rules for Envoy changed", "changed the rules for domain"),
    "dependency.created": ("Dependency added", "added dependency"),
    "dependency.set": ("Dependency changed", "changed the settings of"),
    "dependency.described": ("Dependency changed", "changed dependency"),
    "counter.cleared": ("Counter cleared", "cleared a counter of"),
    "invoice.removed": ("Invoice removed", "removed an invoice of"),
    "invoice.set": ("Invoice entered", "entered an invoice of"),
    "ledger.repriced": ("Calls re-priced", "re-priced calls of"),
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
    "account.created": ("Account added", "added account"),
    "account.removed": ("Account removed", "removed account"),
    "account.set": ("Account changed", "changed account"),
    "budget.created": ("Budget added", "added budget"),
    "budget.lowered": ("Raise of a budget ended", "ended the raise of budget"),
    "budget.raised": ("Budget raised", "raised budget"),
    "budget.removed": ("Budget removed", "removed budget"),
    "budget.set": ("Budget changed", "changed budget"),
    "model.created": ("Model added", "added model"),
    "model.removed": ("Model removed", "removed model"),
    "model.set": ("Model changed", "changed model"),
    "model_price.removed": ("Price removed", "removed a price of"),
    "model_price.set": ("Price changed", "changed a price of"),
    "suggestion.declined": ("Suggestion declined", "declined a suggestion for"),
    "following.at_floor": ("Vendor limit at its floor", "lowered a vendor limit to its floor on"),
    "following.begun": ("Vendor limit lowered", "lowered a vendor limit of"),
    "following.ended": ("Vendor limit as configured", "restored a vendor limit of"),
    "mute.created": ("Alerts muted", "muted alerts of"),
    "mute.ended": ("Mute ended", "ended the mute of"),
    "mute.period_ended": ("Period of a mute ended", "ended this period of the mute of"),
    "override.expired": ("Override expired", "ended the expired override on"),
    "pod_protection.set": ("Protection of pods changed", "changed the protection of pods in"),
    "plan.applied": ("File applied", "applied a file to"),
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
    "schedule.proposed": ("Scheduled change waits for approval", "proposed scheduled change"),
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
    "tenant.set": ("Tenant edited", "edited tenant"),
    "tenant.resumed": ("Tenant resumed", "resumed"),
    "tenant.suspended": ("Tenant suspended", "suspended"),
    "tenant.tier_changed": ("Tier of tenant changed", "changed the tier of"),
    "tenant_quota.ends_soon": ("Quota ends soon", "announced the end of a quota of"),
    "tenant_quota.expired": ("Quota ended", "ended a temporary quota of"),
    "tenant_quota.removed": ("Quota removed", "removed a quota of"),
    "tenant_quota.set": ("Quota changed", "changed a quota of"),
    "tenants.changed": ("Tenants changed", "changed tenants in"),
    "tier.created": ("Tier added", "added tier"),
    "tier.set": ("Tier edited", "edited tier"),
    "tier_quota.removed": ("Tier quota removed", "removed a quota of tier"),
    "tier_quota.set": ("Tier quota changed", "changed a quota of tier"),
    "token.revoked": ("Token revoked", "revoked token"),
    "token.rotated": ("Token rotated", "rotated token"),
    "tuning.set": ("Tuning changed", "changed the tuning of"),
    "user.created": ("Person added", "added"),
    "user.invited": ("Person invited", "invited"),
    "user.link_ended": ("Password link ended", "ended the password link for"),
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
#: The first word of what was done -> of what is proposed.
_TO_DO = {
    "added": "add",
    "applied": "apply",
    "cancelled": "cancel",
    "changed": "change",
    "copied": "copy",
    "created": "create",
    "deleted": "delete",
    "edited": "edit",
    "ended": "end",
    "raised": "raise",
    "removed": "remove",
    "restored": "restore",
    "replaced": "replace",
    "resumed": "resume",
    "reverted": "revert",
    "rolled": "roll",
    "saved": "save",
    "scheduled": "schedule",
    "set": "set",
    "started": "start",
    "suspended": "suspend",
}
#: The words of a proposal in place of an audit entry, whose target has a number.
_PROPOSED = {"change.scheduled": "scheduled a change of"}
#: Actions that change one thing, and add it where it was not there.
_ADDS = ("route.set", "subject_limit.set", "template.set", "tier_quota.set", "vendor_limit.set")


def action_words(action: str, *, added: bool = False) -> str:
    """``tenant_quota.set`` to "Quota changed"; an action without an entry is still readable.

    ``added``: what it changed was not there before.
    """
    if added and action in _ADDS:
        return _ACTIONS[action][0].replace("changed", "added")
    if action in _ACTIONS:
        return _ACTIONS[action][0]
    subject, _, verb = action.partition(".")
    return f"{subject} {verb}".replace("_", " ").strip().capitalize()


def adds(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> bool:
    """Whether an entry changes nothing that was there: it can have all fields of what contains the new thing.

    The version is that of the container.
    """
    old, new = before or {}, after or {}
    there = {_part(field) for field in old.keys() - {"version"}}
    changed = [field for field in (old.keys() | new.keys()) - {"version"} if old.get(field) != new.get(field)]
    return bool(changed) and there.isdisjoint(map(_part, changed))


def _part(field: str) -> str:
    """``vendor_limits.contract`` of ``vendor_limits.contract.limit``; empty for a field of the whole."""
    return field.rpartition(".")[0]


def action_verb(action: str, *, added: bool = False) -> str:
    """``tenant_quota.set`` to "changed a quota of", between actor and target."""
    if added and action in _ADDS:
        return _ACTIONS[action][1].replace("changed", "added")
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
    """``#7 tenants.changed production``, a change request, to "7, change tenants, production"."""
    number, _, rest = target.removeprefix("#").partition(" ")
    action, _, of = rest.partition(" ")
    words = proposal_words(action) if action else ""
    return ", ".join(part for part in (number, words[:1].lower() + words[1:], of) if part)


def schedule_words(target: str) -> str:
    """``17 tenant acme``, a scheduled change, to "17, tenant acme"."""
    number, _, title = target.partition(" ")
    return ", ".join(part for part in (number, title) if part)


def named_target(kind: str, name: str) -> str:
    """The target of an entry in words: its name, where that is not made of keys."""
    return _TARGETS.get(kind, str)(name)


#: Kind of target -> the words for a target of this kind.
_TARGETS: dict[str, Callable[[str], str]] = {"change_request": target_words, "schedule": schedule_words}
