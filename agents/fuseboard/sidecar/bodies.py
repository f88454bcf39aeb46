"""Reads the JSON of clients."""

import re
from collections.abc import Callable
from typing import TypeVar

from msgspec import MsgspecError

T = TypeVar("T")

#: JSON that is not what was asked for, JSON that is not UTF-8, and JSON that is nested deeper than the parser
#: goes.
UNREADABLE = (MsgspecError, UnicodeDecodeError, RecursionError)

#: An escape in a text. The group is half a surrogate pair.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def read_json(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return ``body`` as ``decode`` reads it. Raises one of ``UNREADABLE``.

    JavaScript writes half a surrogate pair where it has cut a text. It counts as "?", as in the arguments of
    an agent in Python.
    """
    try:
        return decode(body)
    except UNREADABLE:
        whole = _ESCAPE.sub(lambda found: b"?" if found[1] else found[0], body)
        if whole == body:
            raise
    return decode(whole)
