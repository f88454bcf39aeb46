"""The tenants above a tenant, with the quotas that its requests spend there, and its members."""

from dataclasses import dataclass

from controlplane.policies.models import Tenant
from dashboard.live.tenant import QuotaRow, find_tenant, quota_rows


@dataclass(frozen=True, kw_only=True)
class Parent:
    tenant: Tenant
    quotas: list[QuotaRow]


def parents(tenant: Tenant) -> list[Parent]:
    """The nearest parent first."""
    found: list[Parent] = []
    above = _above(tenant)
    while above is not None and above.key not in {parent.tenant.key for parent in found}:
        found.append(Parent(tenant=above, quotas=quota_rows(above, {})))
        above = _above(above)
    return found


def members(tenant: Tenant) -> int:
    rows = Tenant.objects.filter(environment=tenant.environment_id, parent=tenant.key, deleted=False)
    return rows.count()


def _above(tenant: Tenant) -> Tenant | None:
    return find_tenant(tenant.environment_id, tenant.parent) if tenant.parent else None
