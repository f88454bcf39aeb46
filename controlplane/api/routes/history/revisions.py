from typing import Any

from django.http import HttpRequest
from ninja import Router

from controlplane.api.http.auth import actor_of, check_reverts, needs
from controlplane.api.http.idempotency import changes_nothing
from controlplane.api.http.one_at_a_time import one_at_a_time
from controlplane.api.http.pages import newest_page
from controlplane.api.http.versions import revision_read
from controlplane.api.schemas.bulk_in import RevertIn
from controlplane.api.schemas.edits_in import Environment, PageSize, RowId
from controlplane.api.schemas.operations_out import (
    ChangeOut,
    KeptUnitOut,
    RevertedOut,
    RevisionDetail,
    RevisionPage,
    RevisionRow,
    UnitOut,
)
from controlplane.approvals.models import ChangeRequest
from controlplane.editing.edits.revert import Reverted, preview_revert, revert
from controlplane.errors import find
from controlplane.policies.document import environment_of
from controlplane.policies.models import Revision

router = Router()

#: At most this many changes of one revision are listed; an import can have many more.
_SHOWN = 1_000


@router.get("", response=RevisionPage)
def list_revisions(
    request: HttpRequest, environment: Environment, before: RowId | None = None, limit: PageSize = 100
) -> dict[str, Any]:
    """Newest first; ``next`` is the ``before`` of the next page."""
    rows = Revision.objects.filter(environment=environment_of(environment).slug)
    return newest_page(rows, limit, before=before, key="number")


@router.get("/{number}", response=RevisionDetail)
def get_revision(request: HttpRequest, environment: Environment, number: RowId) -> RevisionDetail:
    """One revision, who approved it, and at most 1,000 of its changes."""
    rows = Revision.objects.filter(environment=environment_of(environment).slug)
    row = find(rows, "revision", number=number)
    changes = [ChangeOut.model_validate(change) for change in row.changes.order_by("kind", "name")[:_SHOWN]]
    asked_for = ChangeRequest.objects.filter(environment=row.environment, revision=row.number).first()
    return RevisionDetail(
        **RevisionRow.model_validate(row).model_dump(),
        request=asked_for.pk if asked_for else None,
        approved_by=asked_for.approved_by if asked_for else [],
        changes=changes,
    )


@router.post("/{number}/revert", response=RevertedOut, auth=needs("view"))
@one_at_a_time
def revert_revision(
    request: HttpRequest, environment: Environment, number: RowId, values: RevertIn
) -> RevertedOut:
    """Undo what this revision changed, as a new revision. By default, later changes of the same values stay.

    ``on_conflict`` chooses otherwise. ``things[].units`` selects single values of a thing. Overrides of
    breakers stay as they are. Each caller gets one plan, apply, revert, preview, or what-if at a time. This
    needs the role admin; an admin of one service can revert changes of that service's dependencies only.
    """
    check = check_reverts(request, number)
    found = revert(
        environment=environment,
        number=number,
        **_selection(values),
        expected_revision=revision_read(request, values.expected_revision),
        reason=values.reason,
        actor=actor_of(request),
        check=check,
    )
    return _reverted(found)


@router.post("/{number}/revert/preview", response=RevertedOut, auth=needs("view"))
@changes_nothing
@one_at_a_time
def preview_revert_of_revision(
    request: HttpRequest, environment: Environment, number: RowId, values: RevertIn
) -> RevertedOut:
    """Preview that revert. Each caller gets one plan, apply, revert, preview, or what-if at a time."""
    check = check_reverts(request, number)
    return _reverted(
        preview_revert(environment=environment, number=number, **_selection(values), check=check)
    )


def _selection(values: RevertIn) -> dict[str, Any]:
    things = None
    if values.things:
        things = {(each.kind, each.name): each.units for each in values.things}
    return {"things": things, "on_conflict": values.on_conflict}


def _reverted(found: Reverted) -> RevertedOut:
    lists = (found.reverted, found.already, found.kept)
    return RevertedOut(
        revision=found.revision,
        reverted=[UnitOut.model_validate(unit) for unit in found.reverted[:_SHOWN]],
        already=found.already[:_SHOWN],
        kept=[KeptUnitOut.model_validate(unit) for unit in found.kept[:_SHOWN]],
        left_off=sum(max(0, len(units) - _SHOWN) for units in lists),
    )
