"""The limits that follow a template. Postgres counts them: there can be a hundred thousand."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.db.models import Count, QuerySet

from controlplane.policies.limits import FollowingColumns
from controlplane.policies.models import SubjectLimit, TenantQuota, TierQuota, VendorLimit

#: Kind of the owner -> model of its limits, lookup of its environment, lookup of its name.
_PLACES: dict[str, tuple[type[FollowingColumns], str, str]] = {
    "tier": (TierQuota, "tier__environment", "tier__name"),
    "dependency": (VendorLimit, "dependency__environment", "dependency__name"),
    "environment": (SubjectLimit, "environment", "environment"),
    "tenant": (TenantQuota, "tenant__environment", "tenant__key"),
}


@dataclass(frozen=True, kw_only=True)
class Follower:
    """A limit that follows a template."""

    #: environment (limits of callers without a tenant), tier, dependency or tenant.
    kind: str
    name: str
    limit: str
    #: The values that override the template.
    own: dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Followers:
    """The number of limits that follow, and of their owners by kind."""

    limits: int = 0
    tiers: int = 0
    tenants: int = 0
    dependencies: int = 0
    #: Limits of callers without a tenant.
    subject_limits: int = 0

    def __str__(self) -> str:
        """``14 limits of 3 tiers and 9 tenants``."""
        owners = [
            _counted(self.tiers, "tier", "tiers"),
            _counted(self.tenants, "tenant", "tenants"),
            _counted(self.dependencies, "dependency", "dependencies"),
            "callers without a tenant" if self.subject_limits else "",
        ]
        said = [owner for owner in owners if owner]
        whose = " and ".join(part for part in (", ".join(said[:-1]), said[-1]) if part) if said else ""
        return f"{_counted(self.limits, 'limit', 'limits') or 'no limit'}{' of ' if whose else ''}{whose}"


def count_followers(environment: str) -> dict[str, Followers]:
    """Return template -> its followers, without templates that no limit follows."""
    limits: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for kind, (_, _, name) in _PLACES.items():
        rows = _rows(environment, kind).order_by().values_list("template")
        for template, count, owners in rows.annotate(Count("pk"), Count(name, distinct=True)):
            limits[template][kind] = (count, owners)
    return {
        template: Followers(
            limits=sum(count for count, _ in found.values()),
            tiers=found.get("tier", (0, 0))[1],
            tenants=found.get("tenant", (0, 0))[1],
            dependencies=found.get("dependency", (0, 0))[1],
            subject_limits=found.get("environment", (0, 0))[0],
        )
        for template, found in limits.items()
    }


def followers(environment: str, template: str, *, most: int) -> list[Follower]:
    """Return the first ``most`` followers: tiers, dependencies, callers without a tenant, then tenants."""
    found: list[Follower] = []
    for kind, (_, _, name) in _PLACES.items():
        rows = _rows(environment, kind).filter(template=template).order_by(name, "name")
        found += _followers(kind, name, rows[: max(0, most - len(found))])
    return found


def _followers(kind: str, name: str, rows: QuerySet[Any]) -> Iterator[Follower]:
    for row in rows.select_related(name.partition("__")[0]):
        owner: Any = row
        for part in name.split("__"):
            owner = getattr(owner, part)
        yield Follower(
            kind=kind,
            name=str(owner),
            limit=row.name,
            own={column: getattr(row, column) for column in row.own},
        )


def _rows(environment: str, kind: str) -> QuerySet[Any]:
    model, lookup, _ = _PLACES[kind]
    rows = model._default_manager.filter(**{lookup: environment}).exclude(template="")
    return rows.filter(**{"tenant__deleted": False}) if kind == "tenant" else rows


def _counted(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}" if count else ""
