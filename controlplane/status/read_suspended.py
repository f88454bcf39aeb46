"""Reads the busy tenants that pods refuse on purpose: suspended ones, and those below them."""

from controlplane.fleet.live import FleetFigures
from controlplane.policies.models import Tenant


def read_suspended(environment: str, figures: FleetFigures) -> frozenset[str]:
    """The suspended tenants among those with figures. Without refusals for that, nothing is read."""
    if not figures.suspended_per_s:
        return frozenset()
    refused = {one.tenant for one in figures.tenants if one.refused_per_s > 0}
    parents: dict[str, str] = {}
    suspended: set[str] = set()
    wanted = set(refused)
    while wanted:
        rows = Tenant.objects.filter(environment=environment, key__in=wanted, deleted=False)
        found = list(rows.values_list("key", "parent", "suspended"))
        parents |= {key: parent for key, parent, _ in found}
        suspended |= {key for key, _, is_suspended in found if is_suspended}
        wanted = {parent for _, parent, _ in found if parent} - parents.keys()
    return frozenset(name for name in refused if suspended.intersection(_with_parents(name, parents)))


def _with_parents(name: str, parents: dict[str, str]) -> set[str]:
    found: set[str] = set()
    while name and name not in found:
        found.add(name)
        name = parents.get(name, "")
    return found
