"""Audit entries as the pages display them: one line each, in words."""

from dataclasses import dataclass

from controlplane.alerts.people.rule_words import target_in_words
from controlplane.audit.action_words import action_verb, action_words, adds
from controlplane.status.facts import Change
from dashboard.words.labels import difference, left_off

#: Subjects of actions that change the configuration, so that a revert can undo them.
_CONFIGURATION = frozenset(
    {
        "breaker_policy",
        "configuration",
        "default_tier",
        "dependency",
        "descriptors",
        "account",
        "budget",
        "model",
        "model_price",
        "plan",
        "pod_protection",
        "protection",
        "revision",
        "subject_limit",
        "template",
        "tenant",
        "tenant_quota",
        "tenants",
        "tier",
        "tier_quota",
        "tuning",
        "vendor_limit",
    }
)


@dataclass(frozen=True, kw_only=True)
class ChangeLine:
    id: int
    at: float
    actor: str
    human: bool
    #: The action as a heading, and as a verb between the actor and the target.
    action: str
    verb: str
    target_kind: str
    target: str
    reason: str
    #: The ticket of an override; empty for none.
    ticket: str
    #: The values that the change replaced, and the new ones.
    before: str
    after: str
    #: The changed fields that these leave out, each with its values.
    more: tuple[str, ...]
    revision: int | None
    #: Whether the revision changed the configuration.
    revertible: bool
    #: The token that was used, and its owner; empty for a person with a session.
    by_token: str
    #: The request that made the change and its trace, as log lines name them; empty for a task.
    request_id: str
    trace_id: str


def line_of(change: Change) -> ChangeLine:
    before, after = difference(change.before, change.after)
    added = adds(change.before, change.after)
    return ChangeLine(
        id=change.id,
        at=change.at,
        actor=change.actor,
        human=change.human,
        action=action_words(change.action, added=added),
        verb=action_verb(change.action, added=added),
        target_kind=change.target_kind,
        target=target_in_words(change.target_kind, change.target),
        reason=change.reason,
        ticket=str((change.after or {}).get("override.ticket", "")),
        before=before,
        after=after,
        more=tuple(left_off(change.before, change.after)),
        revision=change.revision,
        revertible=change.revision is not None and change.action.partition(".")[0] in _CONFIGURATION,
        by_token=_token_words(change.token, change.owner),
        request_id=change.request_id,
        trace_id=change.trace_id,
    )


def _token_words(token: str, owner: str) -> str:
    return f"token {token}{f' of {owner}' if owner else ', without owner'}" if token else ""
