"""Budgets that pods enforce as such: the form that adds one, and the page of one."""

from collections.abc import Mapping
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.errors import EditConflict, EditError, InvalidEdit
from controlplane.policies.models import Dependency, Tier
from controlplane.spending.budget_rows import OWNERS, Account, Budget
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import SentNumberField, TextField, WholeField
from dashboard.views.page import context_of, names_of, not_found, text_parameter
from dashboard.words.money_words import micro_usd_of, usd
from dashboard.words.rate_words import amount_words
from fuseboard.contract.budgets import MAX_BUDGET, MICRO_USD, AtSpent

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
                raise InvalidEdit({"amount": [f"Enter at most {usd(MAX_BUDGET)} USD."]})
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

    def refuse(self, error: EditError) -> int:
        # An error of the budget as a whole stands at its name.
        if isinstance(error, InvalidEdit):
            error = InvalidEdit(
                {"name" if field == "budget" else field: texts for field, texts in error.errors.items()}
            )
        return super().refuse(error)


class ChangeForm(_AmountForm):
    at_100 = TextField(16)
    warn_percent = WholeField(required=False, bounds=(0, 100))
    version = SentNumberField()

    def save(self) -> int:
        warn = self.cleaned_data["warn_percent"]
        return edits.set_budget(
            budget=self.known["budget"],
            amount=self.units(self.known["measure"]),
            at_100=self.cleaned_data["at_100"],
            warn_percent=warn,
            expected_version=self.cleaned_data["version"],
            **_without_measure(self.common),
        )


class RaiseForm(_AmountForm):
    minutes = WholeField(bounds=(1, 31 * 24 * 60))
    version = SentNumberField()

    def save(self) -> int:
        return edits.raise_budget(
            amount=self.units(self.known["measure"]),
            minutes=self.cleaned_data["minutes"],
            expected_version=self.cleaned_data["version"],
            **{**_without_measure(self.common), "budget": self.known["budget"]},
        )


class LowerForm(EditForm):
    version = SentNumberField()

    def save(self) -> int:
        return edits.set_budget(
            raised_to=0,
            raised_until="",
            expected_version=self.cleaned_data["version"],
            **{**_without_measure(self.common), "budget": self.known["budget"]},
        )


class RemoveForm(EditForm):
    version = SentNumberField()

    def save(self) -> int:
        self.then = reverse("budgets")
        return edits.remove_budget(
            expected_version=self.cleaned_data["version"],
            **{**_without_measure(self.common), "budget": self.known["budget"]},
        )


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

    def page(request: HttpRequest, **extra: Any) -> HttpResponse:
        return _page(request, name=name, act=request.POST.get("act", ""), **extra)

    form = chosen_form(request, _ACTS, budget=name, measure=row.measure)
    return run_edit(form, page=page, then=reverse("money_budget", args=[name]))


def _new(
    request: HttpRequest,
    *,
    typed: Mapping[str, Any] | None = None,
    errors: Mapping[str, Any] | None = None,
    status: int = 200,
    **extra: Any,
) -> HttpResponse:
    environment = environment_in(request)
    named = {owner: text_parameter(request, owner) for owner in OWNERS if request.GET.get(owner)}
    first = named and {"whose": next(iter(named))}
    context = context_of(
        request,
        "budgets",
        typed=_STARTS | named | (first or {}) if typed is None else typed,
        errors=errors or {},
        fields=_FIELDS,
        whose=WHOSE,
        periods=PERIODS,
        at_100=AT_100,
        accounts=[("", "Choose an account"), *((each, each) for each in _accounts(environment))],
        dependencies=[
            ("", "Choose a dependency"),
            *((each, each) for each in names_of(Dependency, environment)),
        ],
        tiers=[("", "Choose a tier"), *((each, each) for each in names_of(Tier, environment))],
        **extra,
    )
    return render(request, "dashboard/money_budget_form.html", context, status=status)


def _page(
    request: HttpRequest,
    *,
    name: str,
    act: str = "",
    typed: Mapping[str, Any] | None = None,
    errors: Mapping[str, Any] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
    **extra: Any,
) -> HttpResponse:
    row = _find(environment_in(request), name)
    if row is None:
        return not_found(request, "No such budget", "There is no budget with this name.")
    kind, owner = row.owner
    money = row.measure == MICRO_USD
    more = min(row.amount * 3 // 2, MAX_BUDGET)
    context = context_of(
        request,
        "budgets",
        row=row,
        kind=kind,
        owner=owner,
        unit="USD" if money else row.measure,
        amount=amount_words(row.amount, row.measure),
        raised=None if row.raised_to is None else amount_words(row.raised_to, row.measure),
        plain=usd(row.amount) if money else str(row.amount),
        more=usd(more) if money else str(more),
        at_100=AT_100,
        at_100_words=dict(AT_100).get(row.at_100, row.at_100),
        minutes=[(str(number), words) for number, words in RAISED_MINUTES],
        act=act,
        typed=typed or {},
        errors=errors or {},
        conflict=conflict,
        **extra,
    )
    return render(request, "dashboard/money_budget.html", context, status=status)


def _accounts(environment: str) -> list[str]:
    rows = Account.objects.filter(environment=environment).order_by("name")
    return list(rows.values_list("name", flat=True))


def _find(environment: str, name: str) -> Budget | None:
    return Budget.objects.filter(environment=environment, name=name[:64].replace("\x00", "")).first()


def _plain(owner: str) -> str:
    """The beginning of a name, from the name of an owner, which may have any characters."""
    plain = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in owner)[:30]
    return plain.strip("-") or "budget"


def _without_measure(common: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in common.items() if name not in ("measure", "budget")}
