"""Budgets in the output of ``fuseboard explain``: what is left of each, and when its period ends."""

from collections.abc import Iterable
from datetime import datetime
from zoneinfo import ZoneInfo

from msgspec import Struct

from fuseboard.admission.budget_inspection import KnownBudget
from fuseboard.contract.budgets import MICRO_USD, AtSpent
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import Period

#: The fate of calls when nothing is left.
_FATES = {
    AtSpent.STOP: "calls that cost {measure} are refused until then",
    AtSpent.WARN: "calls pass, and are counted",
    AtSpent.DEGRADE: "decisions are degraded until then",
}


class ExplainedBudget(Struct, frozen=True, kw_only=True):
    name: str
    #: The kind and the name of its owner.
    kind: str
    owner: str
    measure: str
    amount: int
    #: ``None`` when Redis does not answer. Less than 0 if more was spent.
    left: int | None
    period: str
    #: In the time zone of the budget, and how long that is from now.
    ends_at: str
    ends_in_s: float
    at_100: str
    #: Calls that cost its measure are refused now.
    refuses: bool

    def text(self) -> str:
        return f"{self.name!r} of {self.kind} {self.owner}: {self._left()}; ends {self.ends_at}{self._fate()}"

    def _left(self) -> str:
        whole = _words(self.measure, self.amount)
        if self.left is None:
            return f"{whole} per {self.period}; what is left is not known"
        left, spent = _words(self.measure, max(0, self.left)), _words(self.measure, self.amount - self.left)
        return f"{left} of {whole} per {self.period} left, {spent} spent"

    def _fate(self) -> str:
        if self.left is None or self.left > 0:
            return ""
        return "; spent: " + _FATES[AtSpent(self.at_100)].format(measure=self.measure)


def explained_budgets(budgets: Iterable[KnownBudget], now_us: int) -> tuple[ExplainedBudget, ...]:
    return tuple([_explained(budget, now_us) for budget in budgets])


def _explained(budget: KnownBudget, now_us: int) -> ExplainedBudget:
    limit = budget.limit
    _, end_us = period_around(now_us, limit.period or Period.MONTH, limit.time_zone)
    end = datetime.fromtimestamp(end_us / 1_000_000, ZoneInfo(limit.time_zone))
    return ExplainedBudget(
        name=limit.budget,
        kind=budget.kind,
        owner=budget.owner,
        measure=limit.measure,
        amount=limit.amount,
        left=budget.left,
        period=str(limit.period),
        ends_at=f"{end:%Y-%m-%d %H:%M} {limit.time_zone}",
        ends_in_s=(end_us - now_us) / 1_000_000,
        at_100=limit.at_spent.value,
        refuses=budget.refuses,
    )


def _words(measure: str, amount: int) -> str:
    if measure != MICRO_USD:
        return f"{amount:,} {measure}"
    whole, millionths = divmod(amount, 1_000_000)
    cents = f"{millionths:06d}"
    return f"{whole:,}.{cents[:2]}{cents[2:].rstrip('0')} USD"
