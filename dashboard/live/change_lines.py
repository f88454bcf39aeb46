"""Audit entries as the pages display them: one line each, in words."""

from dataclasses import dataclass

from controlplane.status.facts import Change
from dashboard.labels import action_verb, action_words, difference, target_words


@dataclass(frozen=True, kw_only=True)
class ChangeLine:
    id: int
    at: float
    actor: str
    human: bool
    #: As a heading, and as what the actor did to the target.
    action: str
    verb: str
    target_kind: str
    target: str
    reason: str
    #: The values that the change replaced, and the new ones.
    before: str
    after: str
    revision: int | None


def line_of(change: Change) -> ChangeLine:
    before, after = difference(change.before, change.after)
    return ChangeLine(
        id=change.id,
        at=change.at,
        actor=change.actor,
        human=change.human,
        action=action_words(change.action),
        verb=action_verb(change.action),
        target_kind=change.target_kind,
        target=target_words(change.target) if change.target_kind == "change_request" else change.target,
        reason=change.reason,
        before=before,
        after=after,
        revision=change.revision,
    )
