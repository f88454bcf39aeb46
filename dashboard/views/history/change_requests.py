"""Changes that wait for approval: what each would change, who approved it, and the buttons."""

from functools import partial
from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.approvals import proposals, rules
from controlplane.approvals.authors import why_not_theirs
from controlplane.approvals.models import MAX_NEEDED, PENDING, Approval, ChangeRequest, RequestState
from controlplane.approvals.pending import pending_in
from controlplane.audit.action_words import proposal_words
from controlplane.change_requests import conflicts, decide
from controlplane.change_requests.rebase import rebase
from controlplane.errors import EditError, InvalidEdit
from controlplane.one_at_a_time import StillRunning, alone
from controlplane.phrases import count
from controlplane.usage.what_if import what_if_changed
from dashboard.edit_form import EditForm, run_edit
from dashboard.forms import SentNumberField
from dashboard.reader import one_at_a_time_as
from dashboard.tables.table_files import rows_drawn, rows_listed
from dashboard.views.history.tabs import change_tabs
from dashboard.views.page import HtmxHttpRequest, context_of, not_found
from dashboard.words.change_words import ChangeWords
from dashboard.words.changed_items import ChangedItem, TiersAsOf, TiersWith, changed_items

_PAST = 50
_MAX_PENDING = 100
_THINGS_PER_PAGE = 100

#: Things that decide which requests are refused, so that a replay can show a difference.
_REPLAYED = ("tenant", "tier", "template")

#: Button of a request -> the permission that it needs.
_ACTS = {
    "approve": "approve_change",
    "reject": "approve_change",
    "withdraw": "edit_quota",
    "rebase": "edit_quota",
    "apply": "edit_quota",
}


class ApprovalsForm(EditForm):
    needed = SentNumberField()

    def save(self) -> str:
        needed = rules.set_approvals(**self.given)
        environment = environment_in(self.request)
        # It has no Undo: to lower the number is an edit that needs approval.
        return (
            f"Every edit of {environment} needs {needed} approval{'s' * (needed != 1)} from now on."
            " To lower the number again, propose it here. That needs approval, too."
        )


class DecisionForm(EditForm):
    """A button of a request. ``reason`` is the comment beside it, which an approval does not need."""

    needs_reason = False

    version = SentNumberField(0)

    def save(self) -> str:
        about = {name: value for name, value in self.common.items() if name != "reason"}
        match self.act:
            case "approve":
                version, note = self.cleaned_data["version"], self.cleaned_data["reason"]
                row = decide.approve(expected_version=version, note=note, **about)
                return _approved_words(row)
            case "reject":
                decide.reject(**self.common)
                return "The request is rejected."
            case "withdraw":
                decide.withdraw(**self.common)
                return "The request is withdrawn."
            case "rebase":
                rebase(**about)
                return "The request is rebased on the current configuration. Its approvals are reset."
            case _:
                return self._applied(decide.apply(**about))

    def _applied(self, row: ChangeRequest) -> str:
        if row.revision is not None:
            self.then = reverse("revision", args=[row.revision])
            return f"Request {row.pk} was applied as revision {row.revision}."
        became = "is scheduled" if row.schedule is not None else "is in effect"
        return f"Request {row.pk} {became}."

    def refuse(self, error: EditError) -> int:
        if isinstance(error, decide.NotYours):
            super().refuse(InvalidEdit({"": [str(error)]}))
            return 403
        return super().refuse(error)


def _approved_words(row: ChangeRequest) -> str:
    missing = proposals.standing(row).missing
    if missing:
        return f"You approved the request. It needs {count(missing, 'more approval')}."
    return "You approved the request. Nothing has changed yet: its author, or another admin, applies it."


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def list_requests(request: HttpRequest) -> HttpResponse:
    """Pending requests, past ones, and how many approvals are needed."""
    return run_edit(ApprovalsForm(request), page=_list, then="requests", needs="set_approvals")


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def change_request(request: HttpRequest, number: int) -> HttpResponse:
    page, form = partial(_page, number=number), DecisionForm(request, request=number)
    if form.act not in _ACTS:
        return page(request)
    return run_edit(form, page=page, then=reverse("request", args=[number]), needs=_ACTS[form.act])


@require_GET
@require("approve_change")
def request_replay(request: HtmxHttpRequest, number: int) -> HttpResponse:
    """Replay the last days with what a request would change. One replay runs at a time for each person."""
    environment = environment_in(request)
    row = ChangeRequest.objects.filter(environment=environment, pk=number).first()
    if row is None:
        return _no_such_request(request)
    context: dict[str, Any] = {}
    try:
        with alone(one_at_a_time_as(request)):
            changes = {(each.kind, each.name): each.after for each in row.changes.all()}
            context["whatif"] = what_if_changed(environment, changes)
    except StillRunning:
        context["still_runs"] = True
    if not request.htmx:
        return _page(request, number, **context)
    return render(request, "dashboard/request_replay.html", {"row": row, **context})


def _no_such_request(request: HttpRequest) -> HttpResponse:
    return not_found(request, "No such request", "There is no change request with this number.")


def _list(request: HttpRequest, *, status: int = 200, **extra: Any) -> HttpResponse:
    environment = environment_in(request)
    rows = ChangeRequest.objects.filter(environment=environment)
    past = rows.exclude(state__in=PENDING).order_by("-ended_at", "-pk")[: rows_listed(request, _PAST)]
    needed = proposals.needed_in(environment)
    context = context_of(
        request,
        "requests",
        tabs=change_tabs(request, "requests"),
        waiting=_lines(request, rows.filter(state=RequestState.OPEN)),
        approved=_lines(request, rows.filter(state=RequestState.APPROVED)),
        count=pending_in(environment),
        past=[{"row": row, "words": proposal_words(row.action)} for row in past],
        needed=needed,
        choices=[("0", "None"), *map(str, range(1, MAX_NEEDED + 1))],
        chosen=extra.get("typed", {}).get("needed", str(needed)),
        approvers=rules.approvers(environment),
        **extra,
    )
    return render(request, "dashboard/requests.html", context, status=status)


def _lines(request: HttpRequest, rows: QuerySet[ChangeRequest]) -> list[dict[str, Any]]:
    """The newest of these requests, with as many queries for many as for one."""
    newest = list(rows.order_by("-pk")[: rows_listed(request, _MAX_PENDING)])
    standings, conflicting = proposals.standings(newest), conflicts.with_conflict(newest)
    return [
        {
            "row": row,
            "words": proposal_words(row.action),
            "standing": standings[row.pk],
            "conflict": row.pk in conflicting,
        }
        for row in newest
    ]


def _page(request: HttpRequest, number: int, *, status: int = 200, **extra: Any) -> HttpResponse:
    row = ChangeRequest.objects.filter(environment=environment_in(request), pk=number).first()
    if row is None:
        return _no_such_request(request)
    asked = request.GET.get("page", "1")
    page = max(1, int(asked)) if asked.isascii() and asked.isdigit() and len(asked) < 6 else 1
    most = rows_drawn(request, _THINGS_PER_PAGE)
    start = (page - 1) * most
    shown = row.changes.order_by("kind", "name")[start : start + most]
    tiers = TiersAsOf(row.environment, None if row.pending else row.base)
    things = changed_items(shown, tiers, TiersWith(tiers, row.changes.filter(kind="tier")))
    mine = request.user.get_username() in row.persons
    approved = list(row.approvals.order_by("at"))
    context = context_of(
        request,
        "requests",
        row=row,
        words=proposal_words(row.action, row.target),
        things=things + _setting(row),
        to_come=row.pending,
        previous=page - 1 if page > 1 else None,
        next=page + 1 if row.changed > start + most else None,
        standing=proposals.standing(row),
        approvals=approved,
        has_approved=any(
            each.person == request.user.get_username() and each.version == row.version for each in approved
        ),
        mine=mine,
        not_independent=_why_not(request, row, approved) if row.pending and not mine else "",
        may_withdraw=mine or not row.persons,
        replays=row.pending and row.changes.filter(kind__in=_REPLAYED).exists(),
        lost=why_not_theirs(row) if row.pending else "",
        changed_since=list(conflicts.changed_since(row)[:5]) if row.pending else [],
        **extra,
    )
    return render(request, "dashboard/request.html", context, status=status)


def _why_not(request: HttpRequest, row: ChangeRequest, approved: list[Approval]) -> str:
    """Why the reader cannot approve, though their role may."""
    by = [each.person for each in approved if each.version == row.version]
    return decide.not_independent(row, request.user.get_username(), by)


def _setting(row: ChangeRequest) -> list[ChangedItem]:
    """A request to lower the number of approvals, as a difference."""
    if row.lowers_to is None:
        return []
    before = (row.entries[0].get("before") or {}).get("needed") if row.entries else None
    line = ChangeWords("Approvals needed", "" if before is None else str(before), str(row.lowers_to))
    return [ChangedItem("environment", row.environment, "changed", [line])]
