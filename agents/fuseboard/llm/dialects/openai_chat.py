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


class _Details(Struct, gc=False):
    cached_tokens: int | None = None


class ChatUsage(Struct, gc=False):
    prompt_tokens: int
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Function(Struct, gc=False):
    arguments: Any = None


class _ToolCall(Struct, gc=False):
    function: _Function | None = None


class _Text(Struct, gc=False):
    """Texts that are made of tokens."""

    content: Any = None
    reasoning_content: Any = None
    refusal: Any = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(Struct, gc=False):
    finish_reason: str | None = None
    delta: _Text | None = None
    message: _Text | None = None


class _Answer(Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: ChatUsage | None = None


_requests, _answers = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Answer)


class OpenAIChat:
    path = "/chat/completions"
    operation, provider = "chat", "openai"
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
        found = _answers.decode(document)
        if found.usage is not None:
            self._report(found.usage, usage, whole=True)
        self._count(found, usage)

    def read_event(self, data: bytes, usage: Usage) -> bool:
        found = _answers.decode(data)
        if found.usage is not None:
            # Some vendors report the usage so far with each part.
            ended = not found.choices or any(choice.finish_reason for choice in found.choices)
            self._report(found.usage, usage, whole=ended)
        self._count(found, usage)
        return found.usage is not None and not found.choices

    def _report(self, found: ChatUsage, usage: Usage, *, whole: bool) -> None:
        cached = (found.prompt_tokens_details and found.prompt_tokens_details.cached_tokens) or 0
        usage.set_input(found.prompt_tokens - cached, cached, 0)
        usage.set_output(found.completion_tokens or 0, whole=whole)

    def _count(self, found: _Answer, usage: Usage) -> None:
        for choice in found.choices or ():
            text = choice.delta or choice.message
            if text is None:
                continue
            # Nearly always, an event has this alone.
            content = text.content
            if type(content) is str:
                usage.letters += len(content)
            if text.reasoning_content is not None or text.refusal is not None:
                usage.letters += letters_of(text.reasoning_content, text.refusal)
            if text.tool_calls:
                for call in text.tool_calls:
                    if call.function is not None:
                        usage.letters += letters_of(call.function.arguments)
