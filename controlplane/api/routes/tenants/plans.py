"""The configuration as a whole: as a file, as revisions, and bulk edits of tenants."""

from typing import Any, Literal

from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.idempotency import changes_nothing, reads_file
from controlplane.api.http.one_at_a_time import one_at_a_time
from controlplane.api.http.uploads import KINDS, upload_of
from controlplane.api.http.versions import revision_read
from controlplane.api.schemas.bulk_in import BulkIn, RollbackIn
from controlplane.api.schemas.configuration_out import RevisionOut
from controlplane.api.schemas.edits_in import (
    Environment,
    ExpectedRevision,
    Flag,
    Gateways,
    HeaderName,
    Reason,
)
from controlplane.api.schemas.operations_out import PlannedOut
from controlplane.editing.edits.bulk import TenantChange, TenantFilter, bulk_edit, preview_bulk_edit
from controlplane.editing.edits.rollback import rollback
from controlplane.editing.plans import Difference, apply_plan, difference, export_csv, export_plan, read_plan
from controlplane.policies.nginx import export_nginx

router = Router()

_EXAMPLE = "tenants:\n  acme:\n    tier: pro\n    quotas:\n      requests: {limit: 1000, window_s: 60}\n"
FILE: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {kind: {"schema": {"type": "string"}} for kind in KINDS}
        | {KINDS[0]: {"schema": {"type": "string"}, "example": _EXAMPLE}},
    }
}
_EXPORTED: dict[str, Any] = {
    "responses": {
        200: {
            "description": "The file",
            "content": {
                KINDS[0]: {"schema": {"type": "object"}},
                KINDS[-1]: {"schema": {"type": "string"}},
                "text/plain": {"schema": {"type": "string"}},
            },
        }
    }
}


@router.post("/plan", response=PlannedOut, auth=needs("edit_quota"), openapi_extra=FILE)
@changes_nothing
@one_at_a_time
def plan(request: HttpRequest, environment: Environment, prune: Flag = False) -> PlannedOut:
    """Preview what applying this file would change. ``prune`` removes what the file's sections do not
    name.

    Each caller gets one plan, apply, preview, or what-if at a time.
    """
    stream, _ = upload_of(request)
    return planned(difference(environment, read_plan(stream), prune=prune))


@router.post("/apply", response=RevisionOut, auth=needs("edit_quota"), openapi_extra=FILE)
@reads_file
@one_at_a_time
def apply(
    request: HttpRequest,
    environment: Environment,
    reason: Reason,
    expected_revision: ExpectedRevision | None = None,
    prune: Flag = False,
) -> RevisionOut:
    """Apply a file as one revision, completely or not at all.

    Applying it again changes nothing and returns the current revision. Each caller gets one plan, apply,
    preview, or what-if at a time.
    """
    stream, _ = upload_of(request)
    revision = apply_plan(
        environment=environment,
        plan=read_plan(stream),
        expected_revision=revision_read(request, expected_revision),
        reason=reason,
        actor=actor_of(request),
        prune=prune,
    )
    return RevisionOut(revision=revision)


@router.get("/export", auth=needs("export_configuration"), openapi_extra=_EXPORTED)
def export(
    request: HttpRequest,
    environment: Environment,
    format: Literal["yaml", "csv", "nginx"] = "yaml",  # noqa: A002
    header: HeaderName = "X-Tenant",
    gateways: Gateways = 1,
) -> HttpResponse:
    """The whole configuration as YAML; tenants and their quotas as CSV; or request limits for nginx.

    For nginx, ``header`` names the header with the tenant, and limits are divided by ``gateways``.
    """
    if format == "nginx":
        parts, kind, ending = (
            export_nginx(environment, header=header, gateways=gateways),
            "text/plain",
            "conf",
        )
    elif format == "yaml":
        parts, kind, ending = export_plan(environment), KINDS[0], "yaml"
    else:
        parts, kind, ending = export_csv(environment), KINDS[-1], "csv"
    response = HttpResponse("".join(parts), content_type=kind)
    response["Content-Disposition"] = f'attachment; filename="{environment}.{ending}"'
    return response


@router.post("/rollback", response=RevisionOut, auth=needs("edit_quota"))
def roll_back(request: HttpRequest, environment: Environment, values: RollbackIn) -> RevisionOut:
    """Roll back to an earlier revision by making a new one. Overrides of breakers stay as they are."""
    revision = rollback(
        environment=environment,
        to_revision=values.to_revision,
        expected_revision=revision_read(request, values.expected_revision),
        reason=values.reason,
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


@router.post("/bulk", response=RevisionOut, auth=needs("edit_tenant"))
def edit_many(request: HttpRequest, environment: Environment, values: BulkIn) -> RevisionOut:
    """Change every tenant that the filter matches, as one revision, or none."""
    revision = bulk_edit(
        environment=environment,
        **_bulk(values),
        expected_revision=revision_read(request, values.expected_revision),
        reason=values.reason,
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


@router.post("/bulk/preview", response=PlannedOut, auth=needs("edit_tenant"))
@changes_nothing
@one_at_a_time
def preview_many(request: HttpRequest, environment: Environment, values: BulkIn) -> PlannedOut:
    """Preview that change. Each caller gets one plan, apply, preview, or what-if at a time."""
    return planned(preview_bulk_edit(environment=environment, **_bulk(values)))


def _bulk(values: BulkIn) -> dict[str, Any]:
    change = values.change.model_dump()
    change["remove_quotas"] = tuple(change["remove_quotas"])
    chosen = values.filter.model_dump()
    chosen["keys"] = tuple(chosen["keys"])
    return {"filter": TenantFilter(**chosen), "change": TenantChange(**change)}


def planned(found: Difference) -> PlannedOut:
    return PlannedOut(
        revision=found.revision,
        changes=len(found.changes),
        **found.counts,
        text=found.to_text(),
        advice=found.advice,
    )
