"""A budget as the agent counts it: a calendar limit, decided in the same step as all others."""

from functools import lru_cache

from fuseboard.contract.budgets import MAX_BUDGET, AtSpent, Budget
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, FailurePolicy, Period

#: Nominal lengths, for headers.
PERIOD_MS = {
    Period.HOUR: 3_600_000,
    Period.DAY: 86_400_000,
    Period.WEEK: 7 * 86_400_000,
    Period.MONTH: 31 * 86_400_000,
}

_AT_SPENT: dict[str, AtSpent] = {word.value: word for word in AtSpent}

#: Budgets that are kept as limits. Equal budgets are one object, which the encoding of questions relies on.
MAX_KEPT = 65_536


class BudgetLimit(Limit, frozen=True, kw_only=True, omit_defaults=True):
    """``limit`` is ``amount`` if the budget stops calls. Otherwise it has no bound, and all calls count."""

    #: The name of the budget at its owner.
    budget: str
    amount: int
    at_spent: AtSpent

    @property
    def stops(self) -> bool:
        """Whether calls are refused when it is spent."""
        return self.at_spent is AtSpent.STOP

    def left_of(self, left: int) -> int:
        """The rest of the amount when ``left`` is left of the limit; less than 0 when more is spent."""
        return left - (self.limit - self.amount)


@lru_cache(maxsize=MAX_KEPT)
def limit_of(budget: Budget) -> BudgetLimit:
    """The limit that enforces a budget. Without Redis, pods divide what was left at the last look."""
    at_spent = _AT_SPENT.get(budget.at_100, AtSpent.STOP)
    return BudgetLimit(
        name=rule_name(budget.name),
        limit=budget.amount if at_spent is AtSpent.STOP else MAX_BUDGET,
        window_ms=PERIOD_MS[budget.period],
        algorithm=Algorithm.FIXED_WINDOW,
        failure_policy=FailurePolicy.LOCAL_SHARE,
        period=budget.period,
        time_zone=budget.time_zone,
        measure=budget.measure,
        warn_percent=budget.warn_percent,
        budget=budget.name,
        amount=budget.amount,
        at_spent=at_spent,
    )


def limits_of(budgets: tuple[Budget, ...]) -> tuple[BudgetLimit, ...]:
    return tuple([limit_of(budget) for budget in budgets])


def rule_name(budget: str) -> str:
    """The name of a budget in decisions and counters. No limit can have this name."""
    return f"budget:{budget}"
