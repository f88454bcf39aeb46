"""Bulkheads of earlier versions get the default of new ones: the only tier that calls has all slots."""

from controlplane.audit.actor import Actor
from controlplane.editing.plans import apply_plan, plan_from_document
from controlplane.errors import InvalidEdit
from controlplane.policies.older_defaults import divided_bulkheads
from controlplane.validation import check_reason


def share_idle_slots(*, environment: str, reason: str, actor: Actor) -> int:
    """Switch ``share_idle`` on in every bulkhead that has it off, in one revision. Return the revision."""
    check_reason(reason)
    names = divided_bulkheads(environment)
    if not names:
        raise InvalidEdit({"dependencies": ["Every bulkhead shares its idle slots already."]})
    change = {"protection": {"bulkhead": {"share_idle": True}}}
    plan = plan_from_document({"dependencies": dict.fromkeys(names, change)})
    return apply_plan(environment=environment, plan=plan, expected_revision=None, reason=reason, actor=actor)
