"""Saved views: a list with its filters, order and range, under a name."""

from typing import Any
from urllib.parse import urlsplit

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_http_methods

from controlplane.accounts import saved_views as edits
from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.errors import InvalidEdit
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import TextField, WholeField
from dashboard.tables.saved_views import address_of, list_at, views_of
from dashboard.views.page import context_of, text_parameter

_LONGEST_ADDRESS = 4_000
_GONE = "This view was deleted, or is not shared any more."


class SaveForm(EditForm):
    name = TextField()
    address = TextField(_LONGEST_ADDRESS)
    shared = forms.BooleanField(required=False)
    reason = None

    def save(self) -> str:
        _refuse_unless(_shares(self.request) or not self.cleaned_data["shared"])
        given = self.given
        given["page"], given["query"] = list_at(given.pop("address"), self.request)
        row = edits.save_view(**given)
        self.then = address_of(row)
        return f"View {row.name} is saved."


class ChangeForm(EditForm):
    missing = _GONE

    view = WholeField()
    name = TextField()
    shared = forms.BooleanField(required=False)
    reason = None

    def save(self) -> str:
        shared, view = self.cleaned_data["shared"], self.cleaned_data["view"]
        # An owner who may not share any more keeps what is shared, or stops sharing it.
        kept = any(one.id == view and one.mine and one.shared for one in views_of(self.request) or ())
        _refuse_unless(_shares(self.request) or kept or not shared)
        return f"View {edits.change_view(**self.given).name} is changed."


class EndForm(EditForm):
    missing = _GONE

    view = WholeField()
    reason = None

    def save(self) -> str:
        if self.act == "delete":
            return f"View {edits.delete_view(**self.given).name} is deleted."
        _refuse_unless(_shares(self.request))
        return f"View {edits.stop_sharing(**self.given).name} is no longer shared."


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
