"""Makes a request smaller that a model has found too large."""

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from fuseboard.errors import Misconfigured
from fuseboard.llm.estimate import letters_in
from fuseboard.llm.history import Message, is_system, units

#: A text keeps at least this many letters.
MIN_LETTERS = 200
#: A text is cut after the last of these that is in its last quarter, else in the middle of a sentence.
_ENDS = re.compile(r"[.!?…]+[\"')\]]*\s|\n")
_TEXT_TYPES = ("text", "input_text")


def shrunk(messages: Sequence[Message], part: float = 0.75) -> list[Message]:
    """The messages with at most ``part`` of their letters. Equal to ``messages`` if nothing can be cut.

    First the longest texts of users are cut, each at the end of a sentence; then the oldest messages are left
    out. System messages and the last message stay, and a use of a tool stays with its answers or not at all.
    Changes nothing itself. For ``shrink=`` of ``agent.retrying``.
    """
    if not 0 < part < 1:
        raise Misconfigured(f"part must be between 0 and 1, not {part!r}")
    cut = [dict(message) for message in messages]
    most = int(_letters(cut) * part)
    for text in sorted(_texts(cut), key=lambda text: -len(text.read())):
        over = _letters(cut) - most
        if over <= 0:
            return list(cut)
        text.write(_cut(text.read(), over))
    return _without_oldest(cut, most)


class _Text(NamedTuple):
    """A text of a message: its place, and that of its block if the message has several."""

    message: dict[str, Any]
    block: int | None

    def read(self) -> str:
        content = self.message["content"]
        return str(content if self.block is None else content[self.block]["text"])

    def write(self, text: str) -> None:
        if self.block is None:
            self.message["content"] = text
        else:
            blocks = list(self.message["content"])
            blocks[self.block] = {**blocks[self.block], "text": text}
            self.message["content"] = blocks


def _texts(messages: Sequence[dict[str, Any]]) -> Iterator[_Text]:
    """The texts of users. What a tool has answered is for the application to cut."""
    for message in messages:
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            yield _Text(message, None)
        elif isinstance(content, Sequence):
            for place, block in enumerate(content):
                if isinstance(block, dict) and block.get("type") in _TEXT_TYPES and "text" in block:
                    yield _Text(message, place)


def _cut(text: str, over: int) -> str:
    """``text`` without its last letters: ``over`` or more of them."""
    if len(text) <= MIN_LETTERS:
        return text
    most = max(MIN_LETTERS, len(text) - over)
    ends = [end.end() for end in _ENDS.finditer(text, most * 3 // 4, most)]
    return text[: ends[-1] if ends else most].rstrip()


def _without_oldest(messages: list[dict[str, Any]], most: int) -> list[Message]:
    """Leave out whole units, oldest first, until the rest has ``most`` letters."""
    places = [place for place, message in enumerate(messages) if not is_system(message)]
    left = set(range(len(messages)))
    for run in units([messages[place] for place in places])[:-1]:
        if _letters([messages[place] for place in sorted(left)]) <= most:
            break
        left -= {places[place] for place in run}
    return [messages[place] for place in sorted(left)]


def _letters(messages: Sequence[Message]) -> int:
    return letters_in(msgspec.json.encode(messages))
