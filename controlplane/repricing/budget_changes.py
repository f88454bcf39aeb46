"""The budgets that past calls to a model have spent, and what another price adds in their present periods."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from controlplane.audit.models import Entry
from controlplane.repricing.ledger_costs import Costs
from controlplane.spending.models import Account
from controlplane.usage.budget_counters import (
    BudgetCounter,
    parents_of,
    shared_counters,
    tenant_counters,
    tier_counters,
)
from controlplane.usage.models import BudgetCorrection
from fuseboard.contract.budgets import MICRO_USD
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period

#: Actions that say since when a budget counts, and the longest period with a day.
_SINCE = ("counter.cleared", "budget.created", "budget.removed")
_LONGEST = timedelta(days=32)
#: More than the budgets of tenants of an environment.
_ALL = 1_000_000


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
    pools: dict[datetime, dict[str, int]] = {}
    tenants, counted_from = _Tenants(costs), _CountedFrom(costs.environment, now)
    found = []
    for counter in _counters(costs, tenants):
        columns = counter.columns
        now_us = int(now.timestamp() * 1_000_000)
        began_us, ends_us = period_around(now_us, Period(columns.period), columns.time_zone)
        hour = counted_from.hour(counter, datetime.fromtimestamp(began_us / 1_000_000, UTC))
        if hour >= costs.window.end:
            continue
        if counter.tenant:
            added = tenants.added(hour).get(counter.tenant, 0)
        else:
            if hour not in pools:
                pools[hour] = costs.added_by_pool(hour)
            added = sum(pools[hour].get(pool, 0) for pool in _pools(counter))
        if added:
            found.append(BudgetChange(counter, began_us, ends_us, added))
    return found


def _counters(costs: Costs, tenants: "_Tenants") -> Iterator[BudgetCounter]:
    environment = costs.environment
    spenders = list(tenants.added(costs.window.first))
    counters = (
        *shared_counters(environment),
        *tenant_counters(environment, most=_ALL, tenant__in=spenders),
        *tier_counters(environment, spenders),
    )
    return (counter for counter in counters if counter.row.measure == MICRO_USD)


def _pools(counter: BudgetCounter) -> Iterable[str]:
    row = counter.row
    if row.dependency:
        return [row.dependency]
    rows = Account.objects.filter(environment=row.environment_id, name=row.account)
    return rows.values_list("pools", flat=True).first() or []


class _CountedFrom:
    """The first whole hour that a counter has: of its period, or since it was cleared or made."""

    def __init__(self, environment: str, now: datetime) -> None:
        self._cleared: dict[tuple[str, str], datetime] = {}
        self._made: dict[str, datetime] = {}
        removed = set()
        rows = Entry.objects.filter(environment=environment, action__in=_SINCE, at__gte=now - _LONGEST)
        for action, name, after, at in rows.order_by("at").values_list(
            "action", "target_name", "after", "at"
        ):
            if action == "counter.cleared":
                self._cleared[(after or {}).get("budget", ""), name] = at
            elif action == "budget.removed":
                # Made again, it goes on from its counter.
                removed.add(name)
            elif name not in removed:
                self._made.setdefault(name, at)

    def hour(self, counter: BudgetCounter, began: datetime) -> datetime:
        row = counter.row
        owner = counter.tenant or row.owner[1]
        since = max(self._cleared.get((row.name, owner), began), self._made.get(row.name, began))
        hour = since.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        # The hour in which counting began has calls of before, which the counter never had. It is left out,
        # as the restore of lost budgets does for a period that begins within an hour.
        return hour if hour >= since else hour + timedelta(hours=1)


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
