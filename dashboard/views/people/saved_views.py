"""Saved views: a list with its filters, order and range, under a name."""

from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts import saved_views as edits
from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.errors import InvalidEdit
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import TextField, WholeField
from dashboard.tables.saved_views import address_of, list_at, views_of
from dashboard.undo import Saved
from dashboard.views.page import context_of, text_parameter

_LONGEST_ADDRESS = 4_000
_GONE = "This view was deleted, or is not shared any more."


class SaveForm(EditForm):
    name = TextField()
    address = TextField(_LONGEST_ADDRESS)
    shared = forms.BooleanField(required=False)
    reason = None

    def save(self) -> Saved:
        _refuse_unless(_shares(self.request) or not self.cleaned_data["shared"])
        given = self.given
        given["page"], given["query"] = list_at(given.pop("address"), self.request)
        row = edits.save_view(**given)
        self.then = address_of(row)
        undo = {"act": "delete", "view": str(row.pk)}
        return Saved(f"View {row.name} is saved.", at=reverse("saved_views"), undo=undo)


class ChangeForm(EditForm):
    missing = _GONE

    view = WholeField()
    name = TextField()
    shared = forms.BooleanField(required=False)
    reason = None

    def save(self) -> Saved:
        shared, view = self.cleaned_data["shared"], self.cleaned_data["view"]
        # An owner who may not share any more keeps what is shared, or stops sharing it.
        before = next((one for one in views_of(self.request) or () if one.id == view and one.mine), None)
        kept = before is not None and before.shared
        _refuse_unless(_shares(self.request) or kept or not shared)
        text = f"View {edits.change_view(**self.given).name} is changed."
        if before is None:
            return Saved(text)
        undo = {"act": "change", "view": str(view), "name": before.name}
        return Saved(text, at=reverse("saved_views"), undo=undo | _shared(before.shared))


class EndForm(EditForm):
    missing = _GONE

    view = WholeField()
    reason = None

    def save(self) -> Saved:
        if self.act == "delete":
            view = self.cleaned_data["view"]
            before = next((one for one in views_of(self.request) or () if one.id == view and one.mine), None)
            text = f"View {edits.delete_view(**self.given).name} is deleted."
            if before is None:
                return Saved(text)
            undo = {"act": "save", "name": before.name, "address": before.href}
            shared = _shared(before.shared and _shares(self.request))
            return Saved(text, at=reverse("saved_views"), undo=undo | shared)
        _refuse_unless(_shares(self.request))
        # Its owner keeps it. Only the owner can share it again.
        return Saved(f"View {edits.stop_sharing(**self.given).name} is no longer shared.")


def _shared(yes: bool) -> dict[str, str]:
    """Return what the checkbox sends."""
    return {"shared": "on"} if yes else {}


_ACTS = {"save": SaveForm, "change": ChangeForm, "delete": EndForm, "unshare": EndForm}


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def saved_views(request: HttpRequest) -> HttpResponse:
    """The views that the reader sees, and the form that saves or changes one."""
    return run_edit(chosen_form(request, _ACTS), page=_page, then="saved_views")


def _shares(request: HttpRequest) -> bool:
    return may(request.user, "share_view", environment_in(request))


def _refuse_unless(allowed: bool) -> None:
    if not allowed:
        raise PermissionDenied("To share views needs the role operator.")


def _page(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    context = context_of(request, "views", **extra)
    found = views_of(request)
    views = found or []
    typed = extra.get("typed") or {}
    chosen = typed.get("view", "") or text_parameter(request, "view")
    changed = next((one for one in views if one.mine and str(one.id) == chosen), None)
    context |= {
        "known": found is not None,
        "own": [one for one in views if one.mine],
        "others": [one for one in views if not one.mine],
        "changed": changed,
        "shares": _shares(request),
        "name": typed.get("name", changed.name if changed else ""),
        "is_shared": "shared" in typed if typed else bool(changed and changed.shared),
        "address": typed.get("address", "") or _given_address(request),
        # A page with errors begins at the first.
        "focused": not extra.get("errors") and bool(changed or _given_address(request)),
        "most": edits.MAX_VIEWS,
        "longest_name": edits.LONGEST_NAME,
    }
    return render(request, "dashboard/saved_views.html", context, status=status)


def _given_address(request: HttpRequest) -> str:
    """The list that the reader comes from, as the browser had it: filters change it without a request.

    Without that header, as the server sent it.
    """
    linked = text_parameter(request, "address", most=_LONGEST_ADDRESS)
    for address in (request.headers.get("Referer", "")[:_LONGEST_ADDRESS], linked):
        try:
            list_at(address, request)
        except InvalidEdit:
            continue
        parts = urlsplit(address)
        return f"{parts.path}?{parts.query}" if parts.query else parts.path
    return linked
