"""Restores an earlier configuration as a new revision, so that the history stays complete."""

from django.utils import timezone

from controlplane.audit.actor import Actor
from controlplane.editing.revise import revise
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import InvalidEdit
from controlplane.policies.conflicts import check_revision
from controlplane.policies.document import environment_of
from controlplane.policies.fields import different
from controlplane.policies.history import Changed, first_recorded, states_as_of
from controlplane.policies.state import State, names_of, read_state
from controlplane.spending.budget_fields import without_ended_raise
from controlplane.validation import check_reason


def rollback(
    *, environment: str, to_revision: int, reason: str, actor: Actor, expected_revision: int | None
) -> int:
    """Restore everything as it was at ``to_revision``. Return the new revision.

    Overrides of breakers stay, because they are not configuration. If nothing differs, nothing is
    written and the present revision is returned. Raises ``EditConflict`` when the configuration was
    changed after ``expected_revision``.
    """
    check_reason(reason)
    head = environment_of(environment).revision
    _check_known(environment, to_revision, head)
    changes = changes_back(environment, to_revision)
    if not changes:
        check_revision(environment=environment, expected=expected_revision)
        return head
    with revise(environment=environment, actor=actor, reason=reason, restores=to_revision) as revision:
        check_revision(environment=environment, expected=expected_revision, making=revision.number)
        if head != revision.number - 1:
            # Another edit was faster. Nothing else can change while this revision is being made.
            changes = changes_back(environment, to_revision)
        write_changes(revision, changes)
        after = {"restores": to_revision, "changed": len(changes)}
        revision.audit_many("configuration.rolled_back", after)
    return revision.number


def changes_back(environment: str, to_revision: int) -> list[Changed]:
    """Return what a rollback to that revision would change now. No raise returns that is over."""
    at = timezone.now()
    then = {
        (kind, name): without_ended_raise(fields, at) if kind == "budget" and fields else fields
        for (kind, name), fields in states_as_of(environment, to_revision).items()
    }
    tenants = names_of(then, "tenant")
    now: State = read_state(environment, tenants=tenants)
    return [
        Changed(kind, name, now.get((kind, name)), fields)
        for (kind, name), fields in sorted(then.items())
        if (fields is None) != ((kind, name) not in now) or different(now.get((kind, name)), fields)
    ]


def _check_known(environment: str, to_revision: int, head: int) -> None:
    first = first_recorded(environment)
    if first is None or not first <= to_revision <= head:
        raise InvalidEdit(
            {
                "to_revision": [
                    f"Choose a revision from {first} to {head}." if first else "No revision exists yet."
                ]
            }
        )
