"""Completions of a text, the older endpoint of OpenAI. Servers of other models still have it."""

from typing import Any

import msgspec
from msgspec import Struct

from fuseboard.llm.dialects.dialect import Asked, letters_of
from fuseboard.llm.dialects.openai_chat import ChatUsage, OpenAIChat
from fuseboard.llm.usage import Usage


class _Request(Struct):
    model: str = ""
    stream: bool | None = None
    max_tokens: int | None = None
    n: int | None = None
    best_of: int | None = None
    #: A text, its tokens, or a list of either.
    prompt: Any = None


class _Choice(Struct):
    finish_reason: str | None = None
    text: Any = None


class _Answer(Struct):
    choices: list[_Choice] | None = None
    usage: ChatUsage | None = None


_requests, _answers = msgspec.json.Decoder(_Request), msgspec.json.Decoder(_Answer)


class OpenAICompletions(OpenAIChat):
    # ``/chat/completions`` ends so too, and is found first.
    path = "/completions"
    operation = "text_completion"
    hints: tuple[bytes, ...] = (b"text", b"usage")

    def asked(self, body: bytes) -> Asked:
        found = _requests.decode(body)
        # All candidates are billed, and the best ``n`` of them returned.
        answers = max(found.n or 1, found.best_of or 1) * _prompts_in(found.prompt)
        most = found.max_tokens
        return Asked(found.model, bool(found.stream), most and most * answers)

    def read_answer(self, document: bytes, usage: Usage) -> None:
        self._read(_answers.decode(document), usage, whole=True)

    def read_event(self, data: bytes, usage: Usage) -> bool:
        found = _answers.decode(data)
        ended = not found.choices or any(choice.finish_reason for choice in found.choices)
        self._read(found, usage, whole=ended)
        return found.usage is not None and not found.choices

    def _read(self, found: _Answer, usage: Usage, *, whole: bool) -> None:
        if found.usage is not None:
            self._report(found.usage, usage, whole=whole)
        for choice in found.choices or ():
            usage.letters += letters_of(choice.text)


def _prompts_in(prompt: Any) -> int:
    several = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
    return len(prompt) if several else 1
