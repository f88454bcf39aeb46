"""Change requests: edits that wait for approval, and how many approvals an environment requires."""

from datetime import datetime
from typing import Annotated, Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI, Router, Schema
from pydantic import Field

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.pages import newest_page
from controlplane.api.http.problems import problem
from controlplane.api.schemas.edits_in import Environment, PageSize, ReasonIn, RowId, Strict, Text
from controlplane.api.schemas.operations_out import ChangeOut
from controlplane.api.schemas.proposals import RequestRow, accepted, row_of, rows_of
from controlplane.approvals import proposals, rules
from controlplane.approvals.models import MAX_NEEDED, ChangeRequest
from controlplane.change_requests import conflicts, decide
from controlplane.change_requests.rebase import rebase
from controlplane.errors import find
from controlplane.policies.document import environment_of

router = Router()
rule = Router()

#: At most this many changes of one request are listed; an import can have many more.
_SHOWN = 1_000


class RequestPage(Schema):
    items: list[RequestRow]
    next: int | None


class ApprovalOut(Schema):
    actor: str
    at: datetime
    #: The version of the request that was approved; approvals of earlier versions do not count.
    version: int
    note: str


class RequestDetail(RequestRow):
    #: Whether its targets changed after it was made: it then needs a rebase.
    conflict: bool
    approved_by: list[ApprovalOut]
    changes: list[ChangeOut]


class ApproveIn(Strict):
    #: The version of the request that you have read.
    expected_version: Annotated[int, Field(ge=1, le=2**31 - 1)]
    note: Annotated[Text, Field(max_length=500)] = ""


class RuleIn(ReasonIn):
    needed: Annotated[int, Field(ge=0, le=MAX_NEEDED)]


class RuleOut(Schema):
    #: How many people besides the author must approve an edit; 0 for none.
    needed: int
    #: People who may approve; they cannot approve their own requests.
    approvers: list[str]


@rule.get("", response=RuleOut)
def get_rule(request: HttpRequest, environment: Environment) -> RuleOut:
    """How many approvals every edit of the configuration needs."""
    slug = environment_of(environment).slug
    return RuleOut(needed=proposals.needed_in(slug), approvers=rules.approvers(slug))


@rule.put("", response=RuleOut, auth=needs("set_approvals"))
def set_rule(request: HttpRequest, environment: Environment, values: RuleIn) -> RuleOut:
    """A higher number applies at once; a lower one needs approval like an edit."""
    slug = environment_of(environment).slug
    needed = rules.set_approvals(
        environment=slug, needed=values.needed, reason=values.reason, actor=actor_of(request)
    )
    return RuleOut(needed=needed, approvers=rules.approvers(slug))


@router.get("", response=RequestPage)
def list_requests(
    request: HttpRequest,
    environment: Environment,
    state: Literal["open", "approved", "applied", "rejected", "withdrawn", "expired"] | None = None,
    before: RowId | None = None,
    limit: PageSize = 100,
) -> dict[str, Any]:
    """Newest first; ``next`` is the ``before`` of the next page."""
    rows = ChangeRequest.objects.filter(environment=environment_of(environment).slug)
    if state:
        rows = rows.filter(state=state)
    page = newest_page(rows, limit, before=before)
    return page | {"items": rows_of(page["items"])}


@router.get("/{number}", response=RequestDetail)
def get_request(request: HttpRequest, environment: Environment, number: RowId) -> RequestDetail:
    """Its changes, at most 1,000 of them, and its approvals."""
    rows = ChangeRequest.objects.filter(environment=environment_of(environment).slug)
    row = find(rows, "change request", pk=number)
    return RequestDetail(
        **row_of(row).model_dump(),
        conflict=row.pending and conflicts.changed_since(row).exists(),
        approved_by=[ApprovalOut.model_validate(each) for each in row.approvals.order_by("at")],
        changes=[ChangeOut.model_validate(each) for each in row.changes.order_by("kind", "name")[:_SHOWN]],
    )


@router.post("/{number}/approve", response=RequestRow, auth=needs("approve_change"))
def approve(request: HttpRequest, environment: Environment, number: RowId, values: ApproveIn) -> RequestRow:
    """Approve the version you have read. A token acts in the name of its owner."""
    row = decide.approve(
        environment=environment,
        request=number,
        expected_version=values.expected_version,
        note=values.note,
        actor=actor_of(request),
    )
    return row_of(row)


@router.post("/{number}/reject", response=RequestRow, auth=needs("approve_change"))
def reject(request: HttpRequest, environment: Environment, number: RowId, values: ReasonIn) -> RequestRow:
    """Reject it, with a reason."""
    row = decide.reject(
        environment=environment, request=number, reason=values.reason, actor=actor_of(request)
    )
    return row_of(row)


@router.post("/{number}/withdraw", response=RequestRow, auth=needs("edit_quota"))
def withdraw(request: HttpRequest, environment: Environment, number: RowId, values: ReasonIn) -> RequestRow:
    """Withdraw your own request."""
    row = decide.withdraw(
        environment=environment, request=number, reason=values.reason, actor=actor_of(request)
    )
    return row_of(row)


@router.post("/{number}/rebase", response=RequestRow, auth=needs("edit_quota"), summary="Rebase")
def make_anew(request: HttpRequest, environment: Environment, number: RowId) -> RequestRow:
    """Rebase it onto the newest configuration; approvals are reset."""
    return row_of(rebase(environment=environment, request=number, actor=actor_of(request)))


@router.post("/{number}/apply", response=RequestRow, auth=needs("edit_quota"))
def apply(request: HttpRequest, environment: Environment, number: RowId) -> RequestRow:
    """Turn it into the revision, or the schedule, that it asks for."""
    return row_of(decide.apply(environment=environment, request=number, actor=actor_of(request)))


def install(api: NinjaAPI) -> None:
    """Responses for edits that became requests, and for people who may not decide about them."""

    def waits(request: HttpRequest, error: Any) -> HttpResponse:
        return accepted(error.request)

    def refused(request: HttpRequest, error: Any) -> HttpResponse:
        return problem(403, str(error))

    api.add_exception_handler(proposals.Proposed, waits)
    api.add_exception_handler(decide.NotYours, refused)
