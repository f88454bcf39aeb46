from typing import Annotated, Any, Literal

from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Query, Router
from pydantic import BeforeValidator, Field

from controlplane.accounts.permissions import reads_of_people
from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.pages import newest_page
from controlplane.api.http.parsing import QueryIn
from controlplane.api.schemas.edits_in import (
    Environment,
    Moment,
    PageSize,
    ReasonIn,
    RowId,
    Slug,
    Subject,
    digits,
)
from controlplane.api.schemas.operations_out import EntryOut, EntryPage
from controlplane.audit.export import CONTENT_TYPES as _KINDS
from controlplane.audit.export import export
from controlplane.audit.models import Entry
from controlplane.audit_export.skip import skip_refused
from controlplane.audit_export.waiting import WEBHOOK
from controlplane.policies.document import environment_of

router = Router()

#: Entries in one file of the export; the next file has more.
_EXPORTED = 10_000


class SkipIn(ReasonIn):
    sequence: Annotated[int, Field(ge=1, le=2**53, description="The number of the entry in its chain.")]


#: Lookup -> value; ``None`` for a filter that was not given.
Filters = dict[str, object]
_LOOKUPS = {
    "before": "id__lt",
    "kind": "target_kind",
    "target": "target_name",
    "since": "at__gte",
    "until": "at__lt",
}


class EntriesQuery(QueryIn):
    """The entries that a question is about."""

    before: RowId | None = None
    actor: Subject | None = None
    owner: Subject | None = None
    token: Slug | None = None
    request_id: Subject | None = None
    trace_id: Slug | None = None
    action: Slug | None = None
    kind: Slug | None = None
    target: Subject | None = None
    since: Moment | None = None
    until: Moment | None = None

    @property
    def filters(self) -> Filters:
        return {_LOOKUPS.get(name, name): value for name, value in self}


@router.get("", response=EntryPage)
def list_entries(
    request: HttpRequest,
    environment: Environment,
    wanted: Query[EntriesQuery],
    limit: PageSize = 100,
) -> dict[str, Any]:
    """Newest first; ``next`` is the ``before`` of the next page.

    ``owner`` finds what a person did with tokens, and ``token`` takes a selector. ``request_id`` finds what a
    request changed: it is the header ``X-Request-Id`` of its answer.
    Includes entries of people and of tokens for all environments, if no environment is closed to the caller.
    """
    return newest_page(_entries(request, environment, wanted.filters), limit)


@router.get(
    "/export",
    auth=needs("export_audit"),
    openapi_extra={
        "responses": {
            200: {
                "description": "Oldest first, with the hashes that chain them",
                "content": {
                    kind.partition(";")[0]: {"schema": {"type": "string"}} for kind in _KINDS.values()
                },
            }
        }
    },
)
def export_entries(
    request: HttpRequest,
    environment: Environment,
    after: Annotated[int, BeforeValidator(digits), Field(ge=0, le=2**62)] = 0,
    since: Moment | None = None,
    until: Moment | None = None,
    format: Literal["csv", "jsonl"] = "jsonl",  # noqa: A002
) -> HttpResponse:
    """Up to 10,000 entries after the one with the id ``after``, oldest first.

    While there are more, ``Link`` with ``rel="next"`` is the next address.
    """
    rows = _entries(request, environment, {"id__gt": after, "at__gte": since, "at__lt": until})
    ids = list(rows.order_by("id").values_list("id", flat=True)[: _EXPORTED + 1])
    more, ids = len(ids) > _EXPORTED, ids[:_EXPORTED]
    text = "".join(export(rows.filter(id__lte=ids[-1] if ids else 0), format))
    response = HttpResponse(text, content_type=_KINDS[format])
    response["Content-Disposition"] = f'attachment; filename="audit-{environment}.{format}"'
    if more:
        query = request.GET.copy()
        query["after"] = str(ids[-1])
        response["Link"] = f'<{request.path}?{query.urlencode()}>; rel="next"'
    return response


@router.post("/export/skip", response=EntryOut, auth=needs("export_audit"))
def skip_entry(request: HttpRequest, environment: Environment, values: SkipIn) -> EntryOut:
    """Leave out the entry that the SIEM refuses, so that later ones arrive. Replies with the entry about it.

    404 if the SIEM does not refuse this entry now, and 422 before it did so several times.
    """
    entry = skip_refused(
        target=WEBHOOK,
        environment=environment_of(environment).slug,
        sequence=values.sequence,
        reason=values.reason,
        actor=actor_of(request),
    )
    entry.refresh_from_db()
    return EntryOut.model_validate(entry)


def _entries(request: HttpRequest, environment: str, filters: Filters) -> QuerySet[Entry]:
    chains = [environment_of(environment).slug]
    if reads_of_people(request.auth):  # type: ignore[attr-defined]
        chains.append("")  # The chain of people and of tokens for all environments.
    rows = Entry.objects.filter(environment__in=chains)
    return rows.filter(**{field: value for field, value in filters.items() if value is not None})
