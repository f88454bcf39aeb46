"""Responses of OpenAI. The last event of a stream repeats the whole answer, with its usage."""

from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Raw, Struct

from fuseboard.llm.dialects.dialect import Asked, letters_of
from fuseboard.llm.usage import Usage


class _Request(Struct):
    model: str = ""
    stream: bool | None = None
    max_output_tokens: int | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    input_tokens: int
    output_tokens: int
    input_tokens_details: _Details | None = None


class _Answer(Struct):
    usage: _Usage | None = None


class _Whole(_Answer):
    #: Read apart: nothing in it may cost the usage.
    output: Raw = Raw(b"null")


class _Text(Struct):
    text: Any = None
    refusal: Any = None


class _Item(Struct):
    """A part of a whole answer: a message, its reasoning as far as it is shown, or a call of a tool."""

    content: list[_Text] | None = None
    summary: list[_Text] | None = None
    arguments: Any = None
    input: Any = None


class _Event(Struct):
    delta: Any = None
    response: _Answer | None = None


_requests, _answers = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Whole)
_events, _items = msgspec.json.Decoder(_Event), msgspec.json.Decoder(list[_Item] | None)


class OpenAIResponses:
    path = "/responses"
    operation, provider = "chat", "openai"
    counts_cached = True
    hints: tuple[bytes, ...] = (b"delta", b"usage")

    def asked(self, body: bytes) -> Asked:
        found = _requests.decode(body)
        return Asked(found.model, bool(found.stream), found.max_output_tokens)

    def with_usage(self, body: bytes) -> bytes | None:
        return None

    def read_answer(self, document: bytes, usage: Usage) -> None:
        found = _answers.decode(document)
        self._read(found.usage, usage)
        with suppress(msgspec.DecodeError, RecursionError):
            for item in _items.decode(found.output) or ():
                usage.letters += letters_of(item.arguments, item.input)
                for text in (*(item.content or ()), *(item.summary or ())):
                    usage.letters += letters_of(text.text, text.refusal)

    def read_event(self, data: bytes, usage: Usage) -> bool:
        found = _events.decode(data)
        usage.letters += letters_of(found.delta)
        if found.response is not None:
            self._read(found.response.usage, usage)
        return False

    def _read(self, found: _Usage | None, usage: Usage) -> None:
        if found is not None:
            cached = (found.input_tokens_details and found.input_tokens_details.cached_tokens) or 0
            usage.set_input(found.input_tokens - cached, cached, 0)
            usage.set_output(found.output_tokens)
