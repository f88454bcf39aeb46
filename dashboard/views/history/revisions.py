"""Revisions: what each one changed, and how to restore it."""

from functools import partial
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.approvals.models import ChangeRequest
from controlplane.editing import edits
from controlplane.editing.edits.revert import is_revertible
from controlplane.editing.edits.revert_rights import own_dependencies
from controlplane.editing.edits.rollback import changes_back
from controlplane.editing.plans.difference import Difference, summary
from controlplane.policies.history import first_recorded
from controlplane.policies.models import Environment, Revision
from controlplane.policies.undone import undone
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import SentNumberField, sent_number
from dashboard.tables.list_filters import PERIODS, as_query, given_filters, having, in_period
from dashboard.tables.table_files import rows_drawn
from dashboard.views.history.logged import logged_revisions
from dashboard.views.history.tabs import change_tabs
from dashboard.views.page import context_of, not_found, owned_by
from dashboard.words.changed_items import ChangedItem, TiersAsOf, changed_items, revision_words

_PER_PAGE = 50
_THINGS_PER_PAGE = 100
_SEARCHED = ("actor", "target", "reason", "action")


@require_GET
@require_role("viewer")
def revisions(request: HttpRequest) -> HttpResponse:
    filters = given_filters(request, "q", "period", "only", "sort")
    rows = having(
        Revision.objects.filter(environment=environment_in(request)), filters.get("q", ""), _SEARCHED
    )
    rows = in_period(rows, filters, "at")
    oldest_first = filters.get("sort") == "revision"
    if (before := sent_number(request.GET.get("before", ""), -1)) >= 0:
        rows = rows.filter(**{f"number__{'gt' if oldest_first else 'lt'}": before})
    only = filters.get("only") == "changes"
    if only:
        rows = rows.filter(changed__gt=0)
    most = rows_drawn(request, _PER_PAGE)
    ordered = rows.order_by("number" if oldest_first else "-number")[: most + 1]
    found = list(logged_revisions(environment_in(request), ordered))
    shown = found[:most]
    context = context_of(
        request,
        "revisions",
        tabs=change_tabs(request, "revisions"),
        lines=shown,
        older=as_query(filters, before=str(shown[-1].revision)) if len(found) > most else "",
        only=only,
        filters=filters,
        periods=PERIODS,
        oldest_first=oldest_first,
        all_link=as_query(filters, only=""),
        clear_link=as_query(filters, q="", period=""),
        changes_link=as_query(filters, only="changes"),
        order_link=as_query(filters, sort="" if oldest_first else "revision"),
    )
    context["own_dependencies"] = owned_by(environment_in(request), context["administered"])
    return render(request, "dashboard/revisions.html", context)


class RollbackForm(EditForm):
    seen = SentNumberField()

    def save(self) -> int:
        made = edits.rollback(expected_revision=self.cleaned_data["seen"], **self.common)
        self.then = reverse("revision", args=[made])
        return made


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def revision(request: HttpRequest, number: int) -> HttpResponse:
    """The difference that one revision made; with ``back``, what a rollback to it would change."""
    row = Revision.objects.filter(environment=environment_in(request), number=number).first()
    if row is None:
        return not_found(request, "No such revision", "There is no revision with this number.")
    form = RollbackForm(request, to_revision=row.number)
    return run_edit(form, page=partial(_page, row=row), needs="edit_quota")


def _page(request: HttpRequest, row: Revision, *, status: int = 200, **extra: Any) -> HttpResponse:
    head = Environment.objects.values_list("revision", flat=True).get(pk=environment_in(request))
    changes = row.changes.order_by("kind", "name")
    asked = request.GET.get("page", "1")
    number = int(asked) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 1
    most = rows_drawn(request, _THINGS_PER_PAGE)
    start = (max(1, number) - 1) * most
    first = first_recorded(environment_in(request)) or 0
    possible = first <= row.number < head
    wants_back = possible and ("back" in request.GET or request.method == "POST")
    back = (
        Difference(environment_in(request), head, changes_back(environment_in(request), row.number))
        if wants_back
        else None
    )
    asked_for = ChangeRequest.objects.filter(environment=environment_in(request), revision=row.number).first()
    things = changed_items(changes[start : start + most], *_tiers_around(row))
    context = context_of(
        request,
        "revisions",
        row=row,
        request_made=asked_for,
        approved_by=asked_for.approved_by if asked_for else [],
        words=revision_words(row),
        undone=undone(environment_in(request), [row.number]).get(row.number),
        things=things,
        previous=number - 1 if number > 1 else None,
        next=number + 1 if row.changed > start + most else None,
        head=head,
        possible=possible,
        revertible=is_revertible(row),
        back=back,
        own=own_dependencies(request.user, environment_in(request), row.number),
        back_summary=summary(back.counts) if back else "",
        back_things=_items_back(back, row) if back else [],
        **extra,
    )
    return render(request, "dashboard/revision.html", context, status=status)


def _tiers_around(row: Revision) -> tuple[TiersAsOf, TiersAsOf]:
    return TiersAsOf(row.environment, row.number - 1), TiersAsOf(row.environment, row.number)


def _items_back(back: Difference, row: Revision) -> list[ChangedItem]:
    """The first items of a rollback: from the newest revision to this one."""
    return changed_items(
        back.changes[:20], TiersAsOf(row.environment, None), TiersAsOf(row.environment, row.number)
    )
