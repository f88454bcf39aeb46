"""The formats in which vendors of language models answer: those of OpenAI and of Anthropic.

The server of the demo and that of the tests send them. What is charged is exact: a word of the output is a
token, and a text of the input has a token for each four letters.
"""

import json
from dataclasses import dataclass, field
from typing import Any

WORD = " word"
CACHED, WRITTEN = 8, 4
SORRY = {"message": "sorry", "type": "server_error", "code": "server_error"}


@dataclass
class Scenario:
    """How the vendor answers one request."""

    #: Words of the output.
    words: int = 20
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    error: dict[str, Any] | None = None
    #: After so many words, a stream ends with ``error``, or its connection closes with ``cuts``.
    after: int | None = None
    cuts: bool = False
    #: After so many words, a stream waits until ``Vendor.held`` is set.
    holds_after: int | None = None
    #: The time until the first byte of the answer.
    takes_s: float = 0.0
    #: The end of a line of a stream, and whether it has comments and events that no client knows.
    newline: str = "\n"
    noise: bool = False
    reports_usage: bool = True


@dataclass
class Charged:
    fresh: int = 0
    cached: int = 0
    written: int = 0
    output: int = 0
    #: Whole words that were sent before the client left.
    sent: int = 0
    body: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, str] = field(default_factory=dict)
    path: str = ""

    @property
    def input(self) -> int:
        return self.fresh + self.cached + self.written


def input_of(body: dict[str, Any]) -> int:
    said = body.get("messages") or body.get("input") or body.get("prompt") or ""
    return -(-len(json.dumps(said)) // 4)


class Answer:
    """One answer in the format of an endpoint, streamed or whole."""

    def __init__(self, scenario: Scenario, charged: Charged) -> None:
        self.scenario, self.charged = scenario, charged
        self.events: list[str] = []
        self.model = charged.body.get("model", "")
        self.input = charged.fresh

    def event(self, document: dict[str, Any] | str, name: str = "") -> None:
        newline = self.scenario.newline
        text = document if isinstance(document, str) else json.dumps(document)
        if self.scenario.noise:
            self.events.append(f": keep-alive{newline}{newline}")
        head = f"event: {name}{newline}" if name else ""
        self.events.append(f"{head}data: {text}{newline}{newline}")

    @property
    def text(self) -> str:
        return WORD * self.scenario.words

    def whole(self) -> dict[str, Any]:
        raise NotImplementedError

    def begin(self) -> None:
        """Nothing comes before the first word."""

    def word(self) -> None:
        raise NotImplementedError

    def fail(self, error: dict[str, Any]) -> None:
        self.event({"error": error})

    def end(self) -> None:
        raise NotImplementedError


class Chat(Answer):
    def _chunk(self, choices: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
        return {
            "id": "c1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": self.model,
            "choices": choices,
            **more,
        }

    def _choice(self, delta: dict[str, Any], reason: str | None = None) -> None:
        self.event(self._chunk([{"index": 0, "delta": delta, "finish_reason": reason}]))

    def _usage(self) -> dict[str, Any]:
        cached = min(CACHED, self.input)
        self.charged.fresh, self.charged.cached = self.input - cached, cached
        return {
            "prompt_tokens": self.input,
            "completion_tokens": self.scenario.words,
            "total_tokens": self.input + self.scenario.words,
            "prompt_tokens_details": {"cached_tokens": cached},
        }

    def whole(self) -> dict[str, Any]:
        message = {"role": "assistant", "content": self.text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        usage = {"usage": self._usage()} if self.scenario.reports_usage else {}
        return self._chunk([choice], **usage) | {"object": "chat.completion"}

    def begin(self) -> None:
        self._usage()
        self._choice({"role": "assistant", "content": ""})

    def word(self) -> None:
        if self.scenario.noise:
            self.event({"object": "news", "text": "no client knows this"}, "news")
        self._choice({"content": WORD})

    def end(self) -> None:
        self._choice({}, "stop")
        asked = (self.charged.body.get("stream_options") or {}).get("include_usage")
        if asked and self.scenario.reports_usage:
            self.event(self._chunk([], usage=self._usage()))
        self.event("[DONE]")


class Completions(Chat):
    def _choice(self, delta: dict[str, Any], reason: str | None = None) -> None:
        text = {"index": 0, "text": delta.get("content", ""), "finish_reason": reason, "logprobs": None}
        self.event(self._chunk([text]) | {"object": "text_completion"})

    def whole(self) -> dict[str, Any]:
        choice = {"index": 0, "text": self.text, "finish_reason": "stop", "logprobs": None}
        usage = {"usage": self._usage()} if self.scenario.reports_usage else {}
        return self._chunk([choice], **usage) | {"object": "text_completion"}


class Responses(Answer):
    def whole(self) -> dict[str, Any]:
        content = [{"type": "output_text", "text": self.text, "annotations": []}]
        message = {"id": "m1", "type": "message", "role": "assistant", "content": content}
        message["status"] = "completed"
        cached = min(CACHED, self.input)
        self.charged.fresh, self.charged.cached = self.input - cached, cached
        usage = {
            "input_tokens": self.input,
            "input_tokens_details": {"cached_tokens": cached},
            "output_tokens": self.scenario.words,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": self.input + self.scenario.words,
        }
        return {
            "id": "r1",
            "object": "response",
            "created_at": 1,
            "status": "completed",
            "model": self.model,
            "output": [message],
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
            "usage": usage,
        }

    def word(self) -> None:
        self.event(
            {
                "type": "response.output_text.delta",
                "item_id": "m1",
                "output_index": 0,
                "content_index": 0,
                "sequence_number": self.charged.sent,
                "delta": WORD,
                "logprobs": [],
            },
            "response.output_text.delta",
        )

    def end(self) -> None:
        response = self.whole()
        if not self.scenario.reports_usage:
            response["usage"] = None
        done = {"type": "response.completed", "sequence_number": 999, "response": response}
        self.event(done, "response.completed")


class Embeddings(Answer):
    def whole(self) -> dict[str, Any]:
        data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
        usage = {"prompt_tokens": self.input, "total_tokens": self.input}
        return {"object": "list", "model": self.model, "data": data, "usage": usage}


class Messages(Answer):
    def _usage(self, output: int) -> dict[str, Any]:
        read, written = min(CACHED, self.input), min(WRITTEN, max(0, self.input - CACHED))
        fresh = self.input - read - written
        self.charged.fresh, self.charged.cached, self.charged.written = fresh, read, written
        return {
            "input_tokens": fresh,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": output,
        }

    def _message(self, content: list[dict[str, Any]], output: int, reason: str | None) -> dict[str, Any]:
        return {
            "id": "m1",
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": reason,
            "stop_sequence": None,
            "usage": self._usage(output),
        }

    def whole(self) -> dict[str, Any]:
        return self._message([{"type": "text", "text": self.text}], self.scenario.words, "end_turn")

    def begin(self) -> None:
        self.event({"type": "message_start", "message": self._message([], 1, None)}, "message_start")
        block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
        self.event(block, "content_block_start")

    def word(self) -> None:
        if self.scenario.noise:
            self.event({"type": "ping"}, "ping")
        delta = {"type": "text_delta", "text": WORD}
        self.event({"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta")

    def fail(self, error: dict[str, Any]) -> None:
        self.event({"type": "error", "error": error}, "error")

    def end(self) -> None:
        self.event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        stopped = {"stop_reason": "end_turn", "stop_sequence": None}
        usage = {"output_tokens": self.scenario.words}
        self.event({"type": "message_delta", "delta": stopped, "usage": usage}, "message_delta")
        self.event({"type": "message_stop"}, "message_stop")


#: Path -> the format of its answers.
ANSWERS: dict[str, type[Answer]] = {
    "/v1/chat/completions": Chat,
    "/v1/completions": Completions,
    "/v1/responses": Responses,
    "/v1/embeddings": Embeddings,
    "/v1/messages": Messages,
}
