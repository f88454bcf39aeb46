"""Scheduled changes."""

from typing import Any, Literal

from django.http import HttpRequest
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.pages import newest_page
from controlplane.api.schemas.bulk_in import ScheduleIn
from controlplane.api.schemas.edits_in import Environment, PageSize, Reason, ReasonIn, RowId
from controlplane.api.schemas.operations_out import ScheduleOut, SchedulePage
from controlplane.errors import find
from controlplane.policies.document import environment_of
from controlplane.schedules.edits import acknowledge_failure, cancel_schedule, schedule_change
from controlplane.schedules.models import Schedule

router = Router()


@router.get("", response=SchedulePage)
def list_schedules(
    request: HttpRequest,
    environment: Environment,
    state: Literal["waiting", "applied", "failed", "cancelled", "proposed"] | None = None,
    before: RowId | None = None,
    limit: PageSize = 100,
) -> dict[str, Any]:
    """Newest first; ``next`` is the ``before`` of the next page."""
    rows = Schedule.objects.filter(environment=environment_of(environment).slug)
    if state:
        rows = rows.filter(state=state)
    return newest_page(rows, limit, before=before)


@router.post("", response={201: ScheduleOut}, auth=needs("edit_quota"))
def schedule(request: HttpRequest, environment: Environment, values: ScheduleIn) -> ScheduleOut:
    """Schedule a plan. It must be valid now, and is checked again when it is due."""
    row = schedule_change(
        environment=environment_of(environment).slug, actor=actor_of(request), **values.model_dump()
    )
    return _out(row)


@router.get("/{number}", response=ScheduleOut)
def get_schedule(request: HttpRequest, environment: Environment, number: RowId) -> Schedule:
    rows = Schedule.objects.filter(environment=environment_of(environment).slug)
    return find(rows, "schedule", pk=number)


@router.delete("/{number}", response=ScheduleOut, auth=needs("edit_quota"))
def cancel(request: HttpRequest, environment: Environment, number: RowId, reason: Reason) -> ScheduleOut:
    """Cancel it."""
    row = cancel_schedule(
        environment=environment_of(environment).slug,
        schedule=number,
        reason=reason,
        actor=actor_of(request),
    )
    return _out(row)


@router.post("/{number}/acknowledge", response=ScheduleOut, auth=needs("edit_quota"))
def acknowledge(
    request: HttpRequest, environment: Environment, number: RowId, values: ReasonIn
) -> ScheduleOut:
    """Acknowledge a scheduled change that failed."""
    row = acknowledge_failure(
        environment=environment_of(environment).slug,
        schedule=number,
        reason=values.reason,
        actor=actor_of(request),
    )
    return _out(row)


def _out(row: Schedule) -> ScheduleOut:
    # Includes the values that the database has filled in.
    row.refresh_from_db()
    return ScheduleOut.model_validate(row)
