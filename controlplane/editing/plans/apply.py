from collections.abc import Callable

from django.db import transaction

from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.record import acting
from controlplane.editing.plans.difference import Difference, difference
from controlplane.editing.plans.plan import Plan
from controlplane.editing.revise import revise
from controlplane.editing.rows.write_changes import write_changes
from controlplane.policies.conflicts import check_revision
from controlplane.policies.history import Progress
from controlplane.validation import check_reason


def apply_plan(
    *,
    environment: str,
    plan: Plan,
    expected_revision: int | None,
    reason: str,
    actor: Actor,
    prune: bool = False,
    action: str = "plan.applied",
    progress: Progress | None = None,
    check: Callable[[Difference], None] | None = None,
    inside: Callable[[int], None] | None = None,
    proposed: Callable[[ChangeRequest], None] | None = None,
    approved_request: int | None = None,
) -> int:
    """Apply the whole plan as one revision, or nothing of it. Return the revision.

    If nothing changes, nothing is written and the present revision is returned. Raises
    ``PlanErrors``, and ``EditConflict`` when the configuration was changed after
    ``expected_revision``. ``check`` raises if the differences are not as expected. ``inside`` is
    called with the revision before the commit, for writes that belong to the same transaction,
    and ``proposed`` with the change request that it becomes instead.
    ``approved_request`` is the change request that was approved for this plan, where edits need
    approval. No transaction should be open: comparing takes seconds.
    """
    check_reason(reason)
    # Before the comparison, which is expensive, and after it, for edits in the meantime.
    check_revision(environment=environment, expected=expected_revision)
    found = _compared(environment, plan, prune, check)
    check_revision(environment=environment, expected=expected_revision)
    if not found:
        if inside is not None:
            with transaction.atomic():
                acting(actor)
                inside(found.revision)
        return found.revision
    with revise(
        environment=environment,
        actor=actor,
        reason=reason,
        conflicts_with_any_change=prune,
        approved_request=approved_request,
        proposed=proposed,
    ) as revision:
        check_revision(environment=environment, expected=expected_revision, making=revision.number)
        if found.revision != revision.number - 1:
            # Another edit was faster. Nothing else can change while this revision is being made.
            found = _compared(environment, plan, prune, check)
        revision.audit_many(action, {"revision": revision.number, "prune": prune, **found.by_kind})
        write_changes(revision, found.changes, progress=progress)
        if inside is not None:
            inside(revision.number)
    return revision.number


def _compared(
    environment: str, plan: Plan, prune: bool, check: Callable[[Difference], None] | None
) -> Difference:
    found = difference(environment, plan, prune=prune)
    if check is not None:
        check(found)
    return found
