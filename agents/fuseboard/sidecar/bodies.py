"""Reads the JSON of clients."""

import re
from collections.abc import Callable
from typing import TypeVar

from msgspec import MsgspecError

T = TypeVar("T")

#: JSON that is not what was asked for, and JSON that is nested deeper than the parser goes.
UNREADABLE = (MsgspecError, RecursionError)

#: An escape in a text. The group is half a surrogate pair.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)


def read_json(decode: Callable[[bytes], T], body: bytes) -> T:
    """Return ``body`` as ``decode`` reads it. Raises one of ``UNREADABLE``.

    Half a surrogate pair, which JavaScript writes where it has cut a text, counts as "?", as in the arguments
    of an agent in Python. A byte that is no UTF-8 counts as U+FFFD. An application without a decision goes
    on, so no odd text that its own client has sent may leave it without one.
    """
    try:
        return decode(body)
    except (*UNREADABLE, UnicodeDecodeError):
        text = body.decode(errors="replace").encode()
        text = _ESCAPE.sub(lambda found: b"?" if found[1] else found[0], text)
        if text == body:
            raise
    return decode(text)
