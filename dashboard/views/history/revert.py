"""Reverts what one revision changed, after a preview that names what stays."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.editing import edits
from controlplane.editing.edits.revert import Check, Chosen, Reverted
from controlplane.editing.edits.revert_rights import own_dependencies
from controlplane.errors import EditConflict, InvalidEdit, NotFound
from controlplane.one_at_a_time import StillRunning, alone
from controlplane.policies.document import environment_of
from controlplane.policies.models import Revision
from dashboard.edit_form import EditForm, Errors, run_edit
from dashboard.forms import SentNumberField, TextsField
from dashboard.reader import check_reverts, one_at_a_time_as
from dashboard.views.page import context_of, not_found, text_parameter
from dashboard.words.changed_items import items_to_come, revision_words

#: The page lists so many of the things that a revert changes.
_SHOWN = 20
#: A revision that changed more is not previewed: it is merged once, when it is reverted.
_PREVIEWED = 1_000
_RUNNING = "Your earlier revert or replay still runs. Try again in a few seconds."


@dataclass(frozen=True)
class _Preview:
    """The effect of a revert, or why it is not possible."""

    found: Reverted | None = None
    errors: dict[str, list[str]] | None = None
    #: The present revision, if there is too much to preview; 0 otherwise.
    large: int = 0
    #: If the reader may not make all of it: dependencies that they may revert one by one.
    own: tuple[str, ...] = ()


class RevertForm(EditForm):
    missing_status = 409

    seen = SentNumberField()
    #: Units that another edit has changed since, and that go back nevertheless.
    anyway = TextsField()

    def save(self) -> int | HttpResponse:
        number, chosen = self.known["number"], _chosen(self.request)
        anyway = self.cleaned_data["anyway"] if chosen else ()
        with alone(one_at_a_time_as(self.request)):
            if chosen and anyway:
                chosen = _with(environment_in(self.request), number, chosen, anyway)
            made = edits.revert(
                things=chosen,
                on_conflict="overwrite" if anyway else "keep",
                expected_revision=self.cleaned_data["seen"],
                **self.common,
            )
        if not made.changes:
            messages.info(self.request, f"Nothing to do: revision {number} is already undone.")
            return redirect("revision", number=number)
        self.then = _back_to(chosen) or reverse("revision", args=[made.revision])
        return made.revision


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def revert(request: HttpRequest, number: int) -> HttpResponse:
    """Preview the revert of a revision, or of one thing that it changed; with POST, make it."""
    check = check_reverts(request, number)
    row = Revision.objects.filter(environment=environment_in(request), number=number).first()
    if row is None:
        return not_found(request, "No such revision", "There is no revision with this number.")
    page = partial(_page, row=row, check=check)
    if request.method != "POST":
        return page(request)
    form = RevertForm(request, number=number, check=check)
    try:
        return run_edit(form, page=page)
    except StillRunning:
        return page(request, typed=form.data, errors={"revision": [_RUNNING]}, status=429)
    except PermissionDenied:
        return page(request, typed=form.data, status=403)


def _with(environment: str, number: int, chosen: Chosen, anyway: Sequence[str]) -> Chosen:
    """Add units that another edit has changed to those that the revert restores by itself."""
    found = edits.preview_revert(environment=environment, number=number, things=chosen)
    thing = next(iter(chosen))
    return {thing: [*(unit.unit for unit in found.reverted), *anyway]}


def _chosen(request: HttpRequest) -> Chosen | None:
    """Return the thing that the address names; ``None`` for the whole revision."""
    kind, name = text_parameter(request, "kind", most=16), text_parameter(request, "name")
    return {(kind, name): ()} if kind and name else None


def _back_to(chosen: Chosen | None) -> str | None:
    for kind, name in chosen or ():
        if kind == "tenant":
            return reverse("tenant", query={"key": name})
    return None


def _preview(request: HttpRequest, row: Revision, check: Check) -> _Preview:
    if row.changed > _PREVIEWED and not _chosen(request):
        return _Preview(large=environment_of(environment_in(request)).revision)
    try:
        with alone(one_at_a_time_as(request)):
            found = edits.preview_revert(
                environment=environment_in(request), number=row.number, things=_chosen(request), check=check
            )
        return _Preview(found)
    except StillRunning:
        return _Preview(errors={"revision": [_RUNNING]})
    except InvalidEdit as error:
        return _Preview(errors=error.errors)
    except NotFound as missing:
        return _Preview(errors={"revision": [str(missing)]})
    except PermissionDenied as refused:
        own = own_dependencies(request.user, environment_in(request), row.number)
        return _Preview(errors={"revision": [str(refused)]}, own=tuple(own))


def _page(
    request: HttpRequest,
    row: Revision,
    check: Check,
    *,
    typed: Any = None,
    errors: Errors | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    preview = _preview(request, row, check)
    found = preview.found
    context = context_of(
        request,
        "revisions",
        row=row,
        words=revision_words(row),
        only=next(iter(_chosen(request) or ()), None),
        found=found,
        large=preview.large,
        own=preview.own,
        things=items_to_come(row.environment, found.changes, _SHOWN) if found else [],
        more=max(0, len(found.changes) - _SHOWN) if found else 0,
        errors=errors or preview.errors,
        conflict=conflict,
        reason=typed.get("reason", "") if typed else "",
        anyway=typed.getlist("anyway") if typed else [],
    )
    return render(request, "dashboard/revert.html", context, status=403 if preview.own else status)
