"""Messages of Anthropic. A stream begins with the usage of its input, and ends with that of its output."""

from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw, Struct

from fuseboard.llm.dialects.dialect import Asked, letters_of
from fuseboard.llm.usage import Usage


class _Request(Struct):
    model: str = ""
    stream: bool | None = None
    max_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    output_tokens: int | None = None


class _Answer(Struct):
    usage: _Usage | None = None


class _Whole(_Answer):
    #: Read apart: nothing in it may cost the usage.
    content: Raw = Raw(b"null")


class _Block(Struct):
    """A part of a whole answer. The input of a tool is made of tokens as the vendor writes it."""

    text: Any = None
    thinking: Any = None
    input: Raw = Raw()


class _Delta(Struct):
    text: Any = None
    partial_json: Any = None
    thinking: Any = None


class _Event(Struct):
    delta: _Delta | None = None
    message: _Answer | None = None
    usage: _Usage | None = None


_requests, _answers = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Whole)
_events, _blocks = msgspec.json.Decoder(_Event), msgspec.json.Decoder(list[_Block] | None)


class AnthropicMessages:
    # Threads of OpenAI have messages too, under another path.
    path = "/v1/messages"
    operation, provider = "chat", "anthropic"
    counts_cached = False
    hints: tuple[bytes, ...] = (b"delta", b"usage")

    def asked(self, body: bytes) -> Asked:
        found = _requests.decode(body)
        return Asked(found.model, bool(found.stream), found.max_tokens)

    def with_usage(self, body: bytes) -> bytes | None:
        return None

    def read_answer(self, document: bytes, usage: Usage) -> None:
        found = _answers.decode(document)
        self._read(found.usage, usage, whole=True)
        with suppress(msgspec.DecodeError, RecursionError):
            for block in _blocks.decode(found.content) or ():
                usage.letters += letters_of(block.text, block.thinking) + len(block.input)

    def read_event(self, data: bytes, usage: Usage) -> bool:
        found = _events.decode(data)
        if (delta := found.delta) is not None:
            usage.letters += letters_of(delta.text, delta.partial_json, delta.thinking)
        if found.message is not None:
            self._read(found.message.usage, usage, whole=False)
        if found.usage is not None:
            self._read(found.usage, usage, whole=True)
        return False

    def _read(self, found: _Usage | None, usage: Usage, *, whole: bool) -> None:
        if found is None:
            return
        if found.input_tokens is not None:
            read, written = found.cache_read_input_tokens or 0, found.cache_creation_input_tokens or 0
            usage.set_input(found.input_tokens, read, written)
        if found.output_tokens is not None:
            usage.set_output(found.output_tokens, whole=whole)
