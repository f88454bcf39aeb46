"""Makes the texts of a document safe to store and to display, in one place for all fields.

A text that people read is cleaned, not refused: an old pod whose error message has a line break must not
lose its heartbeats. Names are refused, in ``heartbeat_names``: a cleaned name would be the name of another.
"""

import re
from typing import Any

import msgspec
from msgspec import Struct

from controlplane.validation import is_printable, printable

#: Bytes that each unreadable character has in JSON, escaped or in UTF-8. Few other characters have them. The
#: decoder refuses unescaped control characters, and halves of surrogate pairs.
_suspect = re.compile(
    rb"(?<!\\)(?:\\\\)*\\[^\"\\/]|\x7f|\xc2[\x80-\x9f]|\xe2\x80[\xa8-\xae]|\xe2\x81[\xa6-\xa9]"
)


def is_suspect(body: bytes) -> bool:
    """Whether a JSON body may contain an unreadable character. Most need only a look for a backslash."""
    plain = body.isascii() and b"\\" not in body and b"\x7f" not in body
    return not plain and _suspect.search(body) is not None


def cleaned(value: Any) -> Any:
    """The document with a space in the place of each unreadable character; the same object if it has none."""
    if isinstance(value, str):
        return value if is_printable(value) else printable(value)
    if isinstance(value, Struct):
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        changed = {name: new for name, old in fields.items() if (new := cleaned(old)) is not old}
        return msgspec.structs.replace(value, **changed) if changed else value
    if isinstance(value, tuple):
        return _if_changed(value, tuple(map(cleaned, value)))
    if isinstance(value, dict):
        pairs = tuple(value.items())
        clean = _if_changed(pairs, tuple((cleaned(key), cleaned(one)) for key, one in pairs))
        return value if clean is pairs else dict(clean)
    return value


def _if_changed(old: tuple[Any, ...], new: tuple[Any, ...]) -> tuple[Any, ...]:
    return old if all(a is b or a == b for a, b in zip(old, new, strict=True)) else new
