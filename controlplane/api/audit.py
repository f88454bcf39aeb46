from typing import Annotated

from django.http import HttpRequest
from ninja import Router
from pydantic import Field

from controlplane.api.schemas import EntryOut, EntryPage, Environment, PageSize, Subject
from controlplane.audit.models import Entry
from controlplane.policies.document import environment_of

router = Router()


@router.get("", response=EntryPage)
def list_entries(
    request: HttpRequest,
    environment: Environment,
    before: Annotated[int, Field(ge=1, le=2**62)] | None = None,
    target: Subject | None = None,
    limit: PageSize = 100,
) -> EntryPage:
    """Newest first; ``next`` is the ``before`` of the next page."""
    rows = Entry.objects.filter(environment=environment_of(environment).slug).order_by("-id")
    if before:
        rows = rows.filter(id__lt=before)
    if target:
        rows = rows.filter(target_name=target)
    found = list(rows[: limit + 1])
    more = len(found) > limit
    items = [EntryOut.from_orm(row) for row in found[:limit]]
    return EntryPage(items=items, next=items[-1].id if more else None)
