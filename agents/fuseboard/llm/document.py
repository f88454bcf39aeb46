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

    __slots__ = ("_kept", "_whole")

    def __init__(self) -> None:
        # A list of parts would take many times as much if each part has a few bytes.
        self._kept = bytearray()
        self._whole = True

    def add(self, part: bytes) -> None:
        self._kept += part
        if len(self._kept) > MAX_READ:
            del self._kept[:-MAX_END]
            self._whole = False

    def read(self, dialect: Dialect, usage: Usage) -> None:
        """Raises ``ValueError`` for an answer that is not in the format."""
        text = bytes(self._kept)
        dialect.read_answer(text if self._whole else _usage_at_the_end(text), usage)


def _usage_at_the_end(text: bytes) -> bytes:
    found = list(_USAGE.finditer(text))
    if not found:
        raise ValueError("no usage")
    value, _ = json.JSONDecoder().raw_decode(text[found[-1].end() :].decode(errors="replace"))
    return msgspec.json.encode({"usage": value})
