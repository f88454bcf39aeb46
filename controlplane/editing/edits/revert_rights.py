"""Rights to revert: a role for a service covers what the service owns, and nothing else."""

from typing import Any

from django.core.exceptions import PermissionDenied

from controlplane.accounts.permissions import covered, may, services_of
from controlplane.policies.models import Change, Dependency


def own_dependencies(user: Any, environment: str, number: int) -> dict[str, str]:
    """Return dependency -> owner, for what the revision changed and a role for its owner covers."""
    services = covered(services_of(user, environment), "edit_breaker_policy")
    if not services:
        return {}
    changed = Change.objects.filter(
        revision__environment=environment, revision__number=number, kind="dependency"
    )
    rows = Dependency.objects.filter(
        environment_id=environment, owner__in=services, name__in=changed.values("name")
    )
    return dict(rows.order_by("name").values_list("name", "owner"))


def service_of_revert(user: Any, environment: str, number: int) -> str:
    """Return the service whose role lets the user revert this; empty for the role in the environment.

    Raises ``PermissionDenied`` if nothing does. What the revert changes is checked when it is known:
    ``check_changes``.
    """
    if may(user, "edit_quota", environment):
        return ""
    own = own_dependencies(user, environment, number)
    if not own:
        raise PermissionDenied("This needs the role admin, or the same role for the service that it changed.")
    return next(iter(own.values()))
