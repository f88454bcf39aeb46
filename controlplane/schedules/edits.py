"""Edits of scheduled changes."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from controlplane.approvals import proposals
from controlplane.approvals.models import PENDING, ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.record import AuditLine, acting, record
from controlplane.editing.plans import difference, plan_from_document
from controlplane.editing.plans.difference import summary
from controlplane.errors import InvalidEdit, find
from controlplane.postgres import transaction_lock
from controlplane.schedules.models import Needs, Schedule, ScheduleState
from controlplane.validation import Problems, check_reason

#: The furthest time that a change can be scheduled for.
LONGEST = timedelta(days=400)

#: A change of so many things is named by them, a larger one by their number.
_NAMED = 3


def schedule_change(
    *,
    environment: str,
    due_at: datetime,
    document: Mapping[str, Any],
    reason: str,
    actor: Actor,
    title: str = "",
    needs: Needs = Needs.ANYTHING,
) -> Schedule:
    """Schedule a plan for ``due_at``. It must be valid now, and is checked again then.

    ``needs`` says whether its things must exist then, and that what they inherit must not have changed.

    Raises ``InvalidEdit``, also as ``PlanErrors``, and ``proposals.Proposed`` when another person has to
    approve it first.
    """
    problems = Problems()
    problems.reason(reason)
    problems.text("title", title, 200)
    check_due(problems, due_at)
    problems.settle()
    found = difference(environment, plan_from_document(document), at=due_at)
    if not found:
        raise InvalidEdit({"document": ["It would change nothing."]})
    _check_is_new(environment, due_at, document)
    title = title or _title(found.changes, summary(found.counts))
    if proposals.needed_in(environment):
        waiting = proposals.Proposal(
            environment=environment,
            base=found.revision,
            actor=actor,
            reason=reason,
            audit_lines=[AuditLine("change.scheduled", "schedule", title, None, None)],
            changes=found.changes,
            due_at=due_at,
            document=document,
            needs=needs,
            title=title,
        )
        with transaction.atomic():
            _one_at_a_time(environment)
            _check_is_not_proposed(environment, due_at, document)
            request = proposals.propose(waiting)
        raise proposals.Proposed(request)
    return keep_schedule(
        environment=environment,
        due_at=due_at,
        document=document,
        title=title,
        reason=reason,
        actor=actor,
        needs=needs,
        base=found.revision,
    )


def check_due(problems: Problems, due_at: datetime) -> None:
    problems.end("due_at", due_at, LONGEST, f"Choose a time at most {LONGEST.days} days from now.")


def keep_schedule(
    *,
    environment: str,
    due_at: datetime,
    document: Mapping[str, Any],
    title: str,
    reason: str,
    actor: Actor,
    needs: Needs = Needs.ANYTHING,
    base: int,
) -> Schedule:
    """Store a change that was checked at revision ``base``, and approved if that is required."""
    with transaction.atomic():
        acting(actor)
        _one_at_a_time(environment)
        _check_is_new(environment, due_at, document)
        row = Schedule.objects.create(
            environment=environment,
            due_at=due_at,
            document=document,
            needs=needs,
            base=base if needs else 0,
            title=title,
            reason=reason,
            actor=actor.name[:200],
            role=actor.role,
        )
        _record(row, "change.scheduled", actor, reason, before=None)
    return row


def _one_at_a_time(environment: str) -> None:
    """Wait for the other process: a form that is sent twice reaches two at once."""
    transaction_lock(f"schedules {environment}")


def _check_is_new(environment: str, due_at: datetime, document: Mapping[str, Any]) -> None:
    """Raise ``InvalidEdit`` if the same change is already scheduled for the same time."""
    same = {"environment": environment, "due_at": due_at, "document": dict(document)}
    row = Schedule.objects.filter(state=ScheduleState.WAITING, **same).first()
    if row is not None:
        text = f"The same change is already scheduled for this time: {row.title}, by {row.actor}."
        raise InvalidEdit({"due_at": [text]})


def _check_is_not_proposed(environment: str, due_at: datetime, document: Mapping[str, Any]) -> None:
    same = {"environment": environment, "due_at": due_at, "document": dict(document)}
    row = ChangeRequest.objects.filter(state__in=PENDING, **same).first()
    if row is not None:
        text = f"The same change for this time already waits for approval: change request {row.pk}."
        raise InvalidEdit({"due_at": [text]})


def cancel_schedule(*, environment: str, schedule: int, reason: str, actor: Actor) -> Schedule:
    """Cancel a scheduled change. Raises ``NotFound``, and ``InvalidEdit`` when it is not waiting."""
    check_reason(reason)
    with transaction.atomic():
        acting(actor)
        row = _locked(environment, schedule)
        if row.state != ScheduleState.WAITING:
            raise InvalidEdit({"schedule": [f"It is already {row.get_state_display().lower()}."]})
        row.state, row.ended_at, row.ended_by = ScheduleState.CANCELLED, timezone.now(), actor.name[:200]
        row.save(update_fields=["state", "ended_at", "ended_by"])
        _record(row, "schedule.cancelled", actor, reason, before={"state": ScheduleState.WAITING})
    return row


def acknowledge_failure(*, environment: str, schedule: int, reason: str, actor: Actor) -> Schedule:
    """Acknowledge a failed change, which ends its alert."""
    check_reason(reason)
    with transaction.atomic():
        acting(actor)
        row = _locked(environment, schedule)
        if row.state != ScheduleState.FAILED:
            raise InvalidEdit({"schedule": ["It has not failed."]})
        row.seen = True
        row.save(update_fields=["seen"])
        _record(row, "schedule.acknowledged", actor, reason, before={"seen": False})
    return row


def _locked(environment: str, schedule: int) -> Schedule:
    rows = Schedule.objects.select_for_update().filter(environment=environment)
    return find(rows, "schedule", pk=schedule)


def _title(changes: Any, counts: str) -> str:
    few = ", ".join(f"{change.kind} {change.name}" for change in changes[:_NAMED])
    return few[:200] if len(changes) == 1 or (len(changes) <= _NAMED and len(few) <= 200) else counts


def _record(row: Schedule, action: str, actor: Actor, reason: str, *, before: dict[str, Any] | None) -> None:
    record(
        actor=actor,
        action=action,
        target_kind="schedule",
        target_name=f"{row.pk} {row.title}"[:200],
        before=before,
        after={"state": row.state, "due_at": row.due_at.isoformat(timespec="seconds"), "seen": row.seen},
        reason=reason,
        environment=row.environment,
    )
