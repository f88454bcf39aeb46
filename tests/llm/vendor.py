"""A vendor of language models behind a real socket. It speaks the formats of OpenAI and of Anthropic.

``tools.demo.model_formats`` has the formats. ``bill`` has what each request was charged, also if the client
has left.
"""

import json
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeVar

from tools.demo.model_formats import ANSWERS, SORRY, Answer, Charged, Scenario, input_of


class Vendor:
    """``script``: the scenarios of the next requests; then ``usual``."""

    def __init__(self) -> None:
        self.script: deque[Scenario] = deque()
        self.usual = Scenario()
        self.bill: list[Charged] = []
        self.held = threading.Event()
        #: No request is answered while it is clear.
        self.answers = threading.Event()
        self.answers.set()
        self.url = ""

    def next_scenario(self, path: str) -> Scenario:
        """For a request to this path."""
        return self.script.popleft() if self.script else self.usual

    def ended(self, scenario: Scenario) -> None:
        """The answer has been sent, or the client has left."""

    def will(self, times: int = 1, **scenario: Any) -> None:
        self.script += [Scenario(**scenario) for _ in range(times)]

    @property
    def requests(self) -> int:
        return len(self.bill)


Some = TypeVar("Some", bound=Vendor)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    vendor: Vendor

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length") or 0)))
        scenario = self.vendor.next_scenario(self.path)
        charged = Charged(body=body, headers=dict(self.headers.items()), path=self.path)
        self.vendor.bill.append(charged)
        self.vendor.answers.wait(60)
        try:
            time.sleep(scenario.takes_s)
            self._answer(scenario, charged)
        finally:
            self.vendor.ended(scenario)

    def _answer(self, scenario: Scenario, charged: Charged) -> None:
        body = charged.body
        if scenario.status >= 300:
            self._send(scenario, {"type": "error", "error": scenario.error or {"message": "no"}})
            return
        charged.fresh = input_of(body)
        answer = ANSWERS[self.path.partition("?")[0]](scenario, charged)
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

    def _stream(self, scenario: Scenario, answer: Answer, charged: Charged) -> None:
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

    def _events(self, scenario: Scenario, answer: Answer, charged: Charged) -> None:
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

    def _flush(self, answer: Answer) -> None:
        part = "".join(answer.events).encode()
        answer.events.clear()
        if part:
            self.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")

    def log_message(self, *_: Any) -> None:
        """Quiet."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    #: Many clients connect at once.
    request_queue_size = 1024

    def handle_error(self, *_: Any) -> None:
        """A client that leaves is no error."""


@contextmanager
def serving() -> Iterator[Vendor]:
    with served(Vendor()) as vendor:
        yield vendor


@contextmanager
def served(vendor: Some) -> Iterator[Some]:
    handler = type("Handler", (_Handler,), {"vendor": vendor})
    server = _Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    vendor.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield vendor
    finally:
        vendor.held.set()
        vendor.answers.set()
        server.shutdown()
        server.server_close()
        thread.join()
