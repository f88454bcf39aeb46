"""The budgets that past calls to a model have spent, and what another price adds in their present periods."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from controlplane.audit.models import Entry
from controlplane.ledger.reading import first_hour
from controlplane.policies.models import Change
from controlplane.repricing.ledger_costs import Costs
from controlplane.spending.budget_rows import OWNERS, Account
from controlplane.usage.budget_counters import (
    BudgetCounter,
    parents_of,
    shared_counters,
    tenant_counters,
    tier_counters,
)
from controlplane.usage.models import BudgetCorrection
from fuseboard.contract.budgets import MAX_BUDGET, MICRO_USD
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period

#: The fields of a budget with which it has another counter, or one of another period.
_COUNTED = (*OWNERS, "instead_of", "measure", "period", "time_zone")
#: The longest period, and a day.
_LONGEST = timedelta(days=32)


@dataclass(frozen=True)
class BudgetChange:
    """One counter. A budget of a tier has one for each tenant."""

    counter: BudgetCounter
    #: The present period, in microseconds.
    began_us: int
    ends_us: int
    #: Micro-USD; negative for less.
    added: int

    @property
    def row(self) -> BudgetCorrection:
        return BudgetCorrection(
            environment=self.counter.row.environment_id,
            key=self.counter.key,
            began=self.began_us,
            ends=self.ends_us,
            amount=self.added,
        )


def changed_budgets(costs: Costs, now: datetime) -> list[BudgetChange]:
    """The counters that the price changes. Their periods began before the end of the days of ``costs``."""
    now_us = int(now.timestamp() * 1_000_000)
    pools = dict(Account.objects.filter(environment=costs.environment).values_list("name", "pools"))
    by_pool: dict[datetime, dict[str, int]] = {}
    tenants, counted_from = _Tenants(costs), _CountedFrom(costs.environment, now)
    found = []
    for counter in _counters(costs, tenants):
        columns = counter.columns
        began_us, ends_us = period_around(now_us, Period(columns.period), columns.time_zone)
        # The hour in which counting began has calls of before, which the counter never had. It is left out,
        # as the restore of lost budgets does.
        hour = first_hour(counted_from.moment(counter, datetime.fromtimestamp(began_us / 1_000_000, UTC)))
        if hour >= costs.window.end:
            continue
        if counter.tenant:
            added = tenants.added(hour).get(counter.tenant, 0)
        else:
            if hour not in by_pool:
                by_pool[hour] = costs.added_by_pool(hour)
            row = counter.row
            named = pools.get(row.account, []) if row.account else [row.dependency]
            added = sum(by_pool[hour].get(pool, 0) for pool in named)
        if added:
            # No counter has more, and a column neither, whatever a pod has invented.
            added = max(-MAX_BUDGET, min(added, MAX_BUDGET))
            found.append(BudgetChange(counter, began_us, ends_us, added))
    return found


def _counters(costs: Costs, tenants: "_Tenants") -> Iterator[BudgetCounter]:
    environment = costs.environment
    spenders = list(tenants.added(costs.window.first))
    counters = (
        *shared_counters(environment),
        *tenant_counters(environment, tenant__in=spenders),
        *tier_counters(environment, spenders),
    )
    return (counter for counter in counters if counter.row.measure == MICRO_USD)


class _CountedFrom:
    """Since when a counter counts: since its period began, or its budget was made, or it was cleared."""

    def __init__(self, environment: str, now: datetime) -> None:
        since = now - _LONGEST
        cleared = Entry.objects.filter(environment=environment, action="counter.cleared", at__gte=since)
        self._cleared = {
            ((after or {}).get("budget", ""), owner): at
            for owner, after, at in cleared.order_by("at").values_list("target_name", "after", "at")
        }
        self._made: dict[str, datetime] = {}
        removed: dict[str, Any] = {}
        # Every way to change a budget is a revision: a form, an import, a rollback.
        changes = Change.objects.filter(
            revision__environment=environment, revision__at__gte=since, kind="budget"
        ).order_by("revision__number")
        for name, before, after, at in changes.values_list("name", "before", "after", "revision__at"):
            if after is None:
                removed[name] = before
                continue
            # Made again, it goes on from its counter, as long as that has the same key and period.
            before = before or removed.get(name)
            if before is None or any(before.get(field) != after.get(field) for field in _COUNTED):
                self._made[name] = at

    def moment(self, counter: BudgetCounter, began: datetime) -> datetime:
        row = counter.row
        cleared = self._cleared.get((row.name, counter.tenant or row.owner[1]), began)
        return max(began, cleared, self._made.get(row.name, began))


class _Tenants:
    """The additions to tenants, with those of the tenants below them."""

    def __init__(self, costs: Costs) -> None:
        self._costs = costs
        self._added: dict[datetime, dict[str, int]] = {}
        self._parents: dict[str, str] = {}

    def added(self, hour: datetime) -> dict[str, int]:
        if hour not in self._added:
            own = self._costs.added_by_tenant(hour)
            unknown = own.keys() - self._parents.keys()
            self._parents |= parents_of(self._costs.environment, unknown)
            sums: dict[str, int] = {}
            for tenant, added in own.items():
                for each in self._with_above(tenant):
                    sums[each] = sums.get(each, 0) + added
            self._added[hour] = sums
        return self._added[hour]

    def _with_above(self, tenant: str) -> Iterator[str]:
        seen: set[str] = set()
        while tenant and tenant not in seen:
            seen.add(tenant)
            yield tenant
            tenant = self._parents.get(tenant, "")
