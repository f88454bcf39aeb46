"""The options for the fields of a limit, made from their description."""

import argparse
from typing import Any

from fuseboard.contract.limit_fields import (
    Choice,
    Choices,
    Flag,
    LimitField,
    Number,
    Patterns,
    allowed_values,
    fields_of,
    scope,
)


def add_limit_options(parser: argparse.ArgumentParser, *, of: str = "") -> None:
    """``of``: whose limits they are, as in ``limit_fields``."""
    for field in fields_of(of):
        _add(parser, field)


def given_values(given: argparse.Namespace, *, of: str = "") -> dict[str, Any]:
    """Return the values of the options that were given, as the API takes them."""
    found = {field.name: _value(field, getattr(given, field.name)) for field in fields_of(of)}
    return {name: value for name, value in found.items() if value is not None}


def option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _add(parser: argparse.ArgumentParser, field: LimitField) -> None:
    text = allowed_values(field)
    if field.algorithms or field.failure_policies:
        text = f"{text}; only for {scope(field)}"
    match field:
        case Number():
            parser.add_argument(option(field.name), type=int, metavar="N", help=text)
        case Flag():
            parser.add_argument(option(field.name), choices=("yes", "no"), metavar="yes|no", help="yes or no")
        case Choice():
            parser.add_argument(option(field.name), choices=field.values, metavar="NAME", help=text)
        case Choices() | Patterns():
            text = f"{text}; repeat the option for several values; '' for none"
            parser.add_argument(option(field.name), action="append", metavar="VALUE", help=text)
        case _:
            parser.add_argument(option(field.name), metavar="NAME", help=text)


def _value(field: LimitField, given: Any) -> Any:
    if isinstance(field, Flag):
        return {"yes": True, "no": False}.get(given)
    if isinstance(field, Choices | Patterns) and given is not None:
        return [text for text in given if text]
    return given
