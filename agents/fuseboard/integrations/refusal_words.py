"""A refusal by a limit in plain words, for the people who read the answer of an API."""

from itertools import pairwise
from math import ceil

from fuseboard.contract.words import Algorithm
from fuseboard.decision import Decision, LimitStatus
from fuseboard.integrations.legacy_headers import CALLS

_UNITS = (("day", 86_400), ("hour", 3_600), ("minute", 60), ("second", 1))


def spent_words(decision: Decision, wait_s: int) -> str:
    """The limit, its window, and the wait: ``The limit 'requests' of 100 requests per minute is spent.``"""
    found = next((limit for limit in decision.limits if limit.name == decision.rule), None)
    then = f" Try again in {_wait(wait_s)}." if wait_s else ""
    if found is None:
        return f"The limit {decision.rule!r} is spent.{then}"
    if found.limit == 0:
        return f"The limit {decision.rule!r} allows no {_measure(found)}."
    if found.algorithm is Algorithm.CONCURRENCY:
        return f"The limit {decision.rule!r} of {found.limit:,} requests at once is reached.{then}"
    amount = f"{found.limit:,} {_measure(found)} per {_window(found)}"
    if not wait_s:
        return f"The limit {decision.rule!r} of {amount} has no room for this request."
    return f"The limit {decision.rule!r} of {amount} is spent.{then}"


def _measure(limit: LimitStatus) -> str:
    return "requests" if limit.measure == CALLS else limit.measure.replace("_", " ")


def _window(limit: LimitStatus) -> str:
    if limit.period is not None:
        return limit.period.value
    seconds = limit.window_ms / 1000
    for unit, size in _UNITS:
        count = seconds / size
        if count >= 1 and count.is_integer():
            return unit if count == 1 else f"{count:.0f} {unit}s"
    return f"{seconds:g} seconds"


def _wait(seconds: int) -> str:
    """In its two largest units, rounded up: a client that waits is not refused again."""
    (unit, size), (smaller, small) = next(
        (pair for pair in pairwise(_UNITS) if seconds >= pair[0][1]), (_UNITS[-1], _UNITS[-1])
    )
    count, rest = divmod(ceil(seconds / small), size // small)
    return " and ".join(_counted(number, name) for number, name in ((count, unit), (rest, smaller)) if number)


def _counted(number: int, unit: str) -> str:
    return f"{number} {unit}{'' if number == 1 else 's'}"
