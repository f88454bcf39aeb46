"""Applies scheduled changes and ends quotas at their time. Both are announced before.

Everything here may run in several processes at once, and more than once.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import structlog
from django.conf import settings
from django.db import DataError, IntegrityError, transaction
from django.db.models import F, OuterRef, Q, Subquery
from django.utils import timezone

from controlplane.approvals import proposals
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import FUSEBOARD
from controlplane.audit.record import acting, record
from controlplane.editing.edits.budgets import lower_raised_budgets
from controlplane.editing.edits.expiry import expire_quotas
from controlplane.editing.edits.shown import entity_as_of, moved_quotas
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.editing.plans.difference import Difference
from controlplane.editing.plans.resolving import PREFIX
from controlplane.errors import EditError, EditsFrozen, InvalidEdit
from controlplane.metric_catalogue import edits as catalogue
from controlplane.policies.fields import limits_in
from controlplane.policies.history import Changed
from controlplane.policies.models import Environment, TenantQuota
from controlplane.policies.revision_rows import Revision
from controlplane.policies.state import read_state
from controlplane.schedules.authors import authors_of, check_author
from controlplane.schedules.models import Needs, Schedule, ScheduleState

log = structlog.get_logger(__name__)

#: Most announcements of one run.
_AT_ONCE = 500

failed = catalogue.SCHEDULES_FAILED.make()
applied = catalogue.SCHEDULES_APPLIED.make()


def run_due() -> None:
    announce()
    expired = expire_quotas()
    for environment, tenant, quota in expired:
        log.info("tenant_quota.expired", environment=environment, tenant=tenant, quota=quota)
    for environment, budget in lower_raised_budgets():
        log.info("budget.lowered", environment=environment, budget=budget)
    apply_due()


def apply_due() -> int:
    """Apply the changes that are due, oldest first. Return how many were tried."""
    now = timezone.now()
    # Changes of a frozen environment wait, and must not keep those of others waiting.
    frozen = Environment.objects.filter(frozen_until__gt=now).values("slug")
    due = Schedule.objects.filter(state=ScheduleState.WAITING, due_at__lte=now)
    due = due.exclude(environment__in=frozen)
    tried = 0
    for pk in list(due.order_by("due_at", "pk").values_list("pk", flat=True)[:100]):
        tried += _apply(pk)
    return tried


class _MadeAlready(Exception):
    """Another process applied it, or it was cancelled. This rolls back the revision taken."""


def _apply(pk: int) -> bool:
    """Apply one. Return ``False`` when another process does. A failing store leads to another try."""
    row = Schedule.objects.filter(pk=pk, state=ScheduleState.WAITING).first()
    if row is None:
        return False

    # It was approved when it was scheduled, and is applied only exactly as approved.
    approved = ChangeRequest.objects.filter(schedule=pk).first()
    author = authors_of([row])[row.pk]

    def made(revision: int) -> None:
        # Inside, because the author can lose the rights while a large change is written.
        check_author(row, author, approved)
        # Written in the transaction of the revision, and only once: a second process finds no row.
        ended = {"revision": revision, "ended_at": timezone.now(), "ended_by": FUSEBOARD.name}
        mine = Schedule.objects.filter(pk=pk, state=ScheduleState.WAITING)
        if not mine.update(state=ScheduleState.APPLIED, **ended):
            raise _MadeAlready

    try:
        revision = apply_plan(
            environment=row.environment,
            plan=plan_from_document(row.document),
            expected_revision=None,
            reason=row.reason,
            actor=replace(author, origin="celery"),
            action="schedule.applied",
            check=lambda found: _check_needs(row, found),
            inside=made,
            # In one transaction: of two processes, one makes a request.
            proposed=lambda request: _wait(row, request, approved),
            approved_request=approved.pk if approved is not None else None,
        )
    except _MadeAlready:
        return False
    except EditsFrozen:
        # It waits, and is applied when the freeze ends.
        return False
    except proposals.Proposed as proposed:
        request = proposed.request.pk
        log.warning("schedule.proposed", environment=row.environment, schedule=pk, request=request)
    except (EditError, DataError, IntegrityError) as error:
        _fail(pk, str(error))
    else:
        applied.inc()
        log.info("schedule.applied", environment=row.environment, schedule=pk, revision=revision)
    return True


def _check_needs(row: Schedule, found: Difference) -> None:
    """Raise ``InvalidEdit`` if another person has changed since what its author relied on."""
    for change in found.changes:
        if row.needs == Needs.NEW and change.before is not None:
            text = f"Another person has created {change.kind} {change.name} since. Edit it instead."
            raise InvalidEdit({"document": [text]})
        if row.needs == Needs.PRESENT and change.before is None:
            text = f"Another person has removed {change.kind} {change.name} since."
            raise InvalidEdit({"document": [text]})
        if row.needs == Needs.PRESENT and row.base and change.kind in PREFIX:
            _check_limits(row, change)


def _check_limits(row: Schedule, change: Changed) -> None:
    """Check the limits that it adds: its form did, or it showed them as quotas of the tier."""
    before, after = change.before or {}, change.after or {}
    had, gets = (limits_in(PREFIX[change.kind], fields).keys() for fields in (before, after))
    if not gets - had:
        return
    shown = entity_as_of(row.environment, row.base, change.kind, change.name) or {}
    if lost := (gets - had) & limits_in(PREFIX[change.kind], shown).keys():
        text = f"{min(lost)} of {change.kind} {change.name} was removed, or ended, since."
        raise InvalidEdit({"document": [text]})
    if change.kind != "tenant" or not shown:
        return
    tiers = (shown["tier"], shown["tier"] if before["tier"] != after["tier"] else before["tier"])
    state = read_state(row.environment, tenants=())
    for moved in moved_quotas(row.environment, row.base, change.name, tiers, gets - had, state):
        text = (
            f"Quota {moved.name}, which tenant {change.name} inherited when this was scheduled, was changed"
            f" since in revision {moved.revision.number}. Edit the tenant again."
        )
        raise InvalidEdit({"document": [text]})


def _wait(row: Schedule, request: ChangeRequest, approved: ChangeRequest | None) -> None:
    """Mark the change as proposed: a person has to approve it, and has nothing to repair."""
    why = proposals.standing(approved).why_fewer if approved is not None else ""
    after = {"state": ScheduleState.PROPOSED, "change_request": request.pk}
    more = {"request": request.pk, "error": why[:1000]}
    if _end(row.pk, ScheduleState.PROPOSED, "schedule.proposed", after, **more) is None:
        raise _MadeAlready


def _fail(pk: int, error: str) -> None:
    """Mark the change as failed, because it is no longer valid. An operator has to look."""
    after = {"state": ScheduleState.FAILED, "error": error[:500]}
    row = _end(pk, ScheduleState.FAILED, "schedule.failed", after, error=error[:1000])
    if row is not None:
        failed.inc()
        log.error("schedule.failed", environment=row.environment, schedule=pk, error=error)


def _end(
    pk: int, state: ScheduleState, action: str, after: dict[str, Any], **columns: Any
) -> Schedule | None:
    """End a change that was not applied; ``None`` if another process ended it first."""
    with transaction.atomic():
        acting(FUSEBOARD)
        row = Schedule.objects.select_for_update().get(pk=pk)
        if row.state != ScheduleState.WAITING:
            return None
        ended = {"state": state, "ended_at": timezone.now(), "ended_by": FUSEBOARD.name, **columns}
        for name, value in ended.items():
            setattr(row, name, value)
        row.save(update_fields=list(ended))
        record(
            actor=FUSEBOARD,
            action=action,
            target_kind="schedule",
            target_name=f"{pk} {row.title}"[:200],
            before={"state": ScheduleState.WAITING},
            after=after,
            reason=row.reason,
            environment=row.environment,
        )
    return row


def announce() -> None:
    """Announce once what ends or begins soon: in the log, in the audit and on the dashboard.

    What was planned for a shorter time is announced in the last half of it: the person who has just planned
    it knows.
    """
    now = timezone.now()
    soon = now + timedelta(seconds=settings.ANNOUNCE_S)
    rows = Schedule.objects.filter(state="waiting", announced_at__isnull=True, due_at__lte=soon)
    rows = rows.filter(due_at__lte=now + (now - F("created_at")))
    for row in rows[:_AT_ONCE]:
        with transaction.atomic():
            acting(FUSEBOARD)
            if rows.filter(pk=row.pk).update(announced_at=now):
                name = f"{row.pk} {row.title}"
                _announce("schedule.due_soon", "schedule", name, row.due_at, row.environment)
    ending = TenantQuota.objects.filter(expires_at__lte=soon, expires_at__gt=now, announced_at__isnull=True)
    edited = Revision.objects.filter(
        environment=OuterRef("tenant__environment"), number=OuterRef("tenant__changed_revision")
    )
    ending = ending.alias(made=Subquery(edited.order_by("-epoch").values("at")[:1]))
    ending = ending.filter(Q(made=None) | Q(expires_at__lte=now + (now - F("made"))))
    for quota in ending.select_related("tenant")[:_AT_ONCE]:
        with transaction.atomic():
            acting(FUSEBOARD)
            if quota.expires_at and ending.filter(pk=quota.pk).update(announced_at=now):
                environment, key = quota.tenant.environment_id, quota.tenant.key
                _announce(
                    "tenant_quota.ends_soon", "tenant", key, quota.expires_at, environment, quota=quota.name
                )


def _announce(action: str, kind: str, name: str, at: datetime, environment: str, **more: str) -> None:
    log.warning(action, environment=environment, name=name, at=at.isoformat(), **more)
    record(
        actor=FUSEBOARD,
        action=action,
        target_kind=kind,
        target_name=name[:200],
        after={"at": at.isoformat(timespec="seconds"), **more},
        reason="Announced ahead of time.",
        environment=environment,
    )
