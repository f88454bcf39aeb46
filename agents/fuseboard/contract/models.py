"""Models of language, in the policy: which dependency their calls belong to, and what they cost.

Prices are whole micro-USD per million tokens, so that a price of $0.15 is 150,000.
"""

import re
from collections.abc import Iterable, Iterator
from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.words import Slug

#: Models of one environment.
MAX_MODELS = 500
#: Aliases of one model.
MAX_ALIASES = 50
MAX_ALIAS = 200
#: Prices of one model in a policy: the present one, and the one before or after it.
MAX_PRICES = 2
#: The highest price: $1,000,000 per million tokens.
MAX_PRICE = 10**12
#: The most tokens of input above which another price can begin.
MAX_LONG = 10**9

MicroUsd = Annotated[int, Meta(ge=0, le=MAX_PRICE)]
Alias = Annotated[str, Meta(min_length=1, max_length=MAX_ALIAS)]

#: A date at the end of a name, as vendors write it: ``gpt-5.2-2026-01-01``, ``claude-haiku-4-5@20251001``.
_DATED = re.compile(r"(.+)[-@](?:20\d\d-[01]\d-[0-3]\d|20\d\d[01]\d[0-3]\d)", re.ASCII | re.DOTALL)


class Price(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The price of a model from one instant on, until the next one begins."""

    #: Seconds since the epoch.
    starts_at_s: int
    #: Input that the vendor neither read from its cache nor wrote to it.
    input: MicroUsd
    #: Input that was read from the vendor's cache, and input that was written to it.
    cached: MicroUsd
    written: MicroUsd
    output: MicroUsd
    #: The price of a call in a batch, as a part of all this.
    batch_percent: Annotated[int, Meta(ge=1, le=100)] = 100
    #: A call with more tokens of input than this costs the long prices, for all its tokens. 0 for never.
    long_above: Annotated[int, Meta(ge=0, le=MAX_LONG)] = 0
    long_input: MicroUsd = 0
    long_cached: MicroUsd = 0
    long_written: MicroUsd = 0
    long_output: MicroUsd = 0


class Model(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A model that applications call by its name or by one of its aliases."""

    name: Slug
    aliases: Annotated[tuple[Alias, ...], Meta(max_length=MAX_ALIASES)] = ()
    #: The dependency its calls belong to, which other models may share. Empty for that of the vendor's host.
    pool: Annotated[str, Meta(max_length=64)] = ""
    #: In the order of time. Before the first one, calls have no price.
    prices: Annotated[tuple[Price, ...], Meta(max_length=MAX_PRICES)] = ()


def names_of(models: Iterable[Model]) -> Iterator[str]:
    """Every name and alias. None may appear twice."""
    for model in models:
        yield model.name
        yield from model.aliases


def by_name(models: Iterable[Model]) -> dict[str, Model]:
    """Name or alias -> its model."""
    return {name: model for model in models for name in (model.name, *model.aliases)}


def undated(name: str) -> str:
    """The name without the date at its end; empty for a name that has none."""
    found = _DATED.fullmatch(name[: MAX_ALIAS + 12])
    return found[1] if found else ""


def price_at(model: Model, at_s: float) -> Price | None:
    """The price that applies at this time; ``None`` for no price."""
    return next((price for price in reversed(model.prices) if price.starts_at_s <= at_s), None)


def micro_usd(
    price: Price, *, fresh: int, cached: int = 0, written: int = 0, output: int = 0, batch: bool = False
) -> int:
    """The cost of a call with these tokens: summed exactly, and rounded up once."""
    if 0 < price.long_above < fresh + cached + written:
        rates = price.long_input, price.long_cached, price.long_written, price.long_output
    else:
        rates = price.input, price.cached, price.written, price.output
    total = fresh * rates[0] + cached * rates[1] + written * rates[2] + output * rates[3]
    percent = price.batch_percent if batch else 100
    return -(-total * percent // 100_000_000)
