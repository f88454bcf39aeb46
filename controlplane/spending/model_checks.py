"""Checks of what cannot be true of models and prices, as plain functions of flat fields."""

from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from typing import Any

from controlplane.spending.fields import Fields, contradictions, read_start
from fuseboard.contract.models import MAX_MODELS

#: Prices of one model, present and past.
MAX_HISTORY = 200

BEGUN = "This price has begun, and calls were charged by it: add a price from a later time instead."
ONE_AHEAD = "Only one price can begin in the future: add the next one when this one has begun."


def wrong_prices(
    prices: Mapping[str, Fields], history: Mapping[str, Fields], now: datetime
) -> Iterator[tuple[str, str, str]]:
    """Yield start, column and message. A price of the ``history`` that has begun may not change."""
    for start, columns in prices.items():
        for column, message in contradictions(columns):
            yield start, column, message
    for start in rewritten(history, prices, now):
        yield start, "starts_at", BEGUN
    ahead = [start for start in prices if read_start(start) > now]
    if len(ahead) > 1:
        yield max(ahead), "starts_at", ONE_AHEAD
    if len(prices) > MAX_HISTORY:
        yield max(prices), "starts_at", f"A model has at most {MAX_HISTORY} prices."


def rewritten(history: Mapping[str, Fields], prices: Mapping[str, Fields], now: datetime) -> Iterator[str]:
    """Yield the starts of prices of the ``history`` that have begun, and are not the same any more."""
    for start, columns in history.items():
        if prices.get(start) != columns and read_start(start) <= now:
            yield start


def wrong_names(
    state: Mapping[tuple[str, str], Any], changed: Collection[tuple[str, str]] = ()
) -> Iterator[tuple[str, str, str]]:
    """Yield model, field and message for a name or alias of two models, and for too many models.

    The models that are ``changed`` come last: they are wrong, not those that had the name before.
    """
    models = {name: fields for (kind, name), fields in state.items() if kind == "model" and fields}
    owners: dict[str, str] = {}
    for is_changed in (False, True):
        names = [name for name in sorted(models) if (("model", name) in changed) is is_changed]
        for name in names:
            if (other := owners.setdefault(name, name)) != name:
                yield name, "", f"{name!r} is already a name of model {other}."
        for name in names:
            for alias in models[name]["aliases"]:
                other = owners.setdefault(alias, name)
                if other != name or alias == name:
                    yield name, "aliases", f"{alias!r} is already a name of model {other}."
    if len(models) > MAX_MODELS:
        yield max(models), "", f"An environment has at most {MAX_MODELS} models."
