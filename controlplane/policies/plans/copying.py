from controlplane.audit.actor import Actor
from controlplane.policies.plans.apply import apply_plan
from controlplane.policies.plans.plan import Plan
from controlplane.policies.state import read_state


def copy_configuration(
    *, source: str, environment: str, reason: str, actor: Actor, with_tenants: bool = False
) -> int:
    """Give an environment what another one has, as one revision; returns it.

    Tiers, dependencies, limits of callers without a tenant and timings become the same; what only
    ``environment`` has of them goes. Its tenants stay, unless they are copied too. Holds of
    breakers are not copied: they are no configuration.
    """
    state = read_state(source, tenants=None if with_tenants else set())
    plan = Plan(sections={"default_tier", "tuning", "subject_limits", "tier", "dependency"})
    for (kind, name), fields in state.items():
        # A quota that ends by itself gives way to what is there, which is not what it was here.
        kept = {field: value for field, value in fields.items() if not field.endswith(".returns_to")}
        plan.things[kind, "" if kind == "environment" else name] = kept
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
