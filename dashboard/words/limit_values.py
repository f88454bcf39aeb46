"""The value of a field of a limit: as an input shows it, and in words."""

from typing import Any

from controlplane.policies.limit_fields import WORDS
from fuseboard.contract.limit_fields import Flag, LimitField, Number


def form_value(described: LimitField, value: Any) -> str:
    """Return what an input shows for a value. A default that is no quantity, 0 or -1, shows as nothing."""
    if isinstance(described, Flag):
        return "yes" if value else "no"
    if isinstance(described, Number) and value == described.default and value < 1:
        return ""
    return str(value)


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
