"""Phrases that people read: numbers, shares, sizes, times, and words that depend on how many there are."""

from collections.abc import Sequence
from datetime import UTC, datetime
from math import floor, log10

from fuseboard.contract.budgets import MICRO_USD
from fuseboard.contract.money import usd as usd


def count(number: int, noun: str, *, grouped: bool = False) -> str:
    """``1 pod``, ``1200 pods``; grouped, ``1,200 pods``."""
    digits = f"{number:,}" if grouped else f"{number}"
    return f"{digits} {noun}{'' if number == 1 else 's'}"


def is_or_are(number: int) -> str:
    return "is" if number == 1 else "are"


def they(names: Sequence[str], one: str, several: str) -> str:
    return one if len(names) == 1 else several


def name_or_count(names: Sequence[str]) -> str:
    """The name of a single pod, or how many there are."""
    return names[0] if len(names) == 1 else count(len(names), "pod")


def range_words(least: int, most: int) -> str:
    """The numbers that are allowed; a bound above a billion only guards the storage."""
    return f"{least:,} or more" if most >= 1_000_000_000 else f"{least:,} to {most:,}"


def listed(names: Sequence[str], most: int = 4, *, joint: str = " and") -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f"{joint} {more} more" if more > 0 else "")


def moment(at: float) -> str:
    """``10:00 UTC on 24 November``."""
    return f"{datetime.fromtimestamp(at, UTC):%H:%M UTC on %-d %B}"


def span(seconds: float) -> str:
    """25 to "25 s", 150 to "2 min 30 s", 7300 to "2 h 1 min"."""
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min" + (f" {whole % 60} s" if whole % 60 else "")
    return f"{whole // 3600} h" + (f" {whole % 3600 // 60} min" if whole % 3600 // 60 else "")


def window_words(seconds: int) -> str:
    """The time after "per": 1 is "s", 60 is "min", 90 is "90 s", 7200 is "2 hours"."""
    for of_unit, unit in ((86_400, "day"), (3_600, "hour"), (60, "min"), (1, "s")):
        if seconds % of_unit == 0:
            units = seconds // of_unit
            return unit if units == 1 else f"{units} {unit}{'s' if unit in ('day', 'hour') else ''}"
    return f"{seconds} s"


def size(number: int) -> str:
    """Bytes, as ``1.5 MiB``."""
    amount, unit = float(number), "B"
    for larger in ("KiB", "MiB", "GiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, larger
    return f"{rounded(amount, 3)} {unit}"


def amount_words(amount: int, measure: str, *, exact: bool = False) -> str:
    """``1 call``, ``1,200 calls``, ``12.50 USD``, ``34,000 tokens``. ``exact`` as in ``usd``."""
    if measure == MICRO_USD:
        return usd(amount, exact=exact)
    words = measure.replace("_", " ")
    return f"{amount:,} {words.removesuffix('s') if amount == 1 else words}"


def percent(share: float) -> str:
    """``100 %``, ``16.4 %``, ``3 %``, ``0.33 %``. Only the whole is 100 %, and only nothing is 0 %."""
    hundredths = share * 100
    if hundredths <= 0:
        return "0 %"
    if hundredths < 0.01:
        return "less than 0.01 %"
    if 99.95 <= hundredths < 100:
        return "more than 99.9 %"
    return f"{_without_zeros(f'{hundredths:,.{1 if hundredths >= 1 else 2}f}')} %"


def number(value: float) -> str:
    """A rate or a count: 0.4, 7.2, 228, 12,400."""
    if value >= 99.5:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def rounded(value: float, digits: int) -> str:
    """A number to so many digits, but to no fewer than are before its point: 0.25, 1.5, 1,023."""
    places = max(0, digits - 1 - floor(log10(value))) if value > 0 else 0
    return _without_zeros(f"{value:,.{places}f}")


def _without_zeros(text: str) -> str:
    return text.rstrip("0").rstrip(".") if "." in text else text
