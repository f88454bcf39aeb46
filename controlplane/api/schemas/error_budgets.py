"""The documents of error budgets."""

from dataclasses import dataclass

from ninja import Schema

from controlplane.api.schemas import FromObject
from controlplane.status.error_budgets import DAYS, TARGET_PERCENT, ErrorBudget, ErrorBudgets


@dataclass(frozen=True, kw_only=True)
class BudgetsOfAll:
    dependencies: ErrorBudgets
    tenants: ErrorBudgets


class ErrorBudgetOut(Schema):
    """Calls of a dependency, or requests of a tenant under one quota, in the last 28 days."""

    #: The dependency or the tenant.
    name: str
    #: Empty for a dependency.
    quota: str
    asked: int
    #: Failed or refused.
    bad: int
    #: Below 0 if more was refused or failed than the target allows.
    left_percent: float
    spent: bool
    #: How fast the budget is spent: 1 spends all of it in 28 days. Null without calls in that time.
    burn_1h: float | None
    burn_6h: float | None
    burn: float
    #: Seconds of the 28 days that are measured, at least in part.
    known_s: int


class ErrorBudgetsOut(FromObject):
    #: The percentage of calls that must be made and succeed, over this number of days.
    target_percent: float
    days: int
    #: Budgets that are spent, also of those that are not listed.
    spent: int
    dependencies: list[ErrorBudgetOut]
    tenants: list[ErrorBudgetOut]

    @staticmethod
    def resolve_target_percent(found: BudgetsOfAll) -> float:
        return TARGET_PERCENT

    @staticmethod
    def resolve_days(found: BudgetsOfAll) -> int:
        return DAYS

    @staticmethod
    def resolve_spent(found: BudgetsOfAll) -> int:
        return found.dependencies.spent + found.tenants.spent

    @staticmethod
    def resolve_dependencies(found: BudgetsOfAll) -> list[ErrorBudget]:
        return found.dependencies.lines

    @staticmethod
    def resolve_tenants(found: BudgetsOfAll) -> list[ErrorBudget]:
        return found.tenants.lines
