"""The value of a field of a limit: as an input shows it, and in words."""

from typing import Any

from controlplane.policies.limit_fields import WORDS
from fuseboard.contract.limit_fields import BY_NAME, Flag, LimitField, Number


def form_value(described: LimitField, value: Any) -> str:
    """Return what an input shows for a value. A default that is no quantity, 0 or -1, shows as nothing."""
    if isinstance(described, Flag):
        return "yes" if value else "no"
    if isinstance(described, Number) and value == described.default and value < 1:
        return ""
    return str(value)


def bounds_of(column: str) -> tuple[int, int]:
    """Return the least and the largest number of a column, as a person types it."""
    described = BY_NAME[column]
    if not isinstance(described, Number):
        raise TypeError(f"{column} is no number")
    # A negative value means "use the setting elsewhere": a person leaves the input empty for it.
    return max(0, described.least), described.most


#: Unit of a column -> as a value has it.
_SHORT = {"percent": "%", "seconds": "s"}


def value_words(described: LimitField, value: Any) -> str:
    """Return a value as text for people."""
    words = WORDS[described.name]
    if isinstance(described, Number):
        if words.usual and form_value(described, value) == "":
            return words.usual
        return f"{value:,} {_SHORT[described.unit]}" if described.unit in _SHORT else f"{value:,}"
    return words.choices.get(form_value(described, value), str(value))
