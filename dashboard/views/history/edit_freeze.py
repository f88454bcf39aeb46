"""Freezes the environment for a time, so that only overrides are possible, or ends the freeze."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import require
from controlplane.editing.freeze import end_freeze, freeze_edits
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import MomentField
from dashboard.views.page import show


class FreezeForm(EditForm):
    until = MomentField()

    def save(self) -> str:
        freeze_edits(**self.given)
        return f"Edits are frozen until {self.cleaned_data['until']:%-d %B %H:%M} UTC."


class EndForm(EditForm):
    def save(self) -> str:
        end_freeze(**self.given)
        return "Edits are possible again."


@require_http_methods(["GET", "POST"])
@require("freeze_edits")
def edit_freeze(request: HttpRequest) -> HttpResponse:
    form = EndForm(request) if request.POST.get("act") == "end" else FreezeForm(request)
    return run_edit(form, page=_page, then="edit_freeze")


def _page(request: HttpRequest, **extra: Any) -> HttpResponse:
    return show(request, "edit_freeze", "edit_freeze.html", **extra)
