from django.http import HttpRequest
from ninja import Router

from controlplane.api.schemas.edits_in import Environment, PageSize, RowId
from controlplane.api.schemas.operations_out import ChangeOut, RevisionDetail, RevisionPage, RevisionRow
from controlplane.approvals.models import ChangeRequest
from controlplane.errors import NotFound
from controlplane.policies.document import environment_of
from controlplane.policies.models import Revision

router = Router()

#: At most this many changes of one revision are listed; an import can have many more.
_SHOWN = 1_000


@router.get("", response=RevisionPage)
def list_revisions(
    request: HttpRequest, environment: Environment, before: RowId | None = None, limit: PageSize = 100
) -> RevisionPage:
    """Newest first; ``next`` is the ``before`` of the next page."""
    rows = Revision.objects.filter(environment=environment_of(environment).slug)
    if before:
        rows = rows.filter(number__lt=before)
    found = list(rows.order_by("-number")[: limit + 1])
    items = [RevisionRow.from_orm(row) for row in found[:limit]]
    return RevisionPage(items=items, next=items[-1].number if len(found) > limit else None)


@router.get("/{number}", response=RevisionDetail)
def get_revision(request: HttpRequest, environment: Environment, number: RowId) -> RevisionDetail:
    """Its changes, at most 1,000 of them."""
    row = Revision.objects.filter(environment=environment_of(environment).slug, number=number).first()
    if row is None:
        raise NotFound("revision", str(number))
    changes = [ChangeOut.from_orm(change) for change in row.changes.order_by("kind", "name")[:_SHOWN]]
    asked_for = ChangeRequest.objects.filter(environment=row.environment, revision=row.number).first()
    return RevisionDetail(
        **RevisionRow.from_orm(row).dict(),
        request=asked_for.pk if asked_for else None,
        approved_by=asked_for.approved_by if asked_for else [],
        changes=changes,
    )
