from collections.abc import Callable, Iterable
from typing import NamedTuple

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_thing import ThingEdit, save_call
from controlplane.editing.revise import Revision, revise
from controlplane.editing.rows.tenant_parents import keep_parents
from controlplane.errors import InvalidEdit, NotFound
from controlplane.policies.conflicts import check_version
from controlplane.policies.fields import tenant_fields
from controlplane.policies.models import Tenant, Tier
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
        tiers = {name: _tier(environment, name) for name in {tier for _, tier, _ in tenants}}
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
    edit = ThingEdit(
        environment=environment, kind="tenant", name=tenant, typed={"tier": tier}, version=expected_version
    )
    return save_call(edit, reason=reason, actor=actor, action="tenant.tier_changed", refers={"tier": tier})


def suspend_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    """Refuse every request of the tenant until it is resumed."""
    typed = {"suspended": True}
    edit = ThingEdit(
        environment=environment, kind="tenant", name=tenant, typed=typed, version=expected_version
    )
    return save_call(edit, reason=reason, actor=actor, action="tenant.suspended")


def resume_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    typed = {"suspended": False}
    edit = ThingEdit(
        environment=environment, kind="tenant", name=tenant, typed=typed, version=expected_version
    )
    return save_call(edit, reason=reason, actor=actor, action="tenant.resumed")


def move_tenant(
    *, environment: str, tenant: str, parent: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Give a tenant another parent, whose quotas its requests then spend too; empty for none.

    If its topmost parent changes, its counters start from zero: they belong to the topmost domain.
    """

    def moved(row: Tenant) -> None:
        row.parent = parent

    edit = _Edit(environment, tenant, expected_version, "tenant.moved")
    return _save_and_check_parents(edit, moved, reason=reason, actor=actor)


def remove_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    """Remove the tenant. It falls back to the default tier, like any unregistered tenant."""

    def removed(row: Tenant) -> None:
        row.quotas.all().delete()
        row.deleted = True

    edit = _Edit(environment, tenant, expected_version, "tenant.removed")
    return _save_and_check_parents(edit, removed, reason=reason, actor=actor)


class _Edit(NamedTuple):
    environment: str
    tenant: str
    expected_version: int | None
    action: str


def _save_and_check_parents(
    edit: _Edit, change: Callable[[Tenant], None], *, reason: str, actor: Actor
) -> int:
    """Write one tenant, and check the parents of all: those below it may have none then, or too many."""
    problems = Problems()
    problems.reason(reason)
    problems.settle()
    with revise(environment=edit.environment, actor=actor, reason=reason) as revision:
        rows = Tenant.objects.select_related("tier").filter(environment_id=edit.environment, deleted=False)
        row = rows.filter(key=edit.tenant).first()
        if row is None:
            raise NotFound("tenant", edit.tenant)
        before = tenant_fields(row)
        named = {"target_kind": "tenant", "target_name": edit.tenant}
        check_version(environment=edit.environment, **named, expected=edit.expected_version, now=before)
        change(row)
        row.changed_revision, row.version = revision.number, row.version + 1
        row.save()
        after = tenant_fields(row)
        revision.audit(edit.action, **named, before=before, after=after)
        revision.change("tenant", edit.tenant, before=before, after=None if row.deleted else after)
        keep_parents(revision, {edit.tenant})
    return revision.number


def _tier(environment: str, name: str) -> Tier:
    row = Tier.objects.filter(environment_id=environment, name=name).first()
    if row is None:
        raise NotFound("tier", name)
    return row
