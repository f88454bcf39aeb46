from typing import Any

from controlplane.audit.actor import Actor
from controlplane.editing.edits.edit_entity import EntityEdit, remove_entity, save_call
from controlplane.errors import NotFound


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
    """Register a tenant. One that was removed returns with a higher version than before."""
    typed = {"tier": tier, "title": title, "suspended": False, "parent": parent}
    edit = EntityEdit(environment, "tenant", tenant, typed=typed, creates=True)
    missing = {"tier": NotFound("tier", tier)}
    return save_call(edit, reason=reason, actor=actor, action="tenant.created", refers=missing)


def change_tier(
    *, environment: str, tenant: str, tier: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    edit = _edit(environment, tenant, expected_version, tier=tier)
    missing = {"tier": NotFound("tier", tier)}
    return save_call(edit, reason=reason, actor=actor, action="tenant.tier_changed", refers=missing)


def suspend_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    """Refuse every request of the tenant until it is resumed."""
    edit = _edit(environment, tenant, expected_version, suspended=True)
    return save_call(edit, reason=reason, actor=actor, action="tenant.suspended")


def resume_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    edit = _edit(environment, tenant, expected_version, suspended=False)
    return save_call(edit, reason=reason, actor=actor, action="tenant.resumed")


def move_tenant(
    *, environment: str, tenant: str, parent: str, expected_version: int | None, reason: str, actor: Actor
) -> int:
    """Give a tenant another parent, whose quotas its requests then spend too; empty for none.

    If its topmost parent changes, its counters start from zero: they belong to the topmost domain.
    """
    edit = _edit(environment, tenant, expected_version, parent=parent)
    return save_call(edit, reason=reason, actor=actor, action="tenant.moved")


def remove_tenant(
    *, environment: str, tenant: str, reason: str, actor: Actor, expected_version: int | None = None
) -> int:
    """Remove the tenant. It falls back to the default tier, like any unregistered tenant."""
    return remove_entity(
        environment=environment,
        kind="tenant",
        name=tenant,
        reason=reason,
        actor=actor,
        version=expected_version,
        kept=("tier", "title", "suspended", "parent"),
    )


def _edit(environment: str, tenant: str, version: int | None, **typed: Any) -> EntityEdit:
    return EntityEdit(environment, "tenant", tenant, typed=typed, version=version)
