"""The budgets that past calls to a model have spent, and what another price adds in their present periods."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from controlplane.audit.models import Entry
from controlplane.ledger.reading import begun_hour, first_hour
from controlplane.policies.models import Change
from controlplane.repricing.counted_spans import PoolSpans, Span, TenantSpans
from controlplane.repricing.ledger_costs import Costs
from controlplane.spending.budget_rows import OWNERS
from controlplane.usage.budget_counters import BudgetCounter, shared_counters, tenant_counters, tier_counters
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


@dataclass(frozen=True)
class _Counted:
    """A counter, its present period, and the calls that it has counted in it."""

    counter: BudgetCounter
    began_us: int
    ends_us: int
    spans: list[Span]


def changed_budgets(costs: Costs, now: datetime) -> list[BudgetChange]:
    """The counters that the price changes. Their periods began before the end of the days of ``costs``."""
    found = _counted(costs, now)
    of_tenants = costs.added_to_tenants({span for one in found if one.counter.tenant for span in one.spans})
    of_pools = costs.added_to_pools({span for one in found if not one.counter.tenant for span in one.spans})
    changes = []
    for one in found:
        sums = of_tenants if one.counter.tenant else of_pools
        # No counter has more, and a column neither, whatever a pod has invented.
        added = max(-MAX_BUDGET, min(sum(sums.get(span, 0) for span in one.spans), MAX_BUDGET))
        if added:
            changes.append(BudgetChange(one.counter, one.began_us, one.ends_us, added))
    return changes


def _counted(costs: Costs, now: datetime) -> list[_Counted]:
    environment, since = costs.environment, now - _LONGEST
    pools = PoolSpans(environment, since)
    tenants = TenantSpans(environment, since, costs.changed_tenants(), now)
    counted_from = _CountedFrom(environment, since)
    counters = (
        *shared_counters(environment),
        *tenant_counters(environment, tenant__in=tenants.tenants),
        *tier_counters(environment, tenants.tenants),
    )
    found = []
    for counter in counters:
        columns = counter.columns
        if columns.measure != MICRO_USD:
            continue
        began_us, ends_us = period_around(
            int(now.timestamp() * 1_000_000), Period(columns.period), columns.time_zone
        )
        began = counted_from.moment(counter, datetime.fromtimestamp(began_us / 1_000_000, UTC))
        spans = (tenants if counter.tenant else pools).of(counter)
        hours = [_whole_hours(span.cut(began, costs.window.end)) for span in spans]
        found.append(_Counted(counter, began_us, ends_us, [span for span in hours if not span.is_empty]))
    return found


def _whole_hours(span: Span) -> Span:
    """Without the hours in which counting began or ended: they have calls that the counter never had."""
    return Span(span.name, first_hour(span.began), begun_hour(span.ended))


class _CountedFrom:
    """Since when a counter counts: since its period began, or its budget was made, or it was cleared."""

    def __init__(self, environment: str, since: datetime) -> None:
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
