"""Saved views: a list with its filters, order and range, under a name."""

from typing import Any
from urllib.parse import urlsplit

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from controlplane.accounts import saved_views as edits
from controlplane.accounts.permissions import environment_in, may, require_role
from controlplane.errors import InvalidEdit, NotFound
from dashboard.forms import whole
from dashboard.reader import actor_of
from dashboard.saved_views import address_of, list_at, views_of
from dashboard.views.page import bounded_text, context_of, text_parameter

_LONGEST_ADDRESS = 4_000


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def saved_views(request: HttpRequest) -> HttpResponse:
    """The views that the reader sees, and the form that saves or changes one."""
    if request.method != "POST":
        return _page(request)
    try:
        return _act(request)
    except InvalidEdit as error:
        return _page(request, errors=error.errors, typed=request.POST, status=422)
    except NotFound as missing:
        return _page(request, errors={"view": [str(missing)]}, status=404)


def _act(request: HttpRequest) -> HttpResponse:
    typed, act = request.POST, request.POST.get("act", "")
    common: dict[str, Any] = {"environment": environment_in(request), "actor": actor_of(request)}
    shares = may(request.user, "share_view", environment_in(request))
    shared = "shared" in typed
    if act == "save":
        _refuse_unless(shares or not shared)
        page, query = list_at(bounded_text(typed, "address", most=_LONGEST_ADDRESS), request)
        row = edits.save_view(name=typed.get("name", ""), page=page, query=query, shared=shared, **common)
        messages.success(request, f"View {row.name} is saved.")
        return redirect(address_of(row))
    view = whole(typed.get("view", ""), "view")
    match act:
        case "change":
            # An owner who may not share any more keeps what is shared, or stops sharing it.
            kept = any(one.id == view and one.mine and one.shared for one in views_of(request) or ())
            _refuse_unless(shares or kept or not shared)
            row = edits.change_view(view=view, name=typed.get("name", ""), shared=shared, **common)
            messages.success(request, f"View {row.name} is changed.")
        case "delete":
            messages.success(request, f"View {edits.delete_view(view=view, **common).name} is deleted.")
        case "unshare":
            _refuse_unless(shares)
            row = edits.stop_sharing(view=view, **common)
            messages.success(request, f"View {row.name} is no longer shared.")
        case _:
            raise InvalidEdit({"act": ["Choose an action."]})
    return redirect("saved_views")


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
        "shares": may(request.user, "share_view", environment_in(request)),
        "name": typed.get("name", changed.name if changed else ""),
        "is_shared": "shared" in typed if typed else bool(changed and changed.shared),
        "address": typed.get("address", "") or _given_address(request),
        "most": edits.MOST_VIEWS,
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
