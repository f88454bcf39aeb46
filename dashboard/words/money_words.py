"""Prices of models as people read them."""

from controlplane.spending.models import LONG_PRICES, PRICES
from fuseboard.contract.money import usd

#: Column of a price -> what it is the price of.
PRICE_LABELS = {
    "input": "input",
    "cached": "input from the cache",
    "written": "input written to the cache",
    "output": "output",
    "batch_percent": "batch",
    "long_above": "long above",
    "long_input": "long, input",
    "long_cached": "long, input from the cache",
    "long_written": "long, input written to the cache",
    "long_output": "long, output",
}


def price_text(column: str, value: int) -> str:
    """``2.50 USD per million tokens``, ``50 %``, ``200,000 tokens``."""
    if column in (*PRICES, *LONG_PRICES):
        return f"{usd(value, exact=True)} per million tokens"
    return f"{value:,} {'%' if column == 'batch_percent' else 'tokens'}"
