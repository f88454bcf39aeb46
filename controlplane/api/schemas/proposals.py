"""A change request as a document, and the response for an edit that became one."""

from collections.abc import Collection
from datetime import datetime
from typing import Literal

from django.http import HttpResponse, JsonResponse

from controlplane.api.schemas import FromObject
from controlplane.approvals import proposals
from controlplane.approvals.models import ChangeRequest


class RequestRow(FromObject):
    id: int
    state: Literal["open", "approved", "applied", "rejected", "withdrawn", "expired"]
    #: Increases when the request is rebased; an approval counts for one version.
    version: int
    #: The revision that its difference is based on.
    base: int
    action: str
    target: str
    reason: str
    author: str
    origin: str
    #: How many things of the configuration it changes.
    changed: int
    #: How many approvals it needs, and has.
    needed: int
    approvals: int
    #: The time when a scheduled change is due, once it is approved.
    due_at: datetime | None
    #: The revision that a rollback restores.
    restores: int | None
    #: The revision whose changes a revert undoes.
    reverts: int | None
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    ended_by: str
    ended_reason: str
    #: Its outcome.
    revision: int | None
    schedule: int | None


def accepted(row: ChangeRequest) -> HttpResponse:
    """202: the edit was accepted but not made. ``Location`` is the change request."""
    response = JsonResponse(row_of(row).model_dump(mode="json"), status=202)
    response.headers["Location"] = f"/api/v1/{row.environment}/requests/{row.pk}"
    return response


def row_of(row: ChangeRequest) -> RequestRow:
    if not isinstance(row.created_at, datetime):
        row.refresh_from_db()
    return rows_of([row])[0]


def rows_of(rows: Collection[ChangeRequest]) -> list[RequestRow]:
    """Documents of requests, with as many queries for many as for one."""
    standings = proposals.standings(rows)
    same = RequestRow.model_fields.keys() - {"needed", "approvals"}
    return [
        RequestRow.model_validate(
            {name: getattr(row, name) for name in same}
            | {"needed": standings[row.pk].needed, "approvals": standings[row.pk].agreed}
        )
        for row in rows
    ]
