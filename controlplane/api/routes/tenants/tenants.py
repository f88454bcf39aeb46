from contextlib import nullcontext
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from ninja import Router

from controlplane.api.http.auth import actor_of, needs
from controlplane.api.http.versions import RemovalInQuery, edit_arguments, find_version, version_read
from controlplane.api.schemas.configuration_out import EffectiveOut, RevisionOut, TenantOut, TenantPage
from controlplane.api.schemas.edits_in import (
    Environment,
    Flag,
    PageSize,
    Slug,
    Subject,
    TenantChange,
    TenantIn,
)
from controlplane.api.schemas.limits import TenantQuotaIn
from controlplane.approvals.proposals import needed_in
from controlplane.editing import edits
from controlplane.errors import InvalidEdit
from controlplane.policies.document import environment_of
from controlplane.policies.effective import EffectiveValue, effective
from controlplane.policies.models import Tenant, TenantQuota
from controlplane.policies.tenant_search import first_tenants, search_tenants

router = Router()

_QUOTAS = Prefetch("quotas", queryset=TenantQuota.objects.order_by("name"))


@router.get("", response=TenantPage)
def list_tenants(
    request: HttpRequest,
    environment: Environment,
    after: Subject | None = None,
    search: Subject | None = None,
    prefix: Subject | None = None,
    tier: Slug | None = None,
    parent: Subject | None = None,
    suspended: Flag | None = None,
    limit: PageSize = 100,
) -> dict[str, Any]:
    """By key. ``search`` finds keys and titles that contain it, ``prefix`` keys that begin with it."""
    rows = Tenant.objects.filter(environment=environment_of(environment), deleted=False)
    if prefix:
        rows = rows.filter(key__startswith=prefix)
    if tier:
        rows = rows.filter(tier__name=tier)
    if parent:
        rows = rows.filter(parent=parent)
    if suspended is not None:
        rows = rows.filter(suspended=suspended)
    if search:
        rows = search_tenants(rows, search)
    if after:
        rows = rows.filter(key__gt=after)
    found = list(first_tenants(rows, "key", limit + 1).prefetch_related(_QUOTAS))
    more = len(found) > limit
    return {"items": found[:limit], "next": found[limit - 1].key if more else None}


@router.post("", response={201: RevisionOut}, auth=needs("edit_tenant"))
def create_tenant(request: HttpRequest, environment: Environment, tenant: TenantIn) -> RevisionOut:
    revision = edits.create_tenant(
        environment=environment,
        tenant=tenant.key,
        actor=actor_of(request),
        **tenant.model_dump(exclude={"key"}),
    )
    return RevisionOut(revision=revision)


@router.put("/{path:tenant}/quotas/{quota}", response=RevisionOut, auth=needs("edit_quota"))
def set_quota(
    request: HttpRequest, environment: Environment, tenant: Subject, quota: Slug, values: TenantQuotaIn
) -> RevisionOut:
    """Override a quota of the tenant's tier, temporarily or permanently. 422 without any value."""
    given = edit_arguments(request, values)
    lasts = given.pop("expires_in_s")
    given["expires_at"] = timezone.now() + timedelta(seconds=lasts) if lasts is not None else None
    revision = edits.set_tenant_quota(environment=environment, tenant=tenant, quota=quota, **given)
    return RevisionOut(revision=revision)


@router.delete("/{path:tenant}/quotas/{quota}", response=RevisionOut, auth=needs("edit_quota"))
def remove_quota(
    request: HttpRequest, environment: Environment, tenant: Subject, quota: Slug, removal: RemovalInQuery
) -> RevisionOut:
    """Remove the override: the tier's quota applies again."""
    revision = edits.remove_tenant_quota(
        environment=environment, tenant=tenant, quota=quota, **edit_arguments(request, removal)
    )
    return RevisionOut(revision=revision)


@router.get("/{path:tenant}/effective", response=list[EffectiveOut])
def get_effective(request: HttpRequest, environment: Environment, tenant: Subject) -> list[EffectiveValue]:
    """Every effective value and its source; for an unregistered tenant, those of the default tier."""
    return effective(environment, tenant)


@router.patch("/{path:tenant}", response=RevisionOut, auth=needs("edit_tenant"))
def change_tenant(
    request: HttpRequest, environment: Environment, tenant: Subject, values: TenantChange
) -> RevisionOut:
    """Move the tenant to another tier or parent, suspend or resume it."""
    version = version_read(request, values.expected_version)
    common: dict[str, Any] = {
        "environment": environment,
        "tenant": tenant,
        "reason": values.reason,
        "actor": actor_of(request),
    }
    revision = 0
    several = sum(value is not None for value in (values.tier, values.parent, values.suspended)) > 1
    if several and needed_in(environment):
        said = "Edits need approval here, one at a time: send tier, parent and suspended separately."
        raise InvalidEdit({"tier": [said]})
    # An edit that becomes a change request must not be rolled back together with it.
    with transaction.atomic() if several else nullcontext():
        if values.tier is not None:
            revision = edits.change_tier(tier=values.tier, expected_version=version, **common)
            version += 1
        if values.parent is not None:
            revision = edits.move_tenant(parent=values.parent, expected_version=version, **common)
            version += 1
        if values.suspended is not None:
            change = edits.suspend_tenant if values.suspended else edits.resume_tenant
            revision = change(expected_version=version, **common)
    if not revision:
        raise InvalidEdit({"tier": ["Nothing to change: send tier, parent or suspended."]})
    return RevisionOut(revision=revision)


@router.delete("/{path:tenant}", response=RevisionOut, auth=needs("edit_tenant"))
def remove_tenant(
    request: HttpRequest, environment: Environment, tenant: Subject, removal: RemovalInQuery
) -> RevisionOut:
    """Remove the tenant: it falls back to the default tier, like any unregistered tenant."""
    revision = edits.remove_tenant(environment=environment, tenant=tenant, **edit_arguments(request, removal))
    return RevisionOut(revision=revision)


@router.get("/{path:tenant}", response=TenantOut)
def get_tenant(
    request: HttpRequest, response: HttpResponse, environment: Environment, tenant: Subject
) -> Tenant:
    return find_version(response, _tenants(environment), "tenant", key=tenant)


def _tenants(environment: str) -> QuerySet[Tenant]:
    rows = Tenant.objects.filter(environment=environment_of(environment), deleted=False)
    return rows.select_related("tier").prefetch_related(_QUOTAS).order_by("key")
