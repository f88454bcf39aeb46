"""Many tenants in one revision, as an import of a file creates them."""

from collections.abc import Iterable

from controlplane.audit.actor import Actor
from controlplane.editing.plans import apply_plan, plan_from_document


def create_tenants(
    *, environment: str = "production", tenants: Iterable[tuple[str, str, str]], actor: Actor
) -> int:
    """Create tenants (key, tier, title). Return the revision."""
    rows = {key: {"tier": tier, "title": title} for key, tier, title in tenants}
    return apply_plan(
        environment=environment,
        plan=plan_from_document({"tenants": rows}),
        expected_revision=None,
        reason="for a test",
        actor=actor,
    )
