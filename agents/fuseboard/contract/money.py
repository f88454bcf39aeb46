"""Money as people read and type it: in USD. The code counts whole micro-USD."""

import re

_MICRO = 1_000_000
_DECIMALS = 6
#: A smaller amount shows two digits: rounded to cents, it would be nothing, or another amount.
_SMALL = _MICRO // 10

_TYPED = re.compile(r"(?P<whole>[0-9]{1,10})(?:\.(?P<decimals>[0-9]{1,6}))?", re.ASCII)
WRONG_USD = "Enter USD with at most 6 decimals, such as 2.50."


def usd_digits(micro_usd: int, *, decimals: int = 2) -> str:
    """2500000 to ``2.50``, 75000 to ``0.075``: exact, as a form has it. With at least so many decimals."""
    sign, (whole, rest) = "-" if micro_usd < 0 else "", divmod(abs(micro_usd), _MICRO)
    return f"{sign}{whole:,}.{f'{rest:06}'.rstrip('0'):0<{decimals}}"


def usd_decimals(micro_usd: int) -> int:
    """The decimals of an amount: cents from a tenth of a USD on, and two digits of a smaller one."""
    size = abs(micro_usd)
    return 2 if not size or size >= _SMALL else min(_DECIMALS, _DECIMALS + 2 - len(str(size)))


def usd(micro_usd: int, *, exact: bool = False, decimals: int | None = None) -> str:
    """``1,234.50 USD``, ``0.0042 USD``, ``0 USD``.

    ``exact`` is for what people have set: a price, or the amount of a budget. ``decimals`` are those of the
    amounts beside it, so that people can compare them.
    """
    if not micro_usd:
        return "0 USD"
    if exact:
        return f"{usd_digits(micro_usd)} USD"
    step = 10 ** (_DECIMALS - (usd_decimals(micro_usd) if decimals is None else decimals))
    rounded = (abs(micro_usd) + step // 2) // step * step * (-1 if micro_usd < 0 else 1)
    if not rounded:
        nothing = usd_digits(step)
        return f"< {nothing} USD" if micro_usd > 0 else f"> -{nothing} USD"
    return f"{usd_digits(rounded, decimals=decimals or 2)} USD"


def micro_usd_of(text: str) -> int:
    """A typed amount in micro-USD. Raises ``ValueError``."""
    found = _TYPED.fullmatch(text.strip().removeprefix("$").replace(",", ""))
    if found is None:
        raise ValueError(WRONG_USD)
    return int(found["whole"]) * _MICRO + int((found["decimals"] or "").ljust(6, "0"))
