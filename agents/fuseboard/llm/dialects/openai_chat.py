"""Chat completions, of OpenAI and many others."""

from typing import Any

import msgspec
from msgspec import Raw, Struct

from fuseboard.llm.dialects.dialect import Asked, letters_of
from fuseboard.llm.usage import Usage


class _Request(Struct):
    model: str = ""
    stream: bool | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    n: int | None = None


class _Details(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Choice(Struct):
    finish_reason: str | None = None
    delta: dict[str, Any] | None = None
    message: dict[str, Any] | None = None


class _Answer(Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None


#: Texts that are made of tokens. Tool calls are too.
_TEXTS = ("content", "reasoning_content", "refusal")

_requests, _answers = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Answer)


class OpenAIChat:
    path = "/chat/completions"
    counts_cached = True
    hints: tuple[bytes, ...] = (b"delta", b"usage")

    def asked(self, body: bytes) -> Asked:
        found = _requests.decode(body)
        most = found.max_completion_tokens or found.max_tokens
        return Asked(found.model, bool(found.stream), most and most * (found.n or 1))

    def with_usage(self, body: bytes) -> bytes | None:
        fields = msgspec.json.decode(body, type=dict[str, Raw])
        given = fields.get("stream_options", Raw(b"null"))
        options = msgspec.json.decode(given, type=dict[str, Any] | None) or {}
        if options.get("include_usage"):
            return None
        fields["stream_options"] = Raw(msgspec.json.encode({**options, "include_usage": True}))
        return msgspec.json.encode(fields)

    def read_answer(self, document: bytes, usage: Usage) -> None:
        self._read(_answers.decode(document), usage, whole=True)

    def read_event(self, data: bytes, usage: Usage) -> bool:
        found = _answers.decode(data)
        # Some vendors report the usage so far with each part.
        ended = not found.choices or any(choice.finish_reason for choice in found.choices)
        self._read(found, usage, whole=ended)
        return found.usage is not None and not found.choices

    def _read(self, found: _Answer, usage: Usage, *, whole: bool) -> None:
        if found.usage is not None:
            details = found.usage.prompt_tokens_details
            cached = (details and details.cached_tokens) or 0
            usage.set_input(found.usage.prompt_tokens - cached, cached, 0)
            usage.set_output(found.usage.completion_tokens or 0, whole=whole)
        for choice in found.choices or ():
            text = choice.delta or choice.message or {}
            usage.letters += letters_of(*(text.get(kind) for kind in _TEXTS))
            for call in text.get("tool_calls") or ():
                usage.letters += letters_of((call.get("function") or {}).get("arguments"))
