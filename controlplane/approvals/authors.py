"""The authors of change requests, and whether they may still make the change."""

from dataclasses import replace
from typing import Any

from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet

from controlplane.accounts.authors import lost_rights
from controlplane.accounts.permissions import check_changes, may
from controlplane.approvals import proposals
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.audit.record import actor_of
from controlplane.errors import InvalidEdit


def author_of(row: ChangeRequest) -> Actor:
    opened = _entries(row, "change_request.opened").first()
    found = Actor(name="", role="", origin="form") if opened is None else actor_of(opened)
    return replace(found, name=row.author, role=row.role, address=row.address)


def _entries(row: ChangeRequest, action: str) -> QuerySet[Entry]:
    """The entries of one action on the request. The name of their target begins with its number."""
    rows = Entry.objects.filter(target_kind="change_request", target_name__startswith=f"#{row.pk} ")
    return rows.filter(action=action, environment=row.environment)


def why_not_theirs(row: ChangeRequest) -> str:
    """Why no person who made or rebased the request may make its change now; empty if one of them may."""
    author = author_of(row)
    makers = [(author, "made this request")]
    makers += [
        (each, "rebased it")
        for each in _rebased_by(row)
        if (each.name, each.token) != (author.name, author.token)
    ]
    lost = [
        lost_rights(each, lambda user: _may_make(row, user), did=did, needs="the role for it")
        for each, did in makers
    ]
    return " ".join(lost) if all(lost) else ""


def _rebased_by(row: ChangeRequest) -> list[Actor]:
    """The people who rebased the request, and tokens that did so in the name of a person.

    ``row.persons`` also has the owner of a token, who did not look at the request.
    """
    if row.version == 1:
        return []
    actors = map(actor_of, _entries(row, "change_request.rebased").order_by("pk"))
    found = {(one.name, one.token): one for one in actors if (one.person or one.name) in row.persons}
    return list(found.values())


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
        check_changes(user, row.environment, proposals.changes_of(row))
    except PermissionDenied:
        return False
    return True
