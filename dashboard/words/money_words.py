"""Prices as people type and read them: USD with as many decimals as they need."""

import re

from controlplane.spending.models import LONG_PRICES, PRICES

_USD = re.compile(r"(?P<whole>[0-9]{1,10})(?:\.(?P<decimals>[0-9]{1,6}))?", re.ASCII)
WRONG_USD = "Enter USD with at most 6 decimals, such as 2.50."

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


def usd(micro_usd: int) -> str:
    """2500000 to ``2.50``, 75000 to ``0.075``: exact."""
    whole, decimals = divmod(micro_usd, 1_000_000)
    return f"{whole:,}.{f'{decimals:06}'.rstrip('0'):0<2}"


def micro_usd_of(text: str) -> int:
    """A typed price in micro-USD. Raises ``ValueError``."""
    found = _USD.fullmatch(text.strip().removeprefix("$").replace(",", ""))
    if found is None:
        raise ValueError(WRONG_USD)
    return int(found["whole"]) * 1_000_000 + int((found["decimals"] or "").ljust(6, "0"))


def price_text(column: str, value: int) -> str:
    """``2.50 USD per million tokens``, ``50 %``, ``200,000 tokens``."""
    if column in (*PRICES, *LONG_PRICES):
        return f"{usd(value)} USD per million tokens"
    return f"{value:,} {'%' if column == 'batch_percent' else 'tokens'}"
