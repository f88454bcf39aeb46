"""Who scheduled a change, and whether they may still make it."""

from controlplane.accounts.authors import RightsLost, lost_rights
from controlplane.accounts.permissions import may
from controlplane.approvals.authors import why_not_theirs
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.record import source_of
from controlplane.schedules.models import Schedule


def author_of(row: Schedule) -> Actor:
    found = source_of(
        action="change.scheduled", target_kind="schedule", number=row.pk, environment=row.environment
    )
    return Actor(name=row.actor, role=row.role, **found)


def why_not_theirs_now(row: Schedule, approved: ChangeRequest | None) -> str:
    """Why its author may not make the change now; empty if they may. ``approved`` is its change request."""
    if approved is not None:
        return why_not_theirs(approved)
    return lost_rights(
        author_of(row),
        lambda user: may(user, "edit_quota", row.environment),
        did="scheduled it",
        needs="the role admin",
    )


def check_author(row: Schedule, approved: ChangeRequest | None) -> None:
    """Raise ``RightsLost`` when its author may not make the change any more."""
    if lost := why_not_theirs_now(row, approved):
        raise RightsLost(f"{lost} Nothing was changed. Another admin has to schedule it again.")
