"""Budgets: the use of every hourly, daily, weekly or monthly limit, and where it leads."""

from dataclasses import dataclass

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET

from controlplane.accounts.permissions import environment_in, require_role
from controlplane.fleet.live import figures
from controlplane.fleet.older_agents import unenforced_words
from controlplane.phrases import amount_words
from controlplane.spending.budget_rows import Budget as MoneyBudget
from controlplane.usage.budgets import MAX_BUDGETS, WARN_PERCENT, Budget, budgets, use_of_budget
from dashboard.links import limit_editor
from dashboard.views.page import show
from fuseboard.contract.budgets import AtSpent


@dataclass(frozen=True, kw_only=True)
class BudgetRow:
    budget: Budget
    spent: str
    limit: str
    projected: str
    #: The form that changes it.
    edit: str
    #: Its name, and what happens when it is spent if that is not a refusal; empty for a refusal.
    name: str
    when_spent: str

    @property
    def css(self) -> str:
        return {"over": "st-open", "warn": "st-warn", "will_be_over": "st-warn"}.get(self.budget.state, "")

    @property
    def word(self) -> str:
        return {
            "over": "Over budget",
            "warn": f"Above {self.budget.warn_percent} %",
            "will_be_over": "Will be over",
            "ok": "Within budget",
        }.get(self.budget.state, "Unknown")


@require_GET
@require_role("viewer")
def budgets_page(request: HttpRequest) -> HttpResponse:
    environment = environment_in(request)
    found = budgets(environment, _busy(environment), now=timezone.now().timestamp())
    rows = [_row(one) for one in found.rows]
    money = MoneyBudget.objects.filter(environment=environment)
    states = [row.budget.state for row in rows]
    return show(
        request,
        "budgets",
        "budgets.html",
        rows=rows,
        known=found.known,
        cut=found.cut,
        most=MAX_BUDGETS,
        over=states.count("over"),
        near=states.count("warn"),
        will=states.count("will_be_over"),
        warn_percent=WARN_PERCENT,
        # Only budgets that pods enforce as such need a newer agent. Those of a tier may have no row.
        unenforced=unenforced_words(environment) if money.exists() else "",
    )


def rows_of_budget(environment: str, title: str) -> list[BudgetRow]:
    """The use of the budget with this name; of a tier, by each of its busiest tenants."""
    found = use_of_budget(environment, title, _busy(environment), now=timezone.now().timestamp())
    return [_row(one) for one in found.rows]


def _busy(environment: str) -> set[tuple[str, str]]:
    return {(rule.tenant, rule.rule) for rule in figures(environment).rules if rule.tenant}


def _row(budget: Budget) -> BudgetRow:
    def quantity(amount: int | None) -> str:
        return "" if amount is None else amount_words(amount, budget.measure)

    return BudgetRow(
        budget=budget,
        spent=quantity(budget.spent),
        limit=amount_words(budget.limit, budget.measure, exact=True),
        projected=quantity(budget.projected),
        edit=_edit(budget),
        name=budget.title or budget.name,
        when_spent=_WHEN_SPENT.get(budget.at_100, "only counts" if budget.shadow else ""),
    )


_WHEN_SPENT = {AtSpent.WARN.value: "only warns", AtSpent.DEGRADE.value: "degrades"}


def _edit(budget: Budget) -> str:
    if budget.title:
        return reverse("money_budget", args=[budget.title])
    kind, owner = {
        "vendor": ("dependency", budget.dependency),
        "tier": ("tier", budget.tier),
    }.get(budget.source, ("tenant", budget.tenant))
    return limit_editor(kind, owner, budget.name)
