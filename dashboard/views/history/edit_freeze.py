"""Freezes the environment for a time, so that only overrides are possible, or ends the freeze."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.editing.freeze import end_freeze, freeze_edits
from controlplane.policies.document import environment_of
from controlplane.policies.models import Environment
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import MomentField
from dashboard.undo import Saved
from dashboard.views.page import show


class FreezeForm(EditForm):
    until = MomentField()

    def save(self) -> Saved:
        before = environment_of(environment_in(self.request))
        freeze_edits(**self.given)
        text = f"Edits are frozen until {self.cleaned_data['until']:%-d %B %H:%M} UTC."
        return Saved(text, at=reverse("edit_freeze"), undo=_undo(before))


class EndForm(EditForm):
    def save(self) -> Saved:
        before = environment_of(environment_in(self.request))
        end_freeze(**self.given)
        return Saved("Edits are possible again.", at=reverse("edit_freeze"), undo=_undo(before))


def _undo(before: Environment) -> dict[str, str]:
    """The form that brings back the freeze that was there before, with its reason, or ends the new one."""
    until = before.frozen_until
    if until is None or until <= timezone.now():
        return {"act": "end", "reason": "Undo of a freeze of edits"}
    return {"act": "freeze", "until": until.isoformat(), "reason": before.frozen_reason}


@require_http_methods(["GET", "POST"])
@require("freeze_edits")
def edit_freeze(request: HttpRequest) -> HttpResponse:
    form = EndForm(request) if request.POST.get("act") == "end" else FreezeForm(request)
    return run_edit(form, page=_page, then="edit_freeze")


def _page(request: HttpRequest, **extra: Any) -> HttpResponse:
    return show(request, "edit_freeze", "edit_freeze.html", **extra)
