"""The keys of the counters of limits, as pods build them."""

from collections.abc import Mapping

from controlplane.policies.models import Tenant
from fuseboard.contract import keys


def counter_key(
    environment: str, limit: str, *, tenant: str = "", dependency: str = "", counted: Mapping[str, str]
) -> str:
    """The counter of a quota of ``tenant``, of a vendor limit of ``dependency``, of a tenant's quota on
    calls to ``dependency``, or of a limit of callers. ``counted``: dimension -> value, in their order.
    """
    if tenant and dependency:
        return keys.dependency_quota(environment, dependency, tenant, limit)
    if tenant:
        root = _root(environment, tenant)
        values = tuple(counted.values())
        if root == tenant:
            return keys.tenant_quota(environment, tenant, limit, *values)
        return keys.member_quota(environment, root, tenant, limit, *values)
    if dependency:
        return keys.vendor_limit(environment, dependency, limit)
    if not counted:
        return keys.service_limit(environment, limit)
    digest = keys.values_digest(tuple(f"{dimension}={value}" for dimension, value in counted.items()))
    return keys.subject_limit(environment, digest, limit)


def _root(environment: str, tenant: str) -> str:
    """The topmost tenant above it, whose domain has its counters."""
    root, seen = tenant, {tenant}
    while True:
        rows = Tenant.objects.filter(environment=environment, deleted=False)
        parent = rows.filter(key=root).values_list("parent", flat=True).first()
        if not parent or parent in seen:
            return root
        if not rows.filter(key=parent).exists():
            return root
        root = parent
        seen.add(parent)
