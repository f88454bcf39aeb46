from controlplane.audit.actor import Actor
from controlplane.editing.plans.apply import apply_plan
from controlplane.editing.plans.plan import Plan
from controlplane.policies.fields import Fields, limits_in
from controlplane.policies.limits import columns_of_edit
from controlplane.policies.protection import (
    CALL,
    POD,
    PROTECTION,
    completed,
    protection_in,
    without_protection,
)
from controlplane.policies.state import EntityKey, read_budgets, read_state
from controlplane.spending.budget_fields import NOT_RAISED

_OWN = ("default_tier", "tuning", PROTECTION, "subject_limits")
_SECTIONS = (*_OWN, "template", "tier", "dependency", "model", "account", "budget", "descriptors")


def copy_configuration(
    *, source: str, environment: str, reason: str, actor: Actor, with_tenants: bool = False
) -> int:
    """Copy the configuration of another environment, as one revision. Return the revision.

    Tiers, dependencies, models, accounts, budgets, rules for Envoy, limits of callers without a tenant,
    protection and timings become the same. Those that only ``environment`` has are removed. Its tenants stay
    with their budgets, unless tenants are copied too. Overrides of breakers are not copied, because they are
    not configuration. Raises of budgets are not copied either: each is an exception for some minutes in its
    environment.
    """
    state = read_state(source, tenants=None if with_tenants else set())
    plan = Plan(sections=set(_SECTIONS))
    if not with_tenants:
        state = {thing: fields for thing, fields in state.items() if not _is_of_a_tenant(thing, fields)}
        present = read_budgets(environment).items()
        plan.things |= {thing: fields for thing, fields in present if _is_of_a_tenant(thing, fields)}
    for (kind, name), fields in state.items():
        said = _differences(fields)
        if kind == "budget":
            said |= NOT_RAISED
        if kind in ("environment", "dependency"):
            # Every value is copied: an older row lacks some, and a new one would get others.
            protection = protection_in(fields)
            shape = POD if kind == "environment" else CALL
            said[PROTECTION] = completed(protection, shape) if protection else "off"
        if kind == "dependency":
            said.setdefault("breaker.window_calls", 0)
        plan.things[kind, "" if kind == "environment" else name] = said
    if with_tenants:
        plan.sections.add("tenant")
    return apply_plan(
        environment=environment,
        plan=plan,
        expected_revision=None,
        reason=reason,
        actor=actor,
        prune=True,
        action="configuration.copied",
    )


def _is_of_a_tenant(thing: EntityKey, fields: Fields) -> bool:
    return thing[0] == "budget" and bool(fields["tenant"])


def _differences(fields: Fields) -> Fields:
    """Return the plan that makes another environment the same."""
    said = without_protection(fields)
    for prefix in ("quotas", "vendor_limits", "subject_limits"):
        limits = limits_in(prefix, fields)
        said = {field: value for field, value in said.items() if not field.startswith(f"{prefix}.")}
        for name, columns in limits.items():
            # After a temporary quota, the previous quota of the other environment applies, not of this one.
            kept = {
                column: value for column, value in columns_of_edit(columns).items() if column != "returns_to"
            }
            said |= {f"{prefix}.{name}.{column}": value for column, value in kept.items()}
    return said
