"""Money as people read and type it: in USD. The code counts whole micro-USD."""

import re

_MICRO = 1_000_000
#: A smaller amount shows all its digits: rounded to cents, it would be nothing, or another amount.
_SMALL = _MICRO // 10
_CENT = _MICRO // 100

_TYPED = re.compile(r"(?P<whole>[0-9]{1,10})(?:\.(?P<decimals>[0-9]{1,6}))?", re.ASCII)
WRONG_USD = "Enter USD with at most 6 decimals, such as 2.50."


def usd_digits(micro_usd: int) -> str:
    """2500000 to ``2.50``, 75000 to ``0.075``: exact, as a form has it."""
    sign, (whole, decimals) = "-" if micro_usd < 0 else "", divmod(abs(micro_usd), _MICRO)
    return f"{sign}{whole:,}.{f'{decimals:06}'.rstrip('0'):0<2}"


def usd(micro_usd: int, *, exact: bool = False) -> str:
    """``1,234.50 USD``, ``0.0042 USD``, ``0 USD``: in whole cents from a tenth of a USD on.

    ``exact`` is for what people have set: a price, or the amount of a budget.
    """
    if not micro_usd:
        return "0 USD"
    if not exact and abs(micro_usd) >= _SMALL:
        sign = -1 if micro_usd < 0 else 1
        micro_usd = sign * ((abs(micro_usd) + _CENT // 2) // _CENT * _CENT)
    return f"{usd_digits(micro_usd)} USD"


def micro_usd_of(text: str) -> int:
    """A typed amount in micro-USD. Raises ``ValueError``."""
    found = _TYPED.fullmatch(text.strip().removeprefix("$").replace(",", ""))
    if found is None:
        raise ValueError(WRONG_USD)
    return int(found["whole"]) * _MICRO + int((found["decimals"] or "").ljust(6, "0"))
