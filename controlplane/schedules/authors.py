"""The authors of scheduled changes, and whether they may still make them."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from django.db.models import F, Func, Q, QuerySet, TextField, Value
from django.db.models.functions import Cast

from controlplane.accounts.authors import RightsLost, lost_rights
from controlplane.accounts.permissions import may
from controlplane.approvals.authors import why_not_theirs
from controlplane.approvals.models import ChangeRequest
from controlplane.audit.actor import Actor
from controlplane.audit.models import Entry
from controlplane.audit.record import actor_of
from controlplane.schedules.models import Schedule, ScheduleState


def authors_of(rows: Collection[Schedule]) -> dict[int, Actor]:
    """Number -> author of each change, with one query."""
    entries = _scheduled().filter(number__in=[str(row.pk) for row in rows]).order_by("-pk")
    made = {entry.target_name.partition(" ")[0]: actor_of(entry) for entry in entries}
    unknown = Actor(name="", role="", origin="form")
    return {row.pk: replace(made.get(str(row.pk), unknown), name=row.actor, role=row.role) for row in rows}


def waiting_by(username: str) -> QuerySet[Schedule]:
    """The changes that the person, or a token of theirs, scheduled and that are not due yet."""
    by_token = _scheduled().filter(owner=username).values("number")
    rows = Schedule.objects.filter(state=ScheduleState.WAITING).annotate(number=Cast("pk", TextField()))
    return rows.filter(Q(actor=username) | Q(actor__startswith="token ", number__in=by_token))


def _scheduled() -> Any:
    """Entries of the audit with the number of the change: the name of their target begins with it.

    mypy does not know this field in the type of a query.
    """
    number = Func(F("target_name"), Value(" "), Value(1), function="split_part", output_field=TextField())
    entries = Entry.objects.filter(action="change.scheduled", target_kind="schedule")
    return entries.annotate(number=number)


def why_not_theirs_now(environment: str, author: Actor, approved: ChangeRequest | None) -> str:
    """Why its author may not make the change now; empty if they may. ``approved`` is its change request."""
    if approved is not None:
        return why_not_theirs(approved)
    return lost_rights(
        author,
        lambda user: may(user, "edit_quota", environment),
        did="scheduled it",
        needs="the role admin",
    )


def check_author(row: Schedule, author: Actor, approved: ChangeRequest | None) -> None:
    """Raise ``RightsLost`` when its author may not make the change any more."""
    if lost := why_not_theirs_now(row.environment, author, approved):
        raise RightsLost(f"{lost} Nothing was changed. Another admin has to schedule it again.")
