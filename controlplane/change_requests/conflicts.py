"""Finds later changes that conflict with a change request."""

from collections.abc import Collection
from typing import Any

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from controlplane.approvals import proposals
from controlplane.approvals.models import ChangeRequest, ProposedChange
from controlplane.editing.plans.account_plans import misfits
from controlplane.errors import EditConflict, InvalidEdit
from controlplane.policies.conflicts import describe_changes
from controlplane.policies.document import environment_of
from controlplane.policies.fields import different
from controlplane.policies.models import Change
from controlplane.policies.state import read_state

#: Removals of things that others refer to: without one of them, an edit may no longer be valid.
_REMOVES = Q(kind__in=("tier", "dependency", "template"), after__isnull=True)


def changed_since(row: ChangeRequest) -> QuerySet[Change]:
    """Changes made after the request that affect it, newest first."""
    found = _changes_after(row.environment, row.base)
    if not (row.whole or _affected_by_any(row.pk).exists()):
        found = found.filter(_affecting(row.pk))
    return found.select_related("revision").order_by("-revision__number", "kind", "name")


def with_conflict(rows: Collection[ChangeRequest]) -> set[int]:
    """The numbers of the requests that a later change affects, with one query for all of them."""
    later = _changes_after(OuterRef("environment"), OuterRef("base"))
    by_any = Q(whole=True) | Q(Exists(_affected_by_any(OuterRef("pk"))))
    by_one = Exists(later.filter(_affecting(OuterRef(OuterRef("pk")))))
    found = ChangeRequest.objects.filter(
        by_any & Q(Exists(later)) | Q(by_one), pk__in=[row.pk for row in rows]
    )
    return set(found.values_list("pk", flat=True))


def _changes_after(environment: Any, revision: Any) -> QuerySet[Change]:
    return Change.objects.filter(revision__environment=environment, revision__number__gt=revision)


def _affected_by_any(request: Any) -> QuerySet[ProposedChange]:
    """Proposed changes that conflict with any later change.

    References to a removed thing, or followers of a changed template, may have been added since.
    """
    return ProposedChange.objects.filter(Q(kind="template") | _REMOVES, request=request)


def _affecting(request: Any) -> Q:
    """Changes of the same things. A removal affects every request: it may refer to what was removed."""
    mine = ProposedChange.objects.filter(request=request)
    return Q(Exists(mine.filter(kind=OuterRef("kind"), name=OuterRef("name")))) | _REMOVES


def check_base(row: ChangeRequest, *, making: int | None = None) -> None:
    """Raise ``EditConflict`` if a later change affects the request.

    Raises ``InvalidEdit`` if its time has passed, or if a row has changed without a revision. ``making`` is
    the revision being made.
    """
    if row.lowers_to is not None:  # a change of the approval rule changes no configuration
        return
    if found := list(changed_since(row)[:5]):
        latest = found[0].revision
        head = environment_of(row.environment).revision if making is None else making - 1
        raise EditConflict(
            expected_version=row.base,
            current_version=head,
            changed=describe_changes(found),
            by=latest.actor,
            at=latest.at,
        )
    if row.due_at is not None and row.due_at <= timezone.now():
        raise InvalidEdit({"request": ["Its scheduled time has passed: withdraw it and schedule it again."]})
    _check_rows(row)


def _check_rows(row: ChangeRequest) -> None:
    """Compare each row with its value when the request was made: it can change without a revision.

    What is true of all accounts, budgets and models together may also have changed with another of them: two
    requests can give a dependency to two accounts. No pod would get such a configuration.
    """
    changes = proposals.changes_of(row)
    tenants = {change.name for change in changes if change.kind == "tenant"}
    owners = {(change.after or {}).get("tenant", "") for change in changes if change.kind == "budget"}
    state = read_state(row.environment, tenants=tenants | owners - {""})
    for change in changes:
        if different(change.before, state.get((change.kind, change.name))):
            raise InvalidEdit({"request": [f"{change.kind} {change.name} has changed: rebase the request."]})
    for kind, name, message in misfits(changes, state):
        text = f"It no longer fits the current configuration: {kind} {name}: {message}"
        raise InvalidEdit({"request": [text]})
