"""A vendor of language models behind a real socket. It speaks the formats of OpenAI and of Anthropic.

What it charges is exact: a word of the output is a token, and a text of the input has a token for each four
letters. ``bill`` has what each request was charged, also if the client has left.
"""

import json
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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


class Vendor:
    """``script``: the scenarios of the next requests; then ``usual``."""

    def __init__(self) -> None:
        self.script: deque[Scenario] = deque()
        self.usual = Scenario()
        self.bill: list[Charged] = []
        self.held = threading.Event()
        self.url = ""

    def will(self, times: int = 1, **scenario: Any) -> None:
        self.script += [Scenario(**scenario) for _ in range(times)]

    @property
    def requests(self) -> int:
        return len(self.bill)


def _input_of(body: dict[str, Any]) -> int:
    said = body.get("messages") or body.get("input") or body.get("prompt") or ""
    return -(-len(json.dumps(said)) // 4)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    vendor: Vendor

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        scenario = self.vendor.script.popleft() if self.vendor.script else self.vendor.usual
        charged = Charged(body=body, headers=dict(self.headers.items()), path=self.path)
        self.vendor.bill.append(charged)
        if scenario.status >= 300:
            self._send(scenario, {"type": "error", "error": scenario.error or {"message": "no"}})
            return
        charged.fresh = _input_of(body)
        answers = {
            "/v1/chat/completions": Chat,
            "/v1/completions": Completions,
            "/v1/responses": Responses,
            "/v1/embeddings": Embeddings,
            "/v1/messages": Messages,
        }
        answer = answers[self.path.partition("?")[0]](scenario, charged)
        if body.get("stream"):
            self._stream(scenario, answer, charged)
        else:
            charged.output = charged.sent = 0 if self.path == "/v1/embeddings" else scenario.words
            self._send(scenario, answer.whole())

    def do_GET(self) -> None:
        self.vendor.bill.append(Charged(path=self.path))
        self._send(Scenario(), {"object": "list", "data": []})

    def _send(self, scenario: Scenario, document: dict[str, Any]) -> None:
        text = json.dumps(document).encode()
        self.send_response(scenario.status)
        for name, value in {"Content-Type": "application/json", **scenario.headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, scenario: Scenario, answer: "Answer", charged: Charged) -> None:
        # The vendor makes the whole answer, whether it is read or not.
        charged.output = scenario.words
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        try:
            self._events(scenario, answer, charged)
        except OSError:
            self.close_connection = True

    def _events(self, scenario: Scenario, answer: "Answer", charged: Charged) -> None:
        answer.begin()
        self._flush(answer)
        for number in range(scenario.words):
            if number == scenario.after:
                charged.output = number
                if scenario.cuts:
                    self.close_connection = True
                    return
                answer.fail(scenario.error or SORRY)
                self._flush(answer)
                self.wfile.write(b"0\r\n\r\n")
                return
            if number == scenario.holds_after:
                self.vendor.held.wait(60)
            answer.word()
            charged.sent += 1
            self._flush(answer)
        answer.end()
        self._flush(answer)
        self.wfile.write(b"0\r\n\r\n")

    def _flush(self, answer: "Answer") -> None:
        part = "".join(answer.events).encode()
        answer.events.clear()
        if part:
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    def log_message(self, *_: Any) -> None:
        """Quiet."""


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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        """A client that leaves is no error."""


@contextmanager
def serving() -> Iterator[Vendor]:
    vendor = Vendor()
    handler = type("Handler", (_Handler,), {"vendor": vendor})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    vendor.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield vendor
    finally:
        vendor.held.set()
        server.shutdown()
        server.server_close()
        thread.join()
