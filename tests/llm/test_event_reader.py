"""However the bytes of a stream are split, its reader gets the same ones, and the usage is the same."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.llm.dialects.openai_chat import OpenAIChat
from fuseboard.llm.stream import MAX_KEPT_BACK, MAX_READ, EventReader, data_of
from fuseboard.llm.usage import Usage

KINDS = ["chunk", "comment", "unknown", "lines", "usage", "empty"]
NEWLINES = st.sampled_from(["\n", "\r\n", "\r"])
USAGE = json.dumps({"choices": [], "usage": {"prompt_tokens": 12, "completion_tokens": 34}})


def chunk(text: str) -> str:
    choice = {"index": 0, "delta": {"content": text}}
    return json.dumps({"choices": [choice], "usage": None}, ensure_ascii=False)


class Seen:
    """What a reader of an answer gets, and what was read in passing."""

    def __init__(self, parts: list[bytes], *, hides: bool) -> None:
        self.usage, self.events = Usage(), 0
        reader = EventReader(self.read, hides=hides)
        self.given = [reader.feed(part) for part in parts]
        self.given.append(reader.finish())
        self.text = b"".join(self.given)

    def read(self, event: bytes) -> bool:
        self.events += 1
        data = data_of(event)
        return b"{" in data and OpenAIChat().read_event(data, self.usage)


@st.composite
def streams(draw: st.DrawFn) -> tuple[list[bytes], bytes]:
    """A stream in parts, and what is left of it without the usage."""
    newline = draw(NEWLINES)
    texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    # A mark of the byte order comes with the first event.
    whole = b"\xef\xbb\xbf: hello" + newline.encode() * 2 if draw(st.booleans()) else b""
    kept = whole
    for kind in draw(st.lists(st.sampled_from(KINDS), max_size=12)):
        # JSON has no line breaks, but an event may have its own within its fields.
        lines = {
            "chunk": [f"data: {chunk(draw(texts))}"],
            "comment": [": keep-alive"],
            "unknown": ["event: news", "data: nothing that a client knows", "retry: 9"],
            "lines": ["id: 7", 'data: {"choices": [],', 'data:"usage": null}'],
            "usage": [f"data: {USAGE}"],
            "empty": [],
        }[kind]
        # An empty event after the end of another would be part of that end, split between CR and LF.
        event = (newline.join([*lines, "", ""]) if lines else newline * 2).encode()
        whole += event
        if kind != "usage":
            kept += event
    return split(draw, whole), kept


def split(draw: st.DrawFn, whole: bytes) -> list[bytes]:
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=30)))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


@given(streams())
def test_only_the_usage_is_hidden_however_the_bytes_are_split(stream: tuple[list[bytes], bytes]):
    parts, kept = stream
    whole = b"".join(parts)
    hidden, shown, at_once = Seen(parts, hides=True), Seen(parts, hides=False), Seen([whole], hides=False)
    assert hidden.text == kept
    assert shown.text == whole
    assert hidden.usage == shown.usage == at_once.usage
    if whole != kept:
        assert (hidden.usage.input, hidden.usage.output, hidden.usage.has_output) == (12, 34, True)


@given(streams())
def test_without_hiding_each_part_is_handed_on_as_it_came(stream: tuple[list[bytes], bytes]):
    parts, _ = stream
    assert Seen(parts, hides=False).given == [*parts, b""]


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_parts_of_a_few_bytes_are_read(newline: str, size: int):
    events = [f"data: {data}{newline}{newline}".encode() for data in (chunk("a"), USAGE, "[DONE]")]
    whole = b"".join(events)
    seen = Seen([whole[at : at + size] for at in range(0, len(whole), size)], hides=True)
    assert seen.text == events[0] + events[2]
    assert (seen.usage.letters, seen.usage.input, seen.usage.output) == (1, 12, 34)


@pytest.mark.parametrize("newline", [b"\n", b"\r\n", b"\r"])
def test_an_event_is_handed_on_as_soon_as_it_is_whole(newline: bytes):
    reader = EventReader(lambda event: b"usage" in event, hides=True)
    event = b"event: news" + newline + b"data: x" + newline + newline
    assert reader.feed(event) == event
    assert reader.feed(b": comment" + newline + newline) == b": comment" + newline + newline
    assert reader.feed(b"data: usage" + newline + newline[:1]) == b""
    assert reader.feed(newline[1:] + event) == event


def test_an_event_that_is_too_long_to_be_kept_back_is_handed_on_and_read():
    seen: list[bytes] = []
    reader = EventReader(lambda event: not seen.append(event), hides=True)  # type: ignore[func-returns-value]
    long = b"data: " + b"x" * MAX_KEPT_BACK
    assert reader.feed(long) == long
    assert reader.feed(b"yz") == b"yz"
    assert reader.feed(b"\n\ndata: usage") == b"\n\n"
    assert reader.feed(b"\n\n") == b""
    assert seen == [long + b"yz\n\n", b"data: usage\n\n"]


def test_what_is_too_long_to_be_read_is_dropped_and_the_next_event_is_read():
    seen: list[bytes] = []
    reader = EventReader(lambda event: bool(seen.append(event)), hides=True)  # type: ignore[func-returns-value]
    part = b"x" * 500_000
    given = b"".join(reader.feed(part) for _ in range(MAX_READ // len(part) + 3))
    assert len(reader._tail) <= MAX_READ
    given += reader.feed(b"\r\n") + reader.feed(b"\r\n") + reader.feed(b"data: next\r\n\r\n")
    assert given == part * (MAX_READ // len(part) + 3) + b"\r\n\r\ndata: next\r\n\r\n"
    assert seen == [b"data: next\r\n\r\n"]


@pytest.mark.parametrize(
    ("event", "data"),
    [
        (b'data: {"a": 1}\n\n', b' {"a": 1}'),
        (b'\xef\xbb\xbfdata:{"a": 1}\r\r', b'{"a": 1}'),
        (b"event: x\r\nid: 1\r\ndata: a\r\ndata: b\r\n\r\n", b" a\n b"),
        (b": comment\n\n", b""),
        (b"\n", b""),
    ],
)
def test_the_data_of_an_event(event: bytes, data: bytes):
    assert data_of(event).strip(b"\r\n") == data
