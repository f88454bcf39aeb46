from collections.abc import Iterable

from controlplane.audit.actor import Actor
from controlplane.editing.revise import Revision, revise
from controlplane.editing.rows.tenant_parents import keep_parents
from controlplane.editing.rows.versioned_rows import TenantEdit, find_tier
from controlplane.errors import InvalidEdit
from controlplane.policies.fields import tenant_fields
from controlplane.policies.models import Tenant
from controlplane.validation import Problems


def create_tenant(
    *,
    environment: str,
    tenant: str,
    tier: str,
    reason: str,
    actor: Actor,
    title: str = "",
    parent: str = "",
) -> int:
    new = [(tenant, tier, title)]
    return create_tenants(environment=environment, tenants=new, reason=reason, actor=actor, parent=parent)


def create_tenants(
    *,
    environment: str,
    tenants: Iterable[tuple[str, str, str]],
    reason: str,
    actor: Actor,
    parent: str = "",
) -> int:
    """Register tenants (key, tier, title) of one parent, all or none, as one revision."""
    tenants = list(tenants)
    problems = Problems()
    problems.reason(reason)
    for key, _, title in tenants:
        problems.new_key("tenant", key)
        problems.text("title", title, 200)
    problems.settle()
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        tiers = {name: find_tier(environment, name) for name in {tier for _, tier, _ in tenants}}
        known = {
            row.key: row
            for row in Tenant.objects.filter(
                environment_id=environment, key__in=[key for key, _, _ in tenants]
            )
        }
        for key, tier, title in tenants:
            row = known.get(key)
            if row is not None and not row.deleted:
                raise InvalidEdit({"tenant": ["A tenant with this id already exists."]})
            # A tenant that was removed returns with a higher version than before.
            row = row or Tenant(environment_id=environment, key=key, version=0)
            row.tier, row.title, row.suspended, row.deleted = tiers[tier], title, False, False
            row.parent = parent
            _save_new(revision, row)
            known[key] = row
        if parent:
            keep_parents(revision, {key for key, _, _ in tenants})
    return revision.number


def _save_new(revision: Revision, row: Tenant) -> None:
    row.changed_revision = revision.number
    row.version += 1
    row.save()
    after = tenant_fields(row)
    revision.audit("tenant.created", target_kind="tenant", target_name=row.key, before=None, after=after)
    revision.change("tenant", row.key, before=None, after=after)


def change_tier(
    *, environment: str, tenant: str, tier: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        edit.row.tier = find_tier(environment, tier)
        edit.finish("tenant.tier_changed")
    return revision.number


def suspend_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    """Refuse every request of the tenant until it is resumed."""
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        edit.row.suspended = True
        edit.finish("tenant.suspended")
    return revision.number


def resume_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        edit.row.suspended = False
        edit.finish("tenant.resumed")
    return revision.number


def remove_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    """Remove the tenant. It falls back to the default tier, like any unregistered tenant."""
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        edit.row.quotas.all().delete()
        edit.row.deleted = True
        edit.finish("tenant.removed")
        keep_parents(revision, {tenant})
    return revision.number


def move_tenant(
    *, environment: str, tenant: str, parent: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Give a tenant another parent, whose quotas its requests then spend too; empty for none.

    If its topmost parent changes, its counters start from zero: they belong to the topmost domain.
    """
    _check_reason(reason)
    with revise(environment=environment, actor=actor, reason=reason) as revision:
        edit = TenantEdit(revision, tenant, expected_version)
        edit.row.parent = parent
        edit.finish("tenant.moved")
        keep_parents(revision, {tenant})
    return revision.number


def _check_reason(reason: object) -> None:
    problems = Problems()
    problems.reason(reason)
    problems.settle()
