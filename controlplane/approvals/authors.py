"""Who made a change request, and whether they may still make its change."""

from typing import Any

from django.core.exceptions import PermissionDenied

from controlplane.accounts.authors import lost_rights
from controlplane.accounts.permissions import check_changes, may
from controlplane.approvals import gate
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.record import source_of
from controlplane.errors import InvalidEdit


def author_of(row: ChangeRequest) -> Actor:
    found = source_of(
        action="change_request.opened",
        target_kind="change_request",
        number=row.pk,
        environment=row.environment,
    )
    return Actor(name=row.author, role=row.role, address=row.address, **found)


def why_not_theirs(row: ChangeRequest) -> str:
    """Why no person who made or rebased the request may make its change now; empty if one of them may."""
    author = author_of(row)
    # The owner of a token did not look at the request, before they rebased it.
    known = {author.name, author.person if row.version == 1 else ""}
    rebased = [Actor(name=name, role="", origin="form") for name in row.persons if name not in known]
    lost = [
        lost_rights(each, lambda user: _may_make(row, user), did=did, needs="the role for it")
        for each, did in ((author, "made this request"), *((each, "rebased it") for each in rebased))
    ]
    return " ".join(lost) if all(lost) else ""


def check_author(row: ChangeRequest) -> None:
    """Raise ``InvalidEdit`` when those who made the request may not make its change any more."""
    if lost := why_not_theirs(row):
        take_over = (
            "Reject it, and set the number of approvals again."
            if row.lowers_to is not None
            else "Another admin can rebase it, which removes its approvals, or submit it again."
        )
        raise InvalidEdit({"request": [f"{lost} {take_over}"]})


def _may_make(row: ChangeRequest, user: Any) -> bool:
    if row.lowers_to is not None:
        return may(user, "set_approvals", row.environment)
    if may(user, "edit_quota", row.environment):
        return True
    try:
        check_changes(user, row.environment, gate.changes_of(row))
    except PermissionDenied:
        return False
    return True
