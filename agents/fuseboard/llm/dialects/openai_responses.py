"""Responses of OpenAI. The last event of a stream repeats the whole answer, with its usage."""

from typing import Any

import msgspec
from msgspec import Struct

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


class _Event(Struct):
    delta: Any = None
    response: _Answer | None = None


_requests, _answers = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Answer)
_events = msgspec.json.Decoder(_Event)


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
        self._read(_answers.decode(document).usage, usage)

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
