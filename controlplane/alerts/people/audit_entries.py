"""Audit entries of receivers and routes, which are named in one environment."""

from controlplane.alerts.models import Receiver, Route
from controlplane.audit.actor import Actor
from controlplane.audit.record import record


def record_named(
    row: Receiver | Route,
    action: str,
    reason: str,
    actor: Actor,
    *,
    before: dict[str, object] | None = None,
    after: dict[str, object] | None = None,
) -> None:
    """``action`` begins with the kind of the row: ``route.set``."""
    record(
        actor=actor,
        action=action,
        target_kind=action.partition(".")[0],
        target_name=row.name,
        before=before,
        after=after,
        reason=reason,
        environment=row.environment,
    )
