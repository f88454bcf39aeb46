"""An answer that comes whole: read for its usage while it is handed on."""

import json
import re

import msgspec

from fuseboard.llm.dialects import Dialect
from fuseboard.llm.stream import MAX_READ
from fuseboard.llm.usage import Usage

#: The usage is within so many bytes of the end of an answer that is too long to be kept.
MAX_END = 65_536

_USAGE = re.compile(rb'"usage"\s*:\s*(?=\{)')


class Document:
    """At most ``MAX_READ`` bytes are kept: of a longer answer, such as many embeddings, its end."""

    __slots__ = ("_parts", "_size", "_whole")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size = 0
        self._whole = True

    def add(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > MAX_READ:
            end = b"".join(self._parts)[-MAX_END:]
            self._parts, self._size, self._whole = [end], len(end), False

    def read(self, dialect: Dialect, usage: Usage) -> None:
        """Raises ``ValueError`` for an answer that is not in the format."""
        text = b"".join(self._parts)
        dialect.read_answer(text if self._whole else _usage_at_the_end(text), usage)


def _usage_at_the_end(text: bytes) -> bytes:
    found = list(_USAGE.finditer(text))
    if not found:
        raise ValueError("no usage")
    value, _ = json.JSONDecoder().raw_decode(text[found[-1].end() :].decode(errors="replace"))
    return msgspec.json.encode({"usage": value})
