"""Models of language: their names, the dependency of their calls, and their prices by date."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any

from django import forms
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.errors import EditConflict, EditError, InvalidEdit
from controlplane.policies.models import Dependency
from controlplane.spending.fields import COLUMNS, start_text
from controlplane.spending.models import LONG_PRICES, PRICES, Model, Price
from controlplane.spending.present_prices import DatedPrice, dated_prices
from dashboard.edit_form import EditForm, chosen_form, run_edit
from dashboard.forms import MomentField, SentNumberField, TextField, WholeField
from dashboard.views.page import context_of, names_of, not_found
from dashboard.words.money_words import PRICE_LABELS, WRONG_USD, micro_usd_of, usd
from fuseboard.contract.models import MAX_LONG

_MANY_LINES = 12_000
#: The fields that show their errors.
_BESIDE = ",".join(("pool", "aliases", "starts_at", *COLUMNS, "reason"))


class UsdField(forms.Field):
    """A price in USD per million tokens. If it is not required, an empty text is ``None``."""

    def __init__(self, *, required: bool = False) -> None:
        super().__init__(required=required, error_messages={"required": WRONG_USD})

    def to_python(self, value: str | None) -> int | None:
        if not (text := (value or "").strip()):
            return None
        try:
            return micro_usd_of(text)
        except ValueError as error:
            raise forms.ValidationError(str(error)) from None


class PriceForm(EditForm):
    """A price from an instant on; for a model that exists already, or with a new one."""

    starts_at = MomentField(required=False)
    input, output = UsdField(required=True), UsdField(required=True)
    cached, written = UsdField(), UsdField()
    batch_percent = WholeField(required=False, bounds=(1, 100))
    long_above = WholeField(required=False, bounds=(0, MAX_LONG))
    long_input, long_cached, long_written, long_output = UsdField(), UsdField(), UsdField(), UsdField()
    version = SentNumberField()

    def save(self) -> int:
        return edits.set_price(
            starts_at=self.start,
            price=self.price,
            expected_version=self.cleaned_data["version"],
            **self.common,
        )

    @property
    def start(self) -> str:
        """Without a start, a price applies from this minute on."""
        return start_text(self.cleaned_data["starts_at"] or _this_minute())

    @property
    def price(self) -> dict[str, int]:
        columns = (*PRICES, "batch_percent", "long_above", *LONG_PRICES)
        given = {column: self.cleaned_data[column] for column in columns}
        return {column: value for column, value in given.items() if value is not None}


class NewModelForm(PriceForm):
    """A model, with its first price if one is typed."""

    name = TextField(200)
    pool = TextField(200)
    aliases = TextField(_MANY_LINES)
    input, output = UsdField(), UsdField()

    def save(self) -> int:
        name, price = self.cleaned_data["name"], self.price
        if not name:
            raise InvalidEdit({"name": ["Enter the name that requests have, such as gpt-5.2."]})
        self.then = _address(name)
        return edits.set_model(
            model=name,
            aliases=_lines(self.cleaned_data["aliases"]),
            pool=self.cleaned_data["pool"],
            prices={self.start: price} if price else None,
            expected_version=0,
            **self.common,
        )

    def refuse(self, error: EditError) -> int:
        # An error of the model as a whole stands at its name.
        if isinstance(error, InvalidEdit):
            error = InvalidEdit(
                {"name" if field == "model" else field: texts for field, texts in error.errors.items()}
            )
        return super().refuse(error)


class NamesForm(EditForm):
    pool = TextField(200)
    aliases = TextField(_MANY_LINES)
    version = SentNumberField()

    def save(self) -> int:
        return edits.set_model(
            aliases=_lines(self.cleaned_data["aliases"]),
            pool=self.cleaned_data["pool"],
            expected_version=self.cleaned_data["version"],
            **self.common,
        )


class RemovePriceForm(EditForm):
    start = TextField(40)
    version = SentNumberField()

    def save(self) -> int:
        return edits.remove_price(
            starts_at=self.cleaned_data["start"],
            expected_version=self.cleaned_data["version"],
            **self.common,
        )


class RemoveModelForm(EditForm):
    version = SentNumberField()

    def save(self) -> int:
        self.then = reverse("models")
        return edits.remove_model(expected_version=self.cleaned_data["version"], **self.common)


#: Button -> its form.
_ACTS = {"names": NamesForm, "price": PriceForm, "unprice": RemovePriceForm, "remove": RemoveModelForm}


@require_GET
@require_role("viewer")
def models(request: HttpRequest) -> HttpResponse:
    return _list(request)


@require_POST
@require("edit_quota")
def make_model(request: HttpRequest) -> HttpResponse:
    return run_edit(NewModelForm(request), page=_list)


@require_http_methods(["GET", "POST"])
@require_role("viewer")
def model(request: HttpRequest, name: str) -> HttpResponseBase:
    """One model, its prices by date, and the forms to change them."""
    if request.method == "POST":
        return require("edit_quota")(_edit)(request, name)
    row = _find(environment_in(request), name)
    return _page(request, row=row) if row else _missing(request)


def _edit(request: HttpRequest, name: str) -> HttpResponse:
    row = _find(environment_in(request), name)
    if row is None:
        return _missing(request)
    form = chosen_form(request, _ACTS, model=row.name)
    return run_edit(form, page=partial(_page, row=row, act=form.act), then=_address(row.name))


def _list(
    request: HttpRequest,
    *,
    typed: Mapping[str, Any] | None = None,
    errors: Mapping[str, Any] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    environment = environment_in(request)
    rows = Model.objects.filter(environment=environment).prefetch_related("prices")
    shown = sorted((_line(row) for row in rows), key=lambda line: (line["price"] is not None, line["name"]))
    context = context_of(
        request,
        "models",
        rows=shown,
        unpriced=sum(line["price"] is None for line in shown),
        typed=typed or {},
        errors=errors or {},
        conflict=conflict,
        beside=f"name,{_BESIDE}",
        pools=_pools(environment),
    )
    return render(request, "dashboard/models.html", context, status=status)


def _page(
    request: HttpRequest,
    *,
    row: Model,
    act: str = "",
    typed: Mapping[str, Any] | None = None,
    errors: Mapping[str, Any] | None = None,
    conflict: EditConflict | None = None,
    status: int = 200,
) -> HttpResponse:
    dated = dated_prices(row)
    context = context_of(
        request,
        "models",
        row=row,
        prices=[_price_line(each) for each in dated],
        priced=any(each.applies for each in dated),
        ahead=any(not each.has_begun for each in dated),
        aliases=typed.get("aliases", "") if typed and act == "names" else "\n".join(row.aliases),
        beside=_BESIDE,
        pools=_pools(environment_in(request)),
        act=act,
        typed=typed or {},
        errors=errors or {},
        conflict=conflict,
    )
    return render(request, "dashboard/model.html", context, status=status)


def _line(row: Model) -> dict[str, Any]:
    dated = dated_prices(row)
    present = next((each for each in dated if each.applies), None)
    ahead = next((each for each in dated if not each.has_begun), None)
    return {
        "name": row.name,
        "pool": row.pool,
        "aliases": row.aliases,
        "price": present and _price_line(present),
        "next": ahead and _price_line(ahead),
    }


def _price_line(dated: DatedPrice) -> dict[str, Any]:
    row = dated.row
    amounts = {column: usd(getattr(row, column)) for column in PRICES}
    return {
        **amounts,
        "start": start_text(row.starts_at),
        "starts_at": row.starts_at,
        "applies": dated.applies,
        "has_begun": dated.has_begun,
        "more": _more(row),
    }


def _more(row: Price) -> list[str]:
    """The parts that few prices have, in words."""
    found = [f"batch {row.batch_percent} %"] if row.batch_percent != 100 else []
    if row.long_above:
        longs = ", ".join(f"{PRICE_LABELS[each]} {usd(getattr(row, f'long_{each}'))}" for each in PRICES)
        found.append(f"above {row.long_above:,} tokens of input: {longs}")
    return found


def _pools(environment: str) -> list[tuple[str, str]]:
    return [("", "By the host of the vendor"), *((name, name) for name in names_of(Dependency, environment))]


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _this_minute() -> datetime:
    return timezone.now().replace(second=0, microsecond=0)


def _address(name: str) -> str:
    return reverse("model", args=[name])


def _missing(request: HttpRequest) -> HttpResponse:
    return not_found(request, "No such model", "There is no model with this name.")


def _find(environment: str, name: str) -> Model | None:
    rows = Model.objects.filter(environment=environment).prefetch_related("prices")
    return rows.filter(name=name[:64].replace("\x00", "")).first()
