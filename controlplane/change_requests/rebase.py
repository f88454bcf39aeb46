"""Rebase a request onto the newest configuration: the same change, with no approvals yet."""

from django.db import DataError, IntegrityError, transaction

from controlplane.approvals import proposals
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.record import AuditLine
from controlplane.change_requests.decide import check_prices, pending
from controlplane.editing.edits.rollback import changes_back
from controlplane.editing.plans import difference, plan_from_document
from controlplane.editing.plans.plan import PlanErrors
from controlplane.editing.plans.resolving import Wanted, fit
from controlplane.editing.revise import revise
from controlplane.editing.rows.write_changes import write_changes
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import Fields
from controlplane.policies.history import Changed, changes_between
from controlplane.policies.merge import WHOLE, merge, units
from controlplane.policies.state import State, read_state, tenants_following


def rebase(*, environment: str, request: int, actor: Actor) -> ChangeRequest:
    """Set the fields it changes to what it wanted, on top of the current configuration.

    The person who rebases has changed the request and may not approve it. Raises ``InvalidEdit`` when
    the change is no longer valid.
    """
    try:
        with pending(environment, request, actor) as row:
            if row.lowers_to is not None:
                raise InvalidEdit(
                    {"request": ["It does not depend on the configuration, so there is nothing to rebase."]}
                )
            if not proposals.needed_in(environment):
                raise InvalidEdit(
                    {"request": ["Approval is no longer required: withdraw it and edit directly."]}
                )
            return _later(row, actor) if row.due_at is not None else _now(row, actor)
    except (IntegrityError, DataError) as error:
        said = str(error).partition("\n")[0]
        raise InvalidEdit({"request": [f"It no longer fits the current configuration: {said}"]}) from error


def _now(row: ChangeRequest, actor: Actor) -> ChangeRequest:
    try:
        with revise(
            environment=row.environment,
            actor=actor,
            reason=row.reason,
            restores=row.restores,
            reverts=row.reverts,
            conflicts_with_any_change=row.whole,
            replaces_request=row,
        ) as revision:
            changes = (
                changes_back(row.environment, row.restores)
                if row.restores is not None
                else _merged(row, read_state(row.environment, tenants=_tenants(row)))
            )
            check_prices(row, changes)
            for entry in row.entries:
                change = Changed(entry["kind"], entry["name"], entry.get("before"), entry.get("after"))
                revision.audit_change(entry["action"], change)
            write_changes(revision, changes)
    except proposals.Proposed as proposed:
        return proposed.request
    raise InvalidEdit({"request": ["It no longer requires approval."]})


def _later(row: ChangeRequest, actor: Actor) -> ChangeRequest:
    found = difference(row.environment, plan_from_document(row.document or {}))
    with transaction.atomic():
        rebased = proposals.Proposal(
            environment=row.environment,
            base=found.revision,
            actor=actor,
            reason=row.reason,
            audit_lines=[AuditLine(row.action, "schedule", row.title, None, None)],
            changes=found.changes,
        )
        return proposals.propose(rebased, replaces_request=row)


def _merged(row: ChangeRequest, now: State) -> list[Changed]:
    """Merge the request into the configuration, and check that the result fits it."""
    wanted: Wanted = {}
    for change in proposals.changes_of(row):
        thing = (change.kind, change.name)
        wanted[thing] = _over(change, now.get(thing))
    try:
        fitted = fit(row.environment, wanted, now)
    except PlanErrors as errors:
        said = "; ".join(f"{error.where}: {error.message}" for error in errors.found[:5])
        raise InvalidEdit({"request": [f"It no longer fits the current configuration: {said}"]}) from errors
    return changes_between(now, fitted)


def _over(change: Changed, present: Fields | None) -> Fields | None:
    """Return what the request wants, also where the configuration has changed since."""
    if change.before is not None and change.after is not None and present is None:
        raise InvalidEdit({"request": [f"{change.kind} {change.name} was removed: withdraw the request."]})
    every = units(state for state in (change.before, change.after, present) if state)
    return merge(change.before, change.after, present, overwrite={WHOLE, *every}).fields


def _tenants(row: ChangeRequest) -> set[str]:
    named = set(row.changes.filter(kind="tenant").values_list("name", flat=True))
    templates = set(row.changes.filter(kind="template").values_list("name", flat=True))
    return named | tenants_following(row.environment, templates)
