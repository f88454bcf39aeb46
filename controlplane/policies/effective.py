"""The effective settings of a tenant, and where each value comes from."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from controlplane.policies.document import environment_of
from controlplane.policies.fields import limit_fields, limits_in
from controlplane.policies.limits import OPTIONAL, VALUES
from controlplane.policies.models import Change, Tenant, TenantQuota, Tier

#: The sources of a value, from the most specific to the most general.
EXPIRING, OVERRIDE, TEMPLATE, TENANT, TIER, DEFAULT_TIER, USUAL = (
    "expiring override",
    "tenant override",
    "template",
    "tenant",
    "tier default",
    "default tier",
    "usual",
)


@dataclass(frozen=True, kw_only=True)
class EffectiveValue:
    #: A flat name: ``tier``, ``suspended``, ``quotas.requests.limit``.
    name: str
    value: Any
    #: One of the sources above.
    source: str
    #: Name of the template, the tenant or the tier that has the value.
    at: str
    #: The tenant or the tier whose quota follows the template, for a value of a template.
    followed_by: str = ""
    #: The parent that has the quota.
    inherited_from: str = ""
    #: The tier's value that the tenant overrides.
    instead_of: Any = None
    #: When the value ends.
    until: datetime | None = None
    #: The person who last changed it, and the revision. Unknown if that is older than the history.
    by: str = ""
    revision: int | None = None
    changed_at: datetime | None = None


def effective(environment: str, tenant: str) -> list[EffectiveValue]:
    """Return every value that decides about a tenant's requests. An unregistered one has the default tier.

    Quotas of its parents come last, as ``quotas.acme/requests.limit``. Raises ``NotFound`` for an
    unknown environment.
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
    if tier.wait_ms:
        values.add("wait_ms", tier.wait_ms, TIER)
    suspended = found is not None and found.suspended
    values.add("suspended", suspended, TENANT if found else USUAL, own=found is not None)
    if found and found.parent:
        values.add("parent", found.parent, TENANT, own=True)
    own: dict[str, TenantQuota] = {quota.name: quota for quota in found.quotas.all()} if found else {}
    of_tier = limits_in("quotas", limit_fields("quotas", tier.quotas.all()))
    for name in sorted(own.keys() | of_tier.keys()):
        values.limit(name, own.get(name), of_tier.get(name, {}), stranger=found is None)
    if found and found.parent:
        values.found += _from_above(effective(environment, found.parent), found.parent)
    return values.found


def _from_above(values: list[EffectiveValue], parent: str) -> Iterator[EffectiveValue]:
    """Yield the values of a parent that also apply to the tenants below it."""
    for value in values:
        if value.inherited_from or (value.name == "suspended" and value.value):
            yield replace(value, inherited_from=value.inherited_from or parent)
        elif value.name.startswith("quotas."):
            name = value.name.removeprefix("quotas.")
            yield replace(value, name=f"quotas.{parent}/{name}", inherited_from=parent)


class _Values:
    def __init__(self, environment: str, tenant: str, tier: Tier) -> None:
        self.found: list[EffectiveValue] = []
        self.environment, self.tenant, self.tier = environment, tenant, tier
        self._last: dict[tuple[str, str], dict[str, Change]] = {}

    def add(self, name: str, value: Any, source: str, *, own: bool = False, **more: Any) -> None:
        """Add a value of the tenant's ``own``, or of its tier."""
        place = ("tenant", self.tenant) if own else ("tier", self.tier.name)
        self._add(place, name, EffectiveValue(name=name, value=value, source=source, at=place[1], **more))

    def limit(self, name: str, own: TenantQuota | None, tier: dict[str, Any], *, stranger: bool) -> None:
        columns = limits_in("quotas", limit_fields("quotas", [own])).get(name, {}) if own else tier
        followed = _from_template(columns)
        for column, value in columns.items():
            if column in ("expires_at", "returns_to", "own"):
                continue
            field = f"quotas.{name}.{column}"
            instead = tier.get(column, OPTIONAL.get(column) if tier else None) if own else None
            until = own.expires_at if own else None
            if column in followed:
                found = EffectiveValue(
                    name=field,
                    value=value,
                    source=TEMPLATE,
                    at=columns["template"],
                    followed_by=self.tenant if own else self.tier.name,
                    instead_of=instead,
                    until=until,
                )
                self._add(("template", found.at), column, found)
            elif own is None:
                self.add(field, value, DEFAULT_TIER if stranger else TIER)
            else:
                source = EXPIRING if until else OVERRIDE
                self.add(field, value, source, own=True, instead_of=instead, until=until)

    def _add(self, place: tuple[str, str], field: str, value: EffectiveValue) -> None:
        if place not in self._last:
            self._last[place] = _last_changes(self.environment, *place) if place[1] else {}
        if change := self._last[place].get(field):
            revision = change.revision
            value = replace(value, by=revision.actor, revision=revision.number, changed_at=revision.at)
        self.found.append(value)


def _from_template(columns: dict[str, Any]) -> set[str]:
    """Return the names of the values that come from a template."""
    return set(VALUES) - set(columns["own"]) if columns.get("template") else set()


def _last_changes(environment: str, kind: str, name: str) -> dict[str, Change]:
    """Return field -> the change that gave it its present value."""
    rows = Change.objects.filter(revision__environment=environment, kind=kind, name=name)
    found: dict[str, Change] = {}
    for change in rows.select_related("revision").order_by("-revision")[:200]:
        before, after = change.before or {}, change.after or {}
        for field in after:
            if field not in found and before.get(field) != after[field]:
                found[field] = change
    return found
