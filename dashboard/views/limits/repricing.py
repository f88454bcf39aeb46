"""Prices the past calls of a model again: a preview of all sums, then the correction."""

from datetime import UTC, date, datetime
from typing import Any

from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.views.decorators.http import require_http_methods

from controlplane.accounts.permissions import environment_in, require
from controlplane.errors import InvalidEdit
from controlplane.phrases import count, usd
from controlplane.repricing.reprice import Repriced, preview_repricing, reprice_calls
from controlplane.spending.models import PRICES, Model
from controlplane.spending.present_prices import dated_prices
from dashboard.edit_form import NOT_SENT, VersionForm, run_edit
from dashboard.forms import TextField
from dashboard.views.limits.models import UsdField
from dashboard.views.page import find_named, not_found, show
from fuseboard.contract.money import usd_digits

#: Budgets in the table. The others are one line.
_SHOWN = 100


class PreviewForm(VersionForm):
    """Shows the page again, with the sums."""

    needs_reason = False
    since, until = TextField(10), TextField(10)
    input, output = UsdField(required=True), UsdField(required=True)
    cached, written = UsdField(), UsdField()
    #: The days and the price whose sums the page has shown.
    previewed = TextField(300)

    def save(self) -> str | HttpResponse:
        found = preview_repricing(
            environment=environment_in(self.request), model=self.known["model"], **self._asked
        )
        return _page(self.request, self.known["model"], typed=self.data, found=found, previewed=self._shown)

    @property
    def _asked(self) -> dict[str, Any]:
        typed, days, wrong = self.cleaned_data, {}, {}
        for name in ("since", "until"):
            try:
                days[name] = date.fromisoformat(typed[name].strip())
            except ValueError:
                wrong[name] = ["Enter a day, such as 2026-11-28."]
        if wrong:
            raise InvalidEdit(wrong)
        return {**days, "price": {name: typed[name] for name in PRICES if typed[name] is not None}}

    @property
    def _shown(self) -> str:
        asked = self._asked
        prices = [f"{name} {value}" for name, value in asked["price"].items()]
        return ", ".join([f"{asked['since']} to {asked['until']}", *prices])


class RepriceForm(PreviewForm):
    needs_reason = True

    def save(self) -> str | HttpResponse:
        if self.cleaned_data["previewed"] != self._shown:
            # Not what the person has seen the sums of.
            return super().save()
        done = reprice_calls(**self.common, **self._asked)
        return f"These calls of {done.model} cost {usd(done.after)} now, instead of {usd(done.before)}."


@require_http_methods(["GET", "POST"])
@require("edit_quota")
def reprice(request: HttpRequest, name: str) -> HttpResponse:
    """A form; the sums first, then the button that changes them."""
    row = find_named(Model.objects.filter(environment=environment_in(request)), name)
    if row is None:
        return not_found(request, "No such model", "There is no model with this name.")
    if request.method != "POST":
        return _page(request, row.name, typed=_begins(row))
    make = RepriceForm if request.POST.get("act") == "reprice" else PreviewForm
    return run_edit(
        make(request, model=row.name),
        page=lambda request, **sent: _page(request, row.name, **sent),
        then=reverse("model", args=[row.name]),
    )


def _page(
    request: HttpRequest, name: str, *, found: Repriced | None = None, status: int = 200, **sent: Any
) -> HttpResponse:
    row = Model.objects.get(environment=environment_in(request), name=name)
    shown = {} if found is None else {"lines": _lines(found), "notes": _notes(found)}
    return show(
        request,
        "models",
        "reprice.html",
        status=status,
        row=row,
        version=row.version if found is None else found.version,
        found=found,
        **{**NOT_SENT, **shown, **sent},
    )


def _lines(found: Repriced) -> list[dict[str, str]]:
    """Lines of the table: a thing, its sums now and after it, and the difference."""
    of = f"{count(found.calls, 'call', grouped=True)}, {count(found.tokens, 'token', grouped=True)}"
    ledger = _line("Ledger", of, found.after - found.before)
    lines = [
        _line(f"Budget {one.budget}", f"of {one.counters:,} tenants" if one.counters > 1 else "", one.added)
        for one in found.budgets[:_SHOWN]
    ]
    if others := found.budgets[_SHOWN:]:
        lines.append(_line(f"{len(others):,} other budgets", "", sum(one.added for one in others)))
    return [ledger | {"now": usd(found.before), "after": usd(found.after)}, *lines]


def _line(what: str, of: str, micro_usd: int) -> dict[str, str]:
    return {"what": what, "of": of, "added": f"+{usd(micro_usd)}" if micro_usd > 0 else usd(micro_usd)}


def _notes(found: Repriced) -> list[str]:
    """Sentences about budgets, and about calls that the ledger cannot tell apart."""
    notes = []
    if not found.budgets:
        notes.append("No budget changes: none has counted these calls in its present period.")
    if any(one.added > 0 for one in found.budgets):
        notes.append("A budget that this spends refuses or degrades calls, unless it only warns.")
    for calls, what in ((found.batch_calls, "in a batch"), (found.long_calls, "with a long input")):
        if calls:
            notes.append(
                f"At most {count(calls, 'call', grouped=True)} {what} had another price at that time. The"
                " ledger does not know which: they get this price too."
            )
    return notes


def _begins(row: Model) -> dict[str, str]:
    """This month by the present price, which is the one that most wrong prices were replaced by."""
    today = datetime.now(UTC).date()
    price = next((each.row for each in dated_prices(row) if each.applies), None)
    amounts = {} if price is None else {name: usd_digits(getattr(price, name)) for name in PRICES}
    return {"since": today.replace(day=1).isoformat(), "until": today.isoformat(), **amounts}
