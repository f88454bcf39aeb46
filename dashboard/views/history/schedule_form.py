"""The field *Starts* of a form: the edit is stored, and made at that time."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse

from controlplane.accounts.permissions import environment_in
from controlplane.errors import InvalidEdit
from controlplane.schedules.edits import schedule_change
from controlplane.schedules.models import Needs, Schedule
from dashboard.forms import moment
from dashboard.hub import hub
from dashboard.reader import actor_of
from dashboard.undo import Saved, keep_saved


def schedule_form(
    request: HttpRequest,
    starts: str,
    document_at: Callable[[datetime], Mapping[str, Any]],
    *,
    what: str,
    needs: Needs = Needs.PRESENT,
) -> HttpResponse:
    """Schedule what a form would save now, and show the schedules.

    ``document_at`` returns the plan for the time. ``what`` names in the message what will change. Raises
    ``InvalidEdit`` with the fields of the form, and what ``document_at`` raises.
    """
    due_at = moment(starts, "starts")
    document = document_at(due_at)
    try:
        made = schedule_change(
            environment=environment_in(request),
            due_at=due_at,
            document=document,
            reason=request.POST.get("reason", ""),
            actor=actor_of(request),
            needs=needs,
        )
    except InvalidEdit as error:
        found = {"starts" if field == "due_at" else field: texts for field, texts in error.errors.items()}
        raise InvalidEdit(found) from error
    hub.nudge()
    keep_saved(request, saved_schedule(made, f"Change of {what}"))
    return redirect("schedules")


def saved_schedule(made: Schedule, what: str) -> Saved:
    """The notice after a change was scheduled. Its Undo cancels it."""
    text = f"{what} is scheduled for {made.due_at:%-d %B %H:%M} UTC."
    undo = {"act": "cancel", "schedule": str(made.pk), "reason": "Undo of a scheduled change"}
    return Saved(text, at=reverse("schedules"), undo=undo)
