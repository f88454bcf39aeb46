"""The flat fields of a model, as ``controlplane.policies.fields`` has them of other things.

A price is one entry below ``prices``, named by the text of its start: ``prices.2026-01-01.input``.
"""

import re
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from controlplane.spending.models import LONG_PRICES, PRICES, Model, Price
from controlplane.validation import Problems
from fuseboard.contract import models as contract
from fuseboard.contract.models import MAX_LONG, MAX_PRICE

Fields = dict[str, Any]

#: The columns that a price needs; what it leaves out, and what it has instead.
NEEDED = ("input", "output")
LONG_NEEDED = ("long_input", "long_output")
_INSTEAD = {"cached": "input", "written": "input", "long_cached": "long_input", "long_written": "long_input"}
#: Columns that a row leaves out at this value.
_RARE = {"batch_percent": 100, "long_above": 0, **dict.fromkeys(LONG_PRICES, 0)}
COLUMNS = (*PRICES, *_RARE)

_START = re.compile(r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::00)?(?:Z|[+-]\d\d:\d\d)?)?", re.ASCII)

WRONG_START = "Write the start as a date, 2026-01-31, or as a minute, 2026-01-31T18:30Z."


def start_text(at: datetime) -> str:
    """The canonical text of a start, in UTC. The order of texts is that of the starts."""
    at = at.astimezone(UTC)
    return f"{at:%Y-%m-%d}" if at.time() == datetime.min.time() else f"{at:%Y-%m-%dT%H:%MZ}"


def read_start(text: object) -> datetime:
    """A start, as a date or a minute; UTC without a zone. Raises ``ValueError``."""
    if not isinstance(text, str) or not _START.fullmatch(text):
        raise ValueError(WRONG_START)
    try:
        at = datetime.fromisoformat(text)
        at = at.replace(tzinfo=UTC) if at.tzinfo is None else at.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ValueError(WRONG_START) from None
    if not 2000 <= at.year <= 2100:
        raise ValueError("Choose a start from 2000 to 2100.")
    return at


def model_fields(model: Model) -> Fields:
    return {
        "aliases": list(model.aliases),
        "pool": model.pool,
        **{
            f"prices.{start_text(row.starts_at)}.{column}": value
            for row in sorted(model.prices.all(), key=lambda row: row.starts_at)
            for column, value in price_columns(row).items()
        },
        "version": model.version,
    }


def price_columns(row: Price) -> Fields:
    """The columns of a row without its start. Rare ones are left out at their usual value."""
    return plain_price({column: getattr(row, column) for column in COLUMNS})


def plain_price(columns: Fields) -> Fields:
    """Return the columns of a price in the form of a row: filled in, and without rare ones."""
    is_long = bool(columns.get("long_above"))
    full = dict(columns)
    for column, other in _INSTEAD.items():
        if column not in columns and other in columns and (is_long or column not in LONG_PRICES):
            full[column] = columns[other]
    always = LONG_PRICES if is_long else ()
    return {
        column: full[column]
        for column in COLUMNS
        if column in full and (column in always or full[column] != _RARE.get(column))
    }


def changed_price(columns: Fields, given: Fields) -> Fields:
    """Return a price with the given columns. Without long calls, it has no long prices."""
    after = columns | given
    if given.get("long_above") == 0:
        after = {
            column: value for column, value in after.items() if column in given or column not in LONG_PRICES
        }
    return plain_price(after)


def full_price(columns: Fields) -> Fields:
    """Return every column, including those left out at their usual value."""
    return {**_RARE, **columns}


def check_aliases(problems: Problems, value: Any) -> None:
    if not isinstance(value, list | tuple):
        problems.add("aliases", "Enter a list of names; [] for none.")
    elif len(value) > contract.MAX_ALIASES:
        problems.add("aliases", f"Use at most {contract.MAX_ALIASES} aliases.")
    elif any(not isinstance(alias, str) or not alias.strip() for alias in value):
        problems.add("aliases", "Enter each alias as text.")
    elif len(set(value)) < len(value):
        problems.add("aliases", "Each alias may appear once.")
    else:
        for alias in value:
            problems.text("aliases", alias, contract.MAX_ALIAS)


def check_price(problems: Problems, columns: Fields) -> None:
    """Check each column that is given."""
    for column, value in columns.items():
        if column == "batch_percent":
            problems.whole(column, value, 1, 100)
        elif column == "long_above":
            problems.whole(column, value, 0, MAX_LONG)
        elif column in COLUMNS:
            problems.whole(column, value, 0, MAX_PRICE)
        else:
            problems.add(column, f"A price has no such field, only {', '.join(COLUMNS)}.")


def contradictions(columns: Fields) -> Iterable[tuple[str, str]]:
    """Yield column and message for what does not fit together in a whole price."""
    for column in NEEDED:
        if column not in columns:
            yield column, "A new price needs this, in micro-USD per million tokens."
    is_long = bool(columns.get("long_above"))
    for column in LONG_NEEDED:
        if is_long and column not in columns:
            yield column, "A price of long calls needs this, in micro-USD per million tokens."
    for column in LONG_PRICES:
        if not is_long and columns.get(column):
            yield column, "Say above how many tokens of input this applies, in long_above."


def model_of(row: Model) -> contract.Model:
    """The model as pods know it: with the two newest prices.

    Only one price may begin in the future, so the present one is among them, whatever the time is.
    """
    newest = sorted(row.prices.all(), key=lambda price: price.starts_at)[-contract.MAX_PRICES :]
    return contract.Model(
        name=row.name,
        aliases=tuple(row.aliases),
        pool=row.pool,
        prices=tuple(
            contract.Price(
                starts_at_s=int(price.starts_at.timestamp()),
                **{column: getattr(price, column) for column in COLUMNS},
            )
            for price in newest
        ),
    )
