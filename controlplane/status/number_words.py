"""Numbers that a person reads: shares, rates and sizes, never as a power of ten."""

from math import floor, log10


def percent_words(share: float) -> str:
    """``100 %``, ``16.4 %``, ``3 %``, ``0.33 %``. Only the whole is 100 %, and only nothing is 0 %."""
    percent = share * 100
    if percent <= 0:
        return "0 %"
    if percent < 0.01:
        return "less than 0.01 %"
    if 99.95 <= percent < 100:
        return "more than 99.9 %"
    return f"{_without_zeros(f'{percent:,.{1 if percent >= 1 else 2}f}')} %"


def number(value: float) -> str:
    """A rate or a count: 0.4, 7.2, 228, 12,400."""
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def rounded_words(value: float, digits: int) -> str:
    """A number to so many digits, but to no fewer than are before its point: 0.25, 1.5, 1,023."""
    places = max(0, digits - 1 - floor(log10(value))) if value > 0 else 0
    return _without_zeros(f"{value:,.{places}f}")


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
