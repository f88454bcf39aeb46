"""Budgets that pods enforce as such: the form that adds one, and the page of one."""

from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.errors import InvalidEdit
from controlplane.phrases import amount_words
from controlplane.policies.models import Dependency, Tier
from controlplane.spending.budget_rows import OWNERS, Account, Budget
from dashboard.edit_form import NOT_SENT, EditForm, VersionForm, chosen_form, run_edit
from dashboard.forms import TextField, WholeField
from dashboard.views.limits.budgets import rows_of_budget
from dashboard.views.page import choices_of, find_named, not_found, show, text_parameter
from fuseboard.contract.budgets import MAX_BUDGET, MICRO_USD, AtSpent
from fuseboard.contract.money import micro_usd_of, usd, usd_digits

WHOSE = (
    ("account", "An account: all its pools together"),
    ("dependency", "All calls to a dependency"),
    ("tier", "Each tenant of a tier"),
    ("tenant", "One tenant"),
)
PERIODS = (("month", "Month"), ("week", "Week"), ("day", "Day"), ("hour", "Hour"))
AT_100 = (
    (AtSpent.STOP.value, "Stop: refuse calls until the period ends"),
    (AtSpent.WARN.value, "Only warn: calls pass"),
    (AtSpent.DEGRADE.value, "Degrade: calls pass, fallbacks choose something cheaper"),
)
_STARTS = {
    "whose": "account",
    "period": "month",
    "at_100": AtSpent.STOP.value,
    "warn_percent": "80",
    "time_zone": "UTC",
}
#: How long the page raises a budget.
RAISED_MINUTES = ((60, "1 hour"), (240, "4 hours"), (1_440, "1 day"))
_FIELDS = (
    "whose,account,dependency,tier,tenant,amount,period,at_100,warn_percent,time_zone,name,instead_of,reason"
)


class _AmountForm(EditForm):
    amount = TextField(40)

    def units(self, measure: str) -> int:
        """The typed amount in the unit of the measure."""
        text = self.cleaned_data["amount"]
        if measure == MICRO_USD:
            try:
                amount = micro_usd_of(text)
            except ValueError as error:
                raise InvalidEdit({"amount": [str(error)]}) from None
            if amount > MAX_BUDGET:
                raise InvalidEdit({"amount": [f"Enter at most {usd(MAX_BUDGET, exact=True)}."]})
            return amount
        plain = text.strip().replace(",", "")
        if not (plain.isascii() and plain.isdecimal() and len(plain) <= 16):
            raise InvalidEdit({"amount": ["Enter a whole number of at least 0."]})
        return int(plain)


class NewBudgetForm(_AmountForm):
    whose = TextField(16)
    account, dependency, tier, tenant = TextField(64), TextField(64), TextField(64), TextField(200)
    period = TextField(8)
    at_100 = TextField(16)
    warn_percent = WholeField(required=False, bounds=(0, 100))
    time_zone = TextField(64)
    name = TextField(64)
    instead_of = TextField(64)
    shown_at: ClassVar = {"budget": "name"}

    def save(self) -> int:
        typed = self.cleaned_data
        whose = typed["whose"]
        if whose not in OWNERS:
            raise InvalidEdit({"whose": ["Choose whose budget it is."]})
        if not typed[whose]:
            raise InvalidEdit({whose: [f"Choose the {whose}."]})
        self.then = reverse("budgets")
        warn = {} if typed["warn_percent"] is None else {"warn_percent": typed["warn_percent"]}
        return edits.set_budget(
            budget=typed["name"] or f"{_plain(typed[whose])}-{typed['period']}",
            amount=self.units(MICRO_USD),
            period=typed["period"],
            at_100=typed["at_100"],
            time_zone=typed["time_zone"] or "UTC",
            instead_of=typed["instead_of"] if whose == "tenant" else "",
            expected_version=0,
            **{whose: typed[whose]},
            **warn,
            **self.common,
        )


class _BudgetForm(VersionForm):
    """Changes a budget. Its ``measure`` is the unit of typed amounts, and no argument of an edit."""

    def __init__(self, request: HttpRequest, /, *, measure: str, **known: Any) -> None:
        super().__init__(request, **known)
        self.measure = measure


class ChangeForm(_AmountForm, _BudgetForm):
    at_100 = TextField(16)
    warn_percent = WholeField(required=False, bounds=(0, 100))

    def save(self) -> int:
        return edits.set_budget(
            amount=self.units(self.measure),
            at_100=self.cleaned_data["at_100"],
            warn_percent=self.cleaned_data["warn_percent"],
            **self.common,
        )


class RaiseForm(_AmountForm, _BudgetForm):
    minutes = WholeField(bounds=(1, 31 * 24 * 60))

    def save(self) -> int:
        amount, minutes = self.units(self.measure), self.cleaned_data["minutes"]
        return edits.raise_budget(amount=amount, minutes=minutes, **self.common)


class LowerForm(_BudgetForm):
    def save(self) -> int:
        return edits.set_budget(raised_to=0, raised_until="", **self.common)


class RemoveForm(_BudgetForm):
    def save(self) -> int:
        self.then = reverse("budgets")
        return edits.remove_budget(**self.common)


#: Button -> its form.
_ACTS = {"change": ChangeForm, "raise": RaiseForm, "lower": LowerForm, "remove": RemoveForm}


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def add_money_budget(request: HttpRequest) -> HttpResponse:
    """Show the form, for the owner that the address names, or save what was typed."""
    if request.method != "POST":
        return _new(request)
    return run_edit(NewBudgetForm(request), page=_new)


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def money_budget(request: HttpRequest, name: str) -> HttpResponseBase:
    """One budget, and the forms that change it, raise it for a time, or remove it."""
    if request.method == "POST":
        return require("edit_quota")(_edit)(request, name)
    return _page(request, name=name)


def _edit(request: HttpRequest, name: str) -> HttpResponse:
    row = _find(environment_in(request), name)
    if row is None:
        return _page(request, name=name)
    form = chosen_form(request, _ACTS, budget=name, measure=row.measure)
    page = partial(_page, name=name, act=form.act)
    return run_edit(form, page=page, then=reverse("money_budget", args=[name]))


def _new(
    request: HttpRequest,
    *,
    typed: Mapping[str, Any] | None = None,
    status: int = 200,
    **sent: Any,
) -> HttpResponse:
    environment = environment_in(request)
    named = {owner: text_parameter(request, owner) for owner in OWNERS if request.GET.get(owner)}
    first = named and {"whose": next(iter(named))}
    typed = _STARTS | named | (first or {}) if typed is None else typed
    return show(
        request,
        "budgets",
        "money_budget_form.html",
        status=status,
        fields=_FIELDS,
        whose=WHOSE,
        periods=PERIODS,
        at_100=AT_100,
        accounts=choices_of(Account, environment, "Choose an account"),
        dependencies=choices_of(Dependency, environment, "Choose a dependency"),
        tiers=choices_of(Tier, environment, "Choose a tier"),
        **{**NOT_SENT, **sent, "typed": typed},
    )


def _page(request: HttpRequest, *, name: str, status: int = 200, **sent: Any) -> HttpResponse:
    row = _find(environment_in(request), name)
    if row is None:
        return not_found(request, "No such budget", "There is no budget with this name.")
    kind, owner = row.owner
    money = row.measure == MICRO_USD
    more = min(row.amount * 3 // 2, MAX_BUDGET)
    in_force = row.raised_until is not None and row.raised_until > timezone.now()
    raised = row.raised_to if in_force else None
    return show(
        request,
        "budgets",
        "money_budget.html",
        status=status,
        row=row,
        rows=rows_of_budget(environment_in(request), row.name),
        kind=kind,
        owner=owner,
        unit="USD" if money else row.measure,
        amount=amount_words(row.amount, row.measure, exact=True),
        raised=None if raised is None else amount_words(raised, row.measure, exact=True),
        plain=usd_digits(row.amount) if money else str(row.amount),
        more=usd_digits(more) if money else str(more),
        at_100=AT_100,
        at_100_words=dict(AT_100).get(row.at_100, row.at_100),
        minutes=[(str(number), words) for number, words in RAISED_MINUTES],
        **{**NOT_SENT, **sent},
    )


def _find(environment: str, name: str) -> Budget | None:
    return find_named(Budget.objects.filter(environment=environment), name)


def _plain(owner: str) -> str:
    """The beginning of a name, from the name of an owner, which may have any characters."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in owner)[:30]
    return plain.strip("-") or "budget"
