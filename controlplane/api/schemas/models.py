"""Models of language and their prices. Amounts are whole micro-USD per million tokens."""

from datetime import date
from typing import Annotated, Literal

from ninja import Path, Schema
from pydantic import AfterValidator, Field

from controlplane.api.schemas.edits_in import ReasonIn, Slug, Strict, Version, one_line
from fuseboard.contract.models import MAX_ALIAS, MAX_ALIASES, MAX_LONG, MAX_PRICE

Alias = Annotated[str, Field(min_length=1, max_length=MAX_ALIAS), AfterValidator(one_line)]
#: Other fields read no text as something else.
Day = Annotated[date, Field(strict=False)]
Amount = Annotated[int, Field(ge=0, le=MAX_PRICE)]
START = "A date, 2026-01-31, or a minute, 2026-01-31T18:30Z. Without a time zone, it is UTC."
Start = Annotated[str, Field(max_length=40, description=START)]
StartInPath = Path[Start]


def _amount(what: str) -> object:
    return Field(description=f"Micro-USD per million tokens of {what}.")


_OR_INPUT = "; that of the input if a new price leaves it out"
_OR_INPUT_HERE = "; without it, that of the input"


class PriceValuesIn(Strict):
    """A field that is left out stays as it is. A new price needs ``input`` and ``output``."""

    input: Annotated[Amount | None, _amount("input that the model reads afresh")] = None
    cached: Annotated[Amount | None, _amount(f"input from the vendor's cache{_OR_INPUT}")] = None
    written: Annotated[Amount | None, _amount(f"input written to the vendor's cache{_OR_INPUT}")] = None
    output: Annotated[Amount | None, _amount("output")] = None
    batch_percent: Annotated[
        int | None, Field(ge=1, le=100, description="What a call in a batch costs, in percent of all this.")
    ] = None
    long_above: Annotated[
        int | None,
        Field(
            ge=0,
            le=MAX_LONG,
            description="Calls with more tokens of input than this cost the long prices, for all their"
            " tokens; 0 for none.",
        ),
    ] = None
    long_input: Annotated[Amount | None, _amount("input of a long call")] = None
    long_cached: Annotated[Amount | None, _amount("input of a long call from the cache")] = None
    long_written: Annotated[Amount | None, _amount("input of a long call written to the cache")] = None
    long_output: Annotated[Amount | None, _amount("output of a long call")] = None


class PriceIn(PriceValuesIn, ReasonIn):
    expected_version: Version | None = None


class ModelIn(ReasonIn):
    """A value that is left out stays as it is, and so does a price that is not named."""

    aliases: Annotated[
        list[Alias] | None, Field(max_length=MAX_ALIASES, description="Other names in requests.")
    ] = None
    pool: Annotated[
        Slug | Literal[""] | None,
        Field(description="The dependency its calls belong to; empty for that of the vendor's host."),
    ] = None
    prices: Annotated[
        dict[Start, PriceValuesIn] | None, Field(max_length=10, description="Prices by their start.")
    ] = None
    expected_version: Annotated[
        int | None,
        Field(
            ge=0,
            le=2**31 - 1,
            description="The version this edit is based on, or 0 for a new model; or send If-Match.",
        ),
    ] = None


class RepricePreviewIn(Strict):
    since: Annotated[Day, Field(description="The first day, in UTC.")]
    until: Annotated[Day, Field(description="The last day, in UTC: at most 62 days in all.")]
    input: Annotated[Amount, _amount("input that the model reads afresh")]
    cached: Annotated[Amount | None, _amount(f"input from the vendor's cache{_OR_INPUT_HERE}")] = None
    written: Annotated[Amount | None, _amount(f"input written to the vendor's cache{_OR_INPUT_HERE}")] = None
    output: Annotated[Amount, _amount("output")]


class RepriceIn(RepricePreviewIn, ReasonIn):
    expected_version: Version | None = None


class BudgetSumOut(Schema):
    budget: str
    #: A budget of a tier has one for each tenant.
    counters: int
    #: Micro-USD that are added to what is spent in the present period; negative for less.
    added: int


class RepricedOut(Schema):
    """Sums in micro-USD."""

    model: str
    version: int
    since: date
    until: date
    calls: int
    tokens: int
    #: The cost of these calls in the ledger, before and after.
    before: int
    after: int
    #: Calls, at most, that were in a batch, or long, at another price then. The ledger does not know which,
    #: so they get this price too.
    batch_calls: int
    long_calls: int
    #: Budgets that change most come first.
    budgets: list[BudgetSumOut]


class PriceOut(Schema):
    #: When it begins: a date, or a minute, in UTC.
    starts_at: str
    #: Whether it applies now.
    applies: bool
    input: int
    cached: int
    written: int
    output: int
    batch_percent: int
    long_above: int
    long_input: int
    long_cached: int
    long_written: int
    long_output: int


class ModelOut(Schema):
    name: str
    aliases: list[str]
    #: The dependency its calls belong to; empty for that of the vendor's host.
    pool: str
    #: The newest first.
    prices: list[PriceOut]
    version: int
