"""What holds for a tenant, and where each value comes from."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from controlplane.policies.document import environment_of
from controlplane.policies.fields import limit_fields, limits_in
from controlplane.policies.limits import OPTIONAL
from controlplane.policies.models import Change, Tenant, TenantQuota, Tier

#: Where a value may come from, from the nearest to the most general.
EXPIRING, OVERRIDE, TENANT, TIER, DEFAULT_TIER, USUAL = (
    "expiring override",
    "tenant override",
    "tenant",
    "tier default",
    "default tier",
    "usual",
)


@dataclass(frozen=True, kw_only=True)
class EffectiveValue:
    #: Flat: ``tier``, ``suspended``, ``quotas.requests.limit``.
    name: str
    value: Any
    #: One of the words above.
    source: str
    #: Name of the tenant or the tier it stands at.
    at: str
    #: What the tier says, where the tenant's own stands in its place.
    instead_of: Any = None
    #: When it ends by itself.
    until: datetime | None = None
    #: Who last changed it, in which revision; unknown for what is older than the history.
    by: str = ""
    revision: int | None = None
    changed_at: datetime | None = None


def effective(environment: str, tenant: str) -> list[EffectiveValue]:
    """Every value that decides about a tenant's requests; of a stranger, the default tier's.

    Raises ``NotFound`` for an unknown environment.
    """
    row = environment_of(environment)
    found = (
        Tenant.objects.filter(environment=row, key=tenant, deleted=False)
        .select_related("tier")
        .prefetch_related("quotas")
        .first()
    )
    tier = found.tier if found else row.default_tier
    values = _Values(environment, tenant if found else "", tier)
    values.add("tier", tier.name, TENANT if found else DEFAULT_TIER, own=found is not None)
    values.add("priority", tier.priority, TIER)
    suspended = found is not None and found.suspended
    values.add("suspended", suspended, TENANT if found else USUAL, own=found is not None)
    own: dict[str, TenantQuota] = {quota.name: quota for quota in found.quotas.all()} if found else {}
    of_tier = limits_in("quotas", limit_fields("quotas", tier.quotas.all()))
    for name in sorted(own.keys() | of_tier.keys()):
        values.limit(name, own.get(name), of_tier.get(name, {}), stranger=found is None)
    return values.found


class _Values:
    def __init__(self, environment: str, tenant: str, tier: Tier) -> None:
        self.found: list[EffectiveValue] = []
        self.tenant, self.tier = tenant, tier
        self._last = {
            "tenant": _last_changes(environment, "tenant", tenant) if tenant else {},
            "tier": _last_changes(environment, "tier", tier.name),
        }

    def add(self, name: str, value: Any, source: str, *, own: bool = False, **more: Any) -> None:
        change = self._last["tenant" if own else "tier"].get(name)
        self.found.append(
            EffectiveValue(
                name=name,
                value=value,
                source=source,
                at=self.tenant if own else self.tier.name,
                by=change.revision.actor if change else "",
                revision=change.revision.number if change else None,
                changed_at=change.revision.at if change else None,
                **more,
            )
        )

    def limit(self, name: str, own: TenantQuota | None, tier: dict[str, Any], *, stranger: bool) -> None:
        columns = limits_in("quotas", limit_fields("quotas", [own])).get(name, {}) if own else tier
        for column, value in columns.items():
            if column in ("expires_at", "returns_to"):
                continue
            field = f"quotas.{name}.{column}"
            if own is None:
                self.add(field, value, DEFAULT_TIER if stranger else TIER)
                continue
            source = EXPIRING if own.expires_at else OVERRIDE
            instead = tier.get(column, OPTIONAL.get(column) if tier else None)
            self.add(field, value, source, own=True, instead_of=instead, until=own.expires_at)


def _last_changes(environment: str, kind: str, name: str) -> dict[str, Change]:
    """Field -> the newest change that made it what it is."""
    rows = Change.objects.filter(revision__environment=environment, kind=kind, name=name)
    found: dict[str, Change] = {}
    for change in rows.select_related("revision").order_by("-revision")[:200]:
        before, after = change.before or {}, change.after or {}
        for field in after:
            if field not in found and before.get(field) != after[field]:
                found[field] = change
    return found
