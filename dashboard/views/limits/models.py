"""Models of language: their names, the dependency of their calls, and their prices by date."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial
from typing import Any, ClassVar

from django import forms
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils import timezone
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from controlplane.accounts.permissions import environment_in, require, require_role
from controlplane.editing import edits
from controlplane.errors import InvalidEdit
from controlplane.ledger.reading import Users, read_users
from controlplane.policies.models import Dependency
from controlplane.spending.fields import COLUMNS, start_text
from controlplane.spending.models import LONG_PRICES, PRICES, Model, Price
from controlplane.spending.present_prices import DatedPrice, dated_prices
from dashboard.edit_form import NOT_SENT, EditForm, VersionForm, chosen_form, run_edit
from dashboard.forms import LinesField, MomentField, TextField, WholeField
from dashboard.views.page import choices_of, find_named, not_found, show
from dashboard.words.money_words import PRICE_LABELS
from fuseboard.contract.models import MAX_LONG
from fuseboard.contract.money import WRONG_USD, micro_usd_of, usd_digits

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


class _PriceFields(EditForm):
    """A price from an instant on; for a model that exists already, or with a new one."""

    starts_at = MomentField(required=False)
    input, output = UsdField(required=True), UsdField(required=True)
    cached, written = UsdField(), UsdField()
    batch_percent = WholeField(required=False, bounds=(1, 100))
    long_above = WholeField(required=False, bounds=(0, MAX_LONG))
    long_input, long_cached, long_written, long_output = UsdField(), UsdField(), UsdField(), UsdField()

    @property
    def start(self) -> str:
        """Without a start, a price applies from this minute on."""
        return start_text(self.cleaned_data["starts_at"] or _this_minute())

    @property
    def price(self) -> dict[str, int]:
        columns = (*PRICES, "batch_percent", "long_above", *LONG_PRICES)
        given = {column: self.cleaned_data[column] for column in columns}
        return {column: value for column, value in given.items() if value is not None}


class PriceForm(_PriceFields, VersionForm):
    def save(self) -> int:
        return edits.set_price(starts_at=self.start, price=self.price, **self.common)


class NewModelForm(_PriceFields):
    """A model, with its first price if one is typed."""

    name = TextField(200)
    pool = TextField(200)
    aliases = LinesField(_MANY_LINES)
    input, output = UsdField(), UsdField()
    shown_at: ClassVar = {"model": "name"}

    def save(self) -> int:
        name, price = self.cleaned_data["name"], self.price
        if not name:
            raise InvalidEdit({"name": ["Enter the name that requests have, such as gpt-5.2."]})
        revision = edits.set_model(
            model=name,
            aliases=self.cleaned_data["aliases"],
            pool=self.cleaned_data["pool"],
            prices={self.start: price} if price else None,
            expected_version=0,
            **self.common,
        )
        # Only a name that was saved has an address.
        self.then = _address(name)
        return revision


class NamesForm(VersionForm):
    pool = TextField(200)
    aliases = LinesField(_MANY_LINES)

    def save(self) -> int:
        typed = self.cleaned_data
        return edits.set_model(aliases=typed["aliases"], pool=typed["pool"], **self.common)


class RemovePriceForm(VersionForm):
    start = TextField(40)
    # The form has no field for the start, so the error stands above the prices.
    shown_at: ClassVar = {"starts_at": "start"}

    def save(self) -> int:
        return edits.remove_price(starts_at=self.cleaned_data["start"], **self.common)


class RemoveModelForm(VersionForm):
    def save(self) -> int:
        self.then = reverse("models")
        return edits.remove_model(**self.common)


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


def _list(request: HttpRequest, *, status: int = 200, **sent: Any) -> HttpResponse:
    environment = environment_in(request)
    rows = Model.objects.filter(environment=environment).prefetch_related("prices")
    used = read_users(environment, timezone.now())
    shown = sorted(
        (_line(row, used) for row in rows), key=lambda line: (line["price"] is not None, line["name"])
    )
    return show(
        request,
        "models",
        "models.html",
        status=status,
        rows=shown,
        unpriced=sum(line["price"] is None for line in shown),
        beside=f"name,{_BESIDE}",
        pools=_pools(environment),
        **{**NOT_SENT, **sent},
    )


def _page(request: HttpRequest, *, row: Model, status: int = 200, **sent: Any) -> HttpResponse:
    dated, sent = dated_prices(row), {**NOT_SENT, **sent}
    aliases = sent["typed"].get("aliases", "") if sent["act"] == "names" else "\n".join(row.aliases)
    return show(
        request,
        "models",
        "model.html",
        status=status,
        row=row,
        prices=[_price_line(each) for each in dated],
        priced=any(each.applies for each in dated),
        ahead=any(not each.has_begun for each in dated),
        aliases=aliases,
        beside=_BESIDE,
        pools=_pools(environment_in(request)),
        **sent,
    )


def _line(row: Model, used: Mapping[str, Users]) -> dict[str, Any]:
    dated = dated_prices(row)
    present = next((each for each in dated if each.applies), None)
    ahead = next((each for each in dated if not each.has_begun), None)
    return {
        "name": row.name,
        "pool": row.pool,
        "aliases": row.aliases,
        "price": present and _price_line(present),
        "next": ahead and _price_line(ahead),
        "use": used.get(row.name),
        "users": _users_words(used[row.name]) if row.name in used else "",
    }


def _users_words(users: Users) -> str:
    """``acme, globex and 3 more``."""
    if not users.tenants:
        return "calls without a tenant"
    more = users.tenants - len(users.first)
    return ", ".join(users.first) + (f" and {more:,} more" if more else "")


def _price_line(dated: DatedPrice) -> dict[str, Any]:
    row = dated.row
    amounts = {column: usd_digits(getattr(row, column)) for column in PRICES}
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
        longs = ", ".join(
            f"{PRICE_LABELS[each]} {usd_digits(getattr(row, f'long_{each}'))}" for each in PRICES
        )
        found.append(f"above {row.long_above:,} tokens of input: {longs}")
    return found


def _pools(environment: str) -> list[tuple[str, str]]:
    return choices_of(Dependency, environment, "By the host of the vendor")


def _this_minute() -> datetime:
    return timezone.now().replace(second=0, microsecond=0)


def _address(name: str) -> str:
    return reverse("model", args=[name])


def _missing(request: HttpRequest) -> HttpResponse:
    return not_found(request, "No such model", "There is no model with this name.")


def _find(environment: str, name: str) -> Model | None:
    return find_named(Model.objects.filter(environment=environment).prefetch_related("prices"), name)
