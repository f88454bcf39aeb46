"""One configuration, with the lookups a decision needs worked out beforehand."""

from collections.abc import Iterator
from dataclasses import dataclass

from fuseboard.contract.policy import (
    ConfigHead,
    Dependency,
    Limit,
    Policy,
    TenantRecord,
    Tier,
    Tuning,
    encode_policy,
    hash_of,
)
from fuseboard.contract.shares import settled, settled_limit
from fuseboard.contract.words import ConfigSource

#: Tenants whose records a pod holds at most; the longest unused are forgotten and fetched again.
HELD_TENANTS = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantRules:
    """What decides the requests of one tenant."""

    tier: str
    priority: int
    suspended: bool
    quotas: tuple[Limit, ...]
    #: A tenant somebody registered; others get the default tier.
    known: bool
    #: Whether its record was looked up at all; if not, ``await configuration.meet(tenant)``.
    met: bool


class _Held:
    """A record, and the rules made of it under one snapshot."""

    __slots__ = ("record", "rules", "under")

    def __init__(self, record: TenantRecord | None) -> None:
        self.record = record
        self.rules: TenantRules | None = None
        self.under: Snapshot | None = None


class TenantTable:
    """Records by tenant, bounded, with the least recently used forgotten first.

    ``None`` is an answer too: nobody registered this tenant. Two generations instead of an
    order, so that a hit costs one dict lookup: when the young one is full it becomes the old
    one, and what was not used since is dropped.
    """

    __slots__ = ("_capacity", "_old", "_young")

    def __init__(self, capacity: int = HELD_TENANTS) -> None:
        self._capacity = capacity
        self._young: dict[str, _Held] = {}
        self._old: dict[str, _Held] = {}

    def find(self, tenant: str) -> _Held | None:
        held = self._young.get(tenant)
        if held is None:
            held = self._old.get(tenant)
            if held is not None:
                self._keep(tenant, held)
        return held

    def put(self, tenant: str, record: TenantRecord | None) -> None:
        self._keep(tenant, _Held(record))

    def _keep(self, tenant: str, held: _Held) -> None:
        if tenant not in self._young and len(self._young) >= self._capacity // 2:
            self._old, self._young = self._young, {}
        self._young[tenant] = held

    def copy(self) -> "TenantTable":
        table = TenantTable(self._capacity)
        table._young = self._young.copy()
        table._old = self._old.copy()
        return table

    def as_dict(self) -> dict[str, TenantRecord | None]:
        return {tenant: held.record for tenant, held in (self._old | self._young).items()}

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._young or tenant in self._old

    def __iter__(self) -> Iterator[str]:
        return iter(self._old | self._young)

    def __len__(self) -> int:
        return len(self._old | self._young)


class Snapshot:
    """One head with its policy and the tenants met under it.

    It never changes its mind: it only learns tenants of its own head. A newer head is a new
    snapshot, so a decision that holds this one to its end stays consistent.
    """

    __slots__ = ("_default", "_dependencies", "_tiers", "head", "policy", "source", "tenants", "tuning")

    def __init__(
        self, *, head: ConfigHead, policy: Policy, source: ConfigSource, tenants: TenantTable | None = None
    ) -> None:
        self.head = head
        self.policy = policy = settled(policy)
        self.source = source
        self.tuning: Tuning = policy.tuning
        self.tenants = tenants if tenants is not None else TenantTable()
        self._tiers = {tier.name: tier for tier in policy.tiers}
        self._dependencies = {dependency.name: dependency for dependency in policy.dependencies}
        self._default = _rules(self._tiers[policy.default_tier], None, self.tuning, met=False)

    def quotas_of(self, tenant: str) -> TenantRules:
        """The rules of a tenant; those of the default tier when it is unknown or not met yet."""
        held = self.tenants.find(tenant)
        if held is None:
            return self._default
        # Resolved on first use: resolving 20,000 tenants with every edit would hold up the loop.
        if held.rules is None or held.under is not self:
            tier = self._tiers.get(held.record.tier) if held.record is not None else None
            tier = tier or self._tiers[self.policy.default_tier]
            held.rules, held.under = _rules(tier, held.record, self.tuning, met=True), self
        return held.rules

    def dependency(self, name: str) -> Dependency | None:
        return self._dependencies.get(name)


def built_in(environment: str) -> Snapshot:
    """What a pod decides by when no source answered: nothing is limited, and it says so."""
    policy = Policy(environment=environment, default_tier="default", tiers=(Tier(name="default"),))
    head = ConfigHead(epoch=0, revision=0, hash=hash_of(encode_policy(policy)))
    return Snapshot(head=head, policy=policy, source=ConfigSource.BUILT_IN)


def _rules(tier: Tier, record: TenantRecord | None, tuning: Tuning, *, met: bool) -> TenantRules:
    """A tenant's own quotas replace those of its tier by name, and may add others."""
    given = record.quotas if record is not None else ()
    own = {quota.name: settled_limit(quota, tuning) for quota in given}
    quotas = [own.pop(quota.name, quota) for quota in tier.quotas]
    return TenantRules(
        tier=tier.name,
        priority=tier.priority,
        suspended=record is not None and record.suspended,
        quotas=(*quotas, *own.values()),
        known=record is not None,
        met=met,
    )
