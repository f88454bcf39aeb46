"""The fields of ``keys.offline_totals``: what pods allowed without Redis, by limit and time.

``quota:requests`` is the total of a limit, whatever its time. Every agent adds to it.
``quota:requests@1763932800+60`` is the part of it in the 60 s from that moment on (unix seconds, fleet time),
``quota:requests@0+0`` the part whose time is unknown. A ``~`` at the end says that the limit was a shadow.
What parts do not contain is of pods of version 0.1.
"""

import re
from typing import NamedTuple

#: The shortest span of time that is counted apart. Longer windows have spans of their own length.
SHORTEST_S = 60
#: A field that says which hash this is: a hash that Redis lost and that began again has another name.
IDENTITY = "@id"

_PART = re.compile(r"(?P<limit>[^@]+)@(?P<start>[0-9]{1,12})\+(?P<length>[0-9]{1,9})(?P<shadow>~?)", re.ASCII)


class Part(NamedTuple):
    """A span of time of one limit. ``length_s`` is 0 when the time is unknown."""

    limit: str
    start_s: int
    length_s: int
    shadow: bool


def part_suffix(start_s: int, length_s: int, *, shadow: bool) -> str:
    return f"@{start_s}+{length_s}{'~' if shadow else ''}"


def read_part(field: str) -> Part | None:
    """``None`` for the total of a limit, and for what a later version writes."""
    match = _PART.fullmatch(field)
    if match is None:
        return None
    return Part(match["limit"], int(match["start"]), int(match["length"]), bool(match["shadow"]))
