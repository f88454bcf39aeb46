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
#: A text is cut after the last end of a sentence in its last quarter, else in the middle of a sentence.
_SPACES = re.compile(r"\s")
_ENDS, _CLOSING = frozenset(".!?…"), frozenset("\"')]")
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
    letters = _letters(cut)
    most = int(letters * part)
    # The letters are counted once, and then only those of what is cut: a conversation can be long.
    for text in sorted(_texts(cut), key=lambda text: -len(text.read())):
        if letters <= most:
            return list(cut)
        before = text.read()
        after = _cut(before, letters - most)
        text.write(after)
        letters -= _letters(before) - _letters(after)
    return _without_oldest(cut, most)


class _Blocks:
    """The blocks of a message, which are copied before the first one changes."""

    __slots__ = ("_copied", "_message")

    def __init__(self, message: dict[str, Any]) -> None:
        self._message, self._copied = message, False

    def write(self, place: int, text: str) -> None:
        if not self._copied:
            self._message["content"], self._copied = list(self._message["content"]), True
        blocks = self._message["content"]
        blocks[place] = {**blocks[place], "text": text}


class _Text(NamedTuple):
    """A text of a message: its place, and that of its block if the message has several."""

    message: dict[str, Any]
    blocks: _Blocks | None
    place: int

    def read(self) -> str:
        content = self.message["content"]
        return str(content if self.blocks is None else content[self.place]["text"])

    def write(self, text: str) -> None:
        if self.blocks is None:
            self.message["content"] = text
        else:
            self.blocks.write(self.place, text)


def _texts(messages: Sequence[dict[str, Any]]) -> Iterator[_Text]:
    """The texts of users. What a tool has answered is for the application to cut."""
    for message in messages:
        if message.get("role") != "user":
            continue
        content = message.get("content")
        if isinstance(content, str):
            yield _Text(message, None, 0)
        elif isinstance(content, Sequence):
            blocks = _Blocks(message)
            for place, block in enumerate(content):
                if isinstance(block, dict) and block.get("type") in _TEXT_TYPES and "text" in block:
                    yield _Text(message, blocks, place)


def _cut(text: str, over: int) -> str:
    """``text`` without its last letters: ``over`` or more of them."""
    if len(text) <= MIN_LETTERS:
        return text
    most = max(MIN_LETTERS, len(text) - over)
    return text[: _end_of_sentence(text, most * 3 // 4, most) or most].rstrip()


def _end_of_sentence(text: str, first: int, most: int) -> int:
    """The last place between these two after which a sentence, or a line, has ended; 0 for none."""
    for space in reversed([found.start() for found in _SPACES.finditer(text, first, most)]):
        if text[space] == "\n":
            return space + 1
        last = space - 1
        while last >= first and text[last] in _CLOSING:
            last -= 1
        if last >= first and text[last] in _ENDS:
            return space + 1
    return 0


def _without_oldest(messages: list[dict[str, Any]], most: int) -> list[Message]:
    """Leave out whole units, oldest first, until the rest has ``most`` letters."""
    places = [place for place, message in enumerate(messages) if not is_system(message)]
    letters = [_letters(message) for message in messages]
    # The marks of a list, and one between two messages.
    left, kept = 2 + sum(letters) + max(0, len(messages) - 1), [True] * len(messages)
    for run in units([messages[place] for place in places])[:-1]:
        if left <= most:
            break
        for place in run:
            kept[places[place]] = False
            left -= letters[places[place]] + 1
    return [message for message, stays in zip(messages, kept, strict=True) if stays]


def _letters(messages: object) -> int:
    return letters_in(msgspec.json.encode(messages))
