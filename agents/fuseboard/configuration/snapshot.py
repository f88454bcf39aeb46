"""One configuration, with the lookups that decisions need."""

from collections.abc import Iterable, Iterator

import msgspec
from msgspec import Struct

from fuseboard.contract.budget_limits import limits_of
from fuseboard.contract.budgets import Account, Budget
from fuseboard.contract.descriptors import DescriptorRules
from fuseboard.contract.models import Model, by_name, undated
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

#: Tenants whose records a pod keeps. The least recently used are dropped, and fetched again when needed.
HELD_TENANTS = 20_000


class Quota(Struct, frozen=True):
    """A quota, and the tenant that owns its counter."""

    #: Named ``acme/requests`` when it is inherited, because two levels may have quotas of one name.
    limit: Limit
    tenant: str
    #: Its name at its owner.
    name: str


class TenantRules(Struct, frozen=True, kw_only=True):
    """The rules that decide the requests of one tenant."""

    tier: str
    priority: int
    wait_ms: int = 0
    suspended: bool
    #: Its budgets too.
    quotas: tuple[Limit, ...]
    #: The quotas of its parents, nearest first. Its requests are charged to them too.
    inherited: tuple[Quota, ...] = ()
    #: Its topmost parent, whose domain has its counters; empty when it has no parent.
    root: str = ""
    #: The tenant is registered. Others get the default tier.
    known: bool
    #: Its record and those of its parents were looked up. If not, ``Configuration.load_record`` does it.
    loaded: bool

    def of(self, tenant: str) -> Iterator[Quota]:
        """All quotas that apply to ``tenant``, whose rules these are."""
        for limit in self.quotas:
            yield Quota(limit, tenant, limit.name)
        yield from self.inherited


class _Kept:
    """A record, and the rules made from it under one snapshot."""

    __slots__ = ("changes", "passed_on", "record", "rules", "under")

    def __init__(self, record: TenantRecord | None) -> None:
        self.record = record
        self.rules: TenantRules | None = None
        self.under: Snapshot | None = None
        #: How many records had been replaced when the rules were made.
        self.changes = 0
        #: Its quotas as its children inherit them, and the snapshot they were made under.
        self.passed_on: tuple[Snapshot, tuple[Quota, ...]] | None = None

    @property
    def parents(self) -> tuple[str, ...]:
        return self.record.parents if self.record is not None else ()


class TenantTable:
    """Records by tenant, bounded. The least recently used are dropped first.

    ``None`` is a record too: the tenant is not registered. There are two generations instead of an
    order, so that a hit costs one dict lookup. When the young one is full it becomes the old one, and
    what was not used since is dropped. Parents are never in an older generation than their children.
    """

    __slots__ = ("_capacity", "_old", "_young", "changes")

    def __init__(self, capacity: int = HELD_TENANTS) -> None:
        self._capacity = capacity
        self._young: dict[str, _Kept] = {}
        self._old: dict[str, _Kept] = {}
        #: Rises when a record is replaced, because rules of other tenants may depend on it.
        self.changes = 0

    def find(self, tenant: str) -> _Kept | None:
        kept = self._young.get(tenant)
        if kept is None:
            kept = self._old.get(tenant)
            if kept is not None:
                self._keep(tenant, kept)
        return kept

    def peek(self, tenant: str) -> _Kept | None:
        """Find a record like ``find``, without noting that it is used."""
        return self._young.get(tenant) or self._old.get(tenant)

    def put(self, tenant: str, record: TenantRecord | None) -> None:
        self.changes += tenant in self
        self._keep(tenant, _Kept(record))

    def _keep(self, tenant: str, kept: _Kept) -> None:
        if tenant not in self._young and len(self._young) >= self._capacity // 2:
            self._old, self._young = self._young, {}
        self._young[tenant] = kept
        for parent in kept.parents:
            if parent not in self._young and (above := self._old.get(parent)) is not None:
                self._keep(parent, above)

    def copy(self) -> "TenantTable":
        table = TenantTable(self._capacity)
        table._young = self._young.copy()
        table._old = self._old.copy()
        table.changes = self.changes
        return table

    def as_dict(self) -> dict[str, TenantRecord | None]:
        return {tenant: kept.record for tenant, kept in (self._old | self._young).items()}

    def __contains__(self, tenant: str) -> bool:
        return tenant in self._young or tenant in self._old

    def __iter__(self) -> Iterator[str]:
        return iter(self._old | self._young)

    def __len__(self) -> int:
        return len(self._old | self._young)


class Snapshot:
    """One head with its policy, and the tenants that were looked up under it.

    It never changes, except that it learns tenants of its own head. A newer head is a new snapshot, so
    a decision that keeps this one stays consistent.
    """

    __slots__ = (
        "_accounts",
        "_default",
        "_dependencies",
        "_descriptor_rules",
        "_models",
        "_tiers",
        "head",
        "policy",
        "source",
        "tenants",
        "tuning",
    )

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
        self._accounts = {pool: account for account in policy.accounts for pool in account.pools}
        self._models = by_name(policy.models)
        self._descriptor_rules: DescriptorRules | None = None
        self._default = _rules(self._tiers[policy.default_tier], None, self.tuning, loaded=False)

    def quotas_of(self, tenant: str) -> TenantRules:
        """The rules of a tenant; those of the default tier when it is unknown or not looked up yet."""
        kept = self.tenants.find(tenant)
        if kept is None:
            return self._default
        # Resolved on first use: resolving 20,000 tenants with every edit would block the loop.
        if kept.rules is None or kept.under is not self or kept.changes != self.tenants.changes:
            return self._resolve(kept)
        return kept.rules

    def tier_of(self, tenant: str) -> Tier:
        """The tier of a tenant; the default tier when it is unknown. For any thread: it changes nothing."""
        kept = self.tenants.peek(tenant)
        return self._tier_of(kept.record if kept is not None else None)

    def longest_wait_ms(self, tenant: str) -> int:
        """The wait of its tier, or the longest of any tier while the tenant is not looked up.

        It changes nothing, so that any thread may ask.
        """
        kept = self.tenants.peek(tenant)
        if kept is None:
            return max(tier.wait_ms for tier in self.policy.tiers)
        return self._tier_of(kept.record).wait_ms

    def missing(self, tenant: str) -> list[str]:
        """The tenants whose records are missing for the rules of ``tenant``."""
        kept = self.tenants.find(tenant)
        if kept is None:
            return [tenant]
        return [parent for parent in kept.parents if parent not in self.tenants]

    def _resolve(self, kept: _Kept) -> TenantRules:
        above = [(parent, self.tenants.find(parent)) for parent in reversed(kept.parents)]
        rules = _rules(
            self._tier_of(kept.record),
            kept.record,
            self.tuning,
            loaded=all(found is not None for _, found in above),
            inherited=tuple(
                quota
                for parent, found in above
                if found and found.record
                for quota in self._passed_on(parent, found)
            ),
            suspended=any(found.record.suspended for _, found in above if found and found.record),
        )
        if rules.loaded:
            kept.rules, kept.under, kept.changes = rules, self, self.tenants.changes
        return rules

    def _tier_of(self, record: TenantRecord | None) -> Tier:
        found = self._tiers.get(record.tier) if record is not None else None
        return found or self._tiers[self.policy.default_tier]

    def _passed_on(self, tenant: str, kept: _Kept) -> tuple[Quota, ...]:
        """The quotas of ``tenant`` for its children; the same objects for all of them."""
        if kept.passed_on is None or kept.passed_on[0] is not self:
            own = _rules(self._tier_of(kept.record), kept.record, self.tuning, loaded=True).quotas
            kept.passed_on = self, tuple(_named_below(tenant, own))
        return kept.passed_on[1]

    def dependency(self, name: str) -> Dependency | None:
        return self._dependencies.get(name)

    def account_of(self, dependency: str) -> Account | None:
        """The account that the calls to a dependency are made with; ``None`` if it is not known."""
        return self._accounts.get(dependency)

    def budgets_of(self, tenant: str) -> tuple[Budget, ...]:
        """The budgets of a tenant, without those of its parents. It changes nothing, so that any thread may
        ask.
        """
        kept = self.tenants.peek(tenant)
        record = kept.record if kept is not None else None
        return _budgets(self._tier_of(record), record)

    @property
    def descriptor_rules(self) -> DescriptorRules:
        """The rules for descriptors of Envoy, prepared on first use: few pods answer Envoy."""
        if self._descriptor_rules is None:
            self._descriptor_rules = DescriptorRules(self.policy.descriptors)
        return self._descriptor_rules

    def keep_prepared(self, earlier: "Snapshot") -> None:
        """Take over the rules for descriptors that ``earlier`` has prepared, if they are the same."""
        if self.policy.descriptors == earlier.policy.descriptors:
            self._descriptor_rules = earlier._descriptor_rules

    def model(self, name: str) -> Model | None:
        """The model of a name or an alias; else that of the name without a date at its end."""
        found = self._models.get(name)
        return self._models.get(undated(name)) if found is None and self._models else found


def built_in(environment: str, most_tenants: int = HELD_TENANTS) -> Snapshot:
    """The configuration of a pod when no source has answered: it limits nothing, and says so.

    It and those that follow it keep the records of ``most_tenants``.
    """
    policy = Policy(environment=environment, default_tier="default", tiers=(Tier(name="default"),))
    head = ConfigHead(epoch=0, revision=0, hash=hash_of(encode_policy(policy)))
    tenants = TenantTable(most_tenants)
    return Snapshot(head=head, policy=policy, source=ConfigSource.BUILT_IN, tenants=tenants)


def _named_below(tenant: str, quotas: Iterable[Limit]) -> Iterator[Quota]:
    for limit in quotas:
        yield Quota(msgspec.structs.replace(limit, name=f"{tenant}/{limit.name}"), tenant, limit.name)


def _rules(
    tier: Tier,
    record: TenantRecord | None,
    tuning: Tuning,
    *,
    loaded: bool,
    inherited: tuple[Quota, ...] = (),
    suspended: bool = False,
) -> TenantRules:
    """A tenant's own quotas replace those of its tier by name, and may add others."""
    given = record.quotas if record is not None else ()
    own = {quota.name: settled_limit(quota, tuning) for quota in given}
    quotas = [own.pop(quota.name, quota) for quota in tier.quotas]
    budgets = limits_of(_budgets(tier, record))
    return TenantRules(
        tier=tier.name,
        priority=tier.priority,
        wait_ms=tier.wait_ms,
        suspended=suspended or (record is not None and record.suspended),
        quotas=(*quotas, *own.values(), *budgets),
        inherited=inherited,
        root=record.parents[0] if record is not None and record.parents else "",
        known=record is not None,
        loaded=loaded,
    )


def _budgets(tier: Tier, record: TenantRecord | None) -> tuple[Budget, ...]:
    own = {budget.name: budget for budget in record.budgets} if record is not None else {}
    merged = [own.pop(budget.name, budget) for budget in tier.budgets]
    return (*merged, *own.values())
