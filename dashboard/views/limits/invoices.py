"""Invoices: what vendors charged for an account and a month, and how far the ledger is from it."""

from collections.abc import Iterable
from datetime import UTC, date, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.alerts.rules.rule import Threshold
from controlplane.alerts.rules.settings import settings_of
from controlplane.errors import InvalidEdit
from controlplane.ledger.invoices import (
    ALERTING_MONTHS,
    Drift,
    months_to_enter,
    read_drifts,
    remove_invoice,
    set_invoice,
)
from controlplane.phrases import percent, usd
from controlplane.policies.document import environment_of
from controlplane.spending.models import Account
from dashboard.edit_form import NOT_SENT, EditForm, chosen_form, run_edit
from dashboard.forms import TextField
from dashboard.tables.table_files import rows_listed
from dashboard.views.page import choices_of, show, text_parameter
from fuseboard.contract.budgets import MAX_BUDGET
from fuseboard.contract.money import micro_usd_of, usd_digits

#: Lines on the page. A file has more.
_SHOWN = 100


class RemoveInvoiceForm(EditForm):
    account = TextField(64)
    month = TextField(7)

    def save(self) -> str:
        month = _month(self.cleaned_data["month"])
        if month is None:
            raise InvalidEdit({"month": ["Choose a month."]})
        remove_invoice(account=self.cleaned_data["account"], month=month, **self.common)
        return f"The invoice of {self.cleaned_data['account']} for {month:%B %Y} is removed."


class InvoiceForm(EditForm):
    account = TextField(64)
    month = TextField(7)
    amount = TextField(40)

    def save(self) -> str:
        account, month = self.cleaned_data["account"], _month(self.cleaned_data["month"])
        amount, wrong = _amount(self.cleaned_data["amount"])
        problems = {"amount": wrong} if wrong else {}
        if not account:
            problems["account"] = ["Choose an account."]
        if month is None:
            problems["month"] = ["Choose a month."]
        if problems or month is None:
            raise InvalidEdit(problems)
        set_invoice(account=account, month=month, micro_usd=amount, **self.common)
        return f"The invoice of {account} for {month:%B %Y} is saved."


_ACTS = {"save": InvoiceForm, "remove": RemoveInvoiceForm}


@require_http_methods(["GET", "POST"])
@require("view")
def invoices(request: HttpRequest) -> HttpResponseBase:
    """The address names the invoice that the form corrects: ``?account=main&month=2026-10``."""
    if request.method == "POST":
        return require("edit_quota")(_edit)(request)
    return _page(request)


def _edit(request: HttpRequest) -> HttpResponse:
    return run_edit(chosen_form(request, _ACTS), page=_page, then="invoices")


def _page(request: HttpRequest, *, status: int = 200, **sent: Any) -> HttpResponse:
    environment = environment_in(request)
    most = rows_listed(request, _SHOWN)
    drifts = read_drifts(environment, most=most + 1)
    threshold = settings_of(environment_of(environment).alert_rules, "drift").threshold
    rows = [_row(one, threshold) for one in drifts[:most]]
    chosen = _chosen(request, drifts)
    months = months_to_enter()
    start = {
        "account": chosen.account if chosen else "",
        "month": f"{chosen.month if chosen else months[0]:%Y-%m}" if chosen or months else "",
        "amount": usd_digits(chosen.invoiced) if chosen else "",
    }
    sent = {**NOT_SENT, **sent}
    return show(
        request,
        "costs",
        "invoices.html",
        status=status,
        rows=rows,
        cut=len(drifts) > most,
        far=sum(row["far"] for row in rows),
        near=threshold.shown("warning"),
        alerting=ALERTING_MONTHS,
        chosen=_row(chosen, threshold) if chosen else None,
        accounts=choices_of(Account, environment, "Choose an account"),
        months=[(f"{month:%Y-%m}", f"{month:%B %Y}") for month in months],
        **{**sent, "typed": sent["typed"] or start},
    )


def _chosen(request: HttpRequest, drifts: Iterable[Drift]) -> Drift | None:
    account, month = text_parameter(request, "account"), text_parameter(request, "month")
    found = (one for one in drifts if (one.account, f"{one.month:%Y-%m}") == (account, month))
    return next(found, None)


def _row(one: Drift, threshold: Threshold) -> dict[str, Any]:
    side = "" if not one.share else " above" if one.share > 0 else " below"
    since = one.counted_from
    return {
        "account": one.account,
        "month": f"{one.month:%B %Y}",
        "plain": f"{one.month:%Y-%m}",
        "invoiced": usd(one.invoiced),
        "ledger": usd(one.ledger),
        # Numbers, for files and for the order.
        "invoiced_usd": usd_digits(one.invoiced).replace(",", ""),
        "ledger_usd": usd_digits(one.ledger).replace(",", ""),
        "drift": f"{percent(one.size)}{side}",
        "far": one.is_whole and threshold.passed("warning", one.size),
        # A ledger that began later has not counted the whole month.
        "counted": ""
        if one.is_whole
        else f"counted from {since:%-d %B %Y} on"
        if since
        else "nothing counted",
    }


def _month(text: str) -> date | None:
    """The first day of a month such as 2026-11."""
    try:
        return datetime.strptime(text.strip(), "%Y-%m").replace(tzinfo=UTC).date()
    except ValueError:
        return None


def _amount(text: str) -> tuple[int, list[str]]:
    """A typed amount in micro-USD, and what is wrong with it."""
    try:
        amount = micro_usd_of(text)
    except ValueError as error:
        return 0, [str(error)]
    return amount, [] if amount <= MAX_BUDGET else [f"Enter at most {usd(MAX_BUDGET)}."]
