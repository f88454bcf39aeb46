from django.db.models import Prefetch, QuerySet
from django.http import HttpRequest, HttpResponse
from ninja import Router

from controlplane.api.auth import actor_of, needs
from controlplane.api.schemas import (
    Environment,
    PageSize,
    QuotaIn,
    QuotaOut,
    Reason,
    RevisionOut,
    Slug,
    Subject,
    TenantIn,
    TenantOut,
    TenantPage,
    Version,
)
from controlplane.api.versions import version_read
from controlplane.policies import edits
from controlplane.policies.document import environment_of
from controlplane.policies.errors import NotFound
from controlplane.policies.models import Tenant, TenantQuota

router = Router()


@router.get("", response=TenantPage)
def list_tenants(
    request: HttpRequest,
    environment: Environment,
    after: Subject | None = None,
    search: Subject | None = None,
    limit: PageSize = 100,
) -> TenantPage:
    """By key; ``search`` finds keys and titles that contain it."""
    rows = _tenants(environment)
    if search:
        rows = rows.filter(key__icontains=search) | rows.filter(title__icontains=search)
    if after:
        rows = rows.filter(key__gt=after)
    found = list(rows[: limit + 1])
    more = len(found) > limit
    return TenantPage(items=[_out(row) for row in found[:limit]], next=found[limit - 1].key if more else None)


@router.post("", response={201: RevisionOut}, auth=needs("edit_tenant"))
def create_tenant(request: HttpRequest, environment: Environment, tenant: TenantIn) -> RevisionOut:
    revision = edits.create_tenant(
        environment=environment,
        tenant=tenant.key,
        tier=tenant.tier,
        title=tenant.title,
        reason=tenant.reason,
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


@router.put("/{path:tenant}/quotas/{quota}", response=RevisionOut, auth=needs("edit_quota"))
def set_quota(
    request: HttpRequest, environment: Environment, tenant: Subject, quota: Slug, values: QuotaIn
) -> RevisionOut:
    """Give a tenant a quota of its own, in place of its tier's quota of that name."""
    revision = edits.set_tenant_quota(
        environment=environment,
        tenant=tenant,
        quota=quota,
        expected_version=version_read(request, values.expected_version),
        **values.model_dump(exclude={"expected_version"}),
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


@router.delete("/{path:tenant}/quotas/{quota}", response=RevisionOut, auth=needs("edit_quota"))
def remove_quota(
    request: HttpRequest,
    environment: Environment,
    tenant: Subject,
    quota: Slug,
    reason: Reason,
    expected_version: Version | None = None,
) -> RevisionOut:
    """Let the tier's quota of that name apply again."""
    revision = edits.remove_tenant_quota(
        environment=environment,
        tenant=tenant,
        quota=quota,
        expected_version=version_read(request, expected_version),
        reason=reason,
        actor=actor_of(request),
    )
    return RevisionOut(revision=revision)


@router.get("/{path:tenant}", response=TenantOut)
def get_tenant(
    request: HttpRequest, response: HttpResponse, environment: Environment, tenant: Subject
) -> TenantOut:
    row = _tenants(environment).filter(key=tenant).first()
    if row is None:
        raise NotFound("tenant", tenant)
    response["ETag"] = f'"{row.version}"'
    return _out(row)


def _tenants(environment: str) -> QuerySet[Tenant]:
    rows = Tenant.objects.filter(environment=environment_of(environment), deleted=False)
    quotas = Prefetch("quotas", queryset=TenantQuota.objects.order_by("name"))
    return rows.select_related("tier").prefetch_related(quotas).order_by("key")


def _out(row: Tenant) -> TenantOut:
    return TenantOut(
        key=row.key,
        title=row.title,
        tier=row.tier.name,
        suspended=row.suspended,
        version=row.version,
        quotas=[QuotaOut.from_orm(quota) for quota in row.quotas.all()],
    )
