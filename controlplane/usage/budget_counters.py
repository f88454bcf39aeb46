"""The counters of budgets that pods enforce as such: of accounts, dependencies, tiers and tenants."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Self

from controlplane.policies.models import Tenant
from controlplane.spending.budget_rows import Budget
from fuseboard.contract import keys
from fuseboard.contract.budget_limits import rule_name
from fuseboard.contract.budgets import AtSpent


@dataclass(frozen=True, kw_only=True)
class BudgetColumns:
    """A budget with the columns of a limit."""

    name: str
    measure: str
    limit: int
    period: str
    time_zone: str
    shadow: bool
    dependency: str
    account: str
    warn_percent: int
    at_100: str

    @classmethod
    def of(cls, row: Budget) -> Self:
        """Its name is that of the rule in decisions."""
        return cls(
            name=f"{row.account}/{rule_name(row.name)}"
            if row.account
            else rule_name(row.instead_of or row.name),
            measure=row.measure,
            limit=row.applies,
            period=row.period,
            time_zone=row.time_zone,
            shadow=row.at_100 != AtSpent.STOP.value,
            dependency=row.dependency,
            account=row.account,
            warn_percent=row.warn_percent,
            at_100=row.at_100,
        )


@dataclass(frozen=True, kw_only=True)
class BudgetCounter:
    key: str
    tenant: str
    tier: str
    columns: BudgetColumns
    row: Budget


def budget_counters(
    environment: str, tenants: Iterable[str], *, most: int, **only: Any
) -> Iterator[BudgetCounter]:
    """The counters of all budgets, or ``only`` of some. See ``tenant_counters`` and ``tier_counters``."""
    yield from shared_counters(environment, **only)
    yield from tenant_counters(environment, most=most, **only)
    yield from tier_counters(environment, tenants, **only)


def shared_counters(environment: str, **only: Any) -> Iterator[BudgetCounter]:
    """The counters of accounts and dependencies, which all callers share."""
    rows = Budget.objects.filter(environment=environment, tier="", tenant="", **only).order_by("name")
    for row in rows:
        if row.account:
            key = keys.account_budget(environment, row.account, row.name)
        else:
            key = keys.dependency_budget(environment, row.dependency, row.name)
        yield BudgetCounter(key=key, tenant="", tier="", columns=BudgetColumns.of(row), row=row)


def tier_counters(environment: str, busy: Iterable[str], **only: Any) -> Iterator[BudgetCounter]:
    """The counters of the budgets of tiers, for these tenants."""
    of_tiers = Budget.objects.filter(environment=environment, **only).exclude(tier="").order_by("name")
    by_tier: dict[str, list[Budget]] = {}
    for row in of_tiers:
        by_tier.setdefault(row.tier, []).append(row)
    if not by_tier:
        return
    tenants = Tenant.objects.filter(environment=environment, deleted=False, key__in=list(busy))
    found = list(tenants.filter(tier__name__in=by_tier).select_related("tier"))
    own = Budget.objects.filter(environment=environment, tenant__in=[one.key for one in found])
    replaced = set(own.values_list("tenant", "instead_of"))
    above = _parents(environment, found)
    for tenant in found:
        for row in by_tier[tenant.tier.name]:
            if (tenant.key, row.name) not in replaced:
                key = _tenant_key(environment, tenant, row.name, above)
                columns = BudgetColumns.of(row)
                yield BudgetCounter(key=key, tenant=tenant.key, tier=row.tier, columns=columns, row=row)


def tenant_counters(environment: str, *, most: int | None = None, **only: Any) -> Iterator[BudgetCounter]:
    """The counters of the first budgets of tenants, at most ``most``: each tenant can have some."""
    registered = Tenant.objects.filter(environment=environment, deleted=False)
    rows = Budget.objects.filter(environment=environment, **only).filter(tenant__in=registered.values("key"))
    found = list(rows.order_by("name")[:most])
    wanted = registered.filter(key__in={row.tenant for row in found}).select_related("tier")
    tenants = {tenant.key: tenant for tenant in wanted}
    above = _parents(environment, tenants.values())
    for row in found:
        # It may have been removed after its budgets were read.
        if (tenant := tenants.get(row.tenant)) is not None:
            key = _tenant_key(environment, tenant, row.instead_of or row.name, above)
            yield BudgetCounter(
                key=key, tenant=tenant.key, tier=tenant.tier.name, columns=BudgetColumns.of(row), row=row
            )


def counter_of(environment: str, row: Budget, tenant: str = "") -> BudgetCounter | None:
    """The counter of a budget; that of a tier has one for each tenant. ``None`` if it does not count it."""
    return next(budget_counters(environment, [tenant], most=1, pk=row.pk), None)


def parents_of(environment: str, tenants: Iterable[str]) -> dict[str, str]:
    """Each of these tenants, and all that are above them -> its parent; empty for none."""
    found: dict[str, str] = {}
    unknown = set(tenants)
    while unknown:
        rows = Tenant.objects.filter(environment=environment, key__in=list(unknown), deleted=False)
        found |= dict.fromkeys(unknown, "") | dict(rows.values_list("key", "parent"))
        unknown = set(found.values()) - found.keys() - {""}
    return found


def _parents(environment: str, tenants: Iterable[Tenant]) -> dict[str, str]:
    parents = {tenant.parent for tenant in tenants} - {""}
    rows = Tenant.objects.filter(environment=environment, key__in=parents, deleted=False)
    return dict(rows.values_list("key", "parent")) if parents else {}


def _tenant_key(environment: str, tenant: Tenant, name: str, above: dict[str, str]) -> str:
    if tenant.parent in above:
        return keys.member_budget(environment, above[tenant.parent] or tenant.parent, tenant.key, name)
    return keys.tenant_budget(environment, tenant.key, name)
