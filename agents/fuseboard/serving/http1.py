"""HTTP/1.1 on one connection: one request at a time, within bounds.

Whatever a peer sends, a connection keeps at most one read of a socket, the head and body of one request, and
a few requests that wait for it.
"""

import asyncio
import logging
from collections import deque
from http import HTTPStatus
from math import inf
from time import monotonic
from typing import cast

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct

from fuseboard.serving.call import begin
from fuseboard.serving.exchange import Answer, Request, Service
from fuseboard.serving.sockets import peer_uid

logger = logging.getLogger("fuseboard.serving")

#: A second one could contradict the first, which was checked.
_ONCE = frozenset({"authorization", "content-type", "host", "origin"})
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: " for status in HTTPStatus
}


#: When connections are closed, answers that are worked on have so long.
LAST_ANSWERS_S = 0.5


#: A peer whose request was not read to its end has so long to read why. If the connection were closed at
#: once, the bytes that nothing reads would reset it, and the answer could be lost.
LINGER_S = 1.0


class Bounds(Struct, frozen=True, kw_only=True):
    head_bytes: int = 8 * 1024
    body_bytes: int = 16 * 1024
    #: From the first byte of a request to its last.
    request_s: float = 5.0
    #: Without a request.
    idle_s: float = 75.0
    connections: int = 1024
    #: Requests of one connection that wait for the one before.
    pipelined: int = 16
    #: A peer that does not read its answers is not read from until fewer bytes wait.
    write_bytes: int = 64 * 1024


class Connections:
    """The open connections of a process."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._open: set[Http1] = set()
        self._tasks: set[asyncio.Task[Answer]] = set()
        #: No connection is kept after its next answer.
        self.closing = False
        #: Connections that were refused because there were too many.
        self.refused = 0

    def __len__(self) -> int:
        return len(self._open)

    def add(self, one: "Http1") -> bool:
        if len(self._open) >= self.bounds.connections:
            self.refused += 1
            return False
        self._open.add(one)
        return True

    def __contains__(self, one: "Http1") -> bool:
        return one in self._open

    def discard(self, one: "Http1") -> None:
        self._open.discard(one)

    def keep(self, task: "asyncio.Task[Answer]") -> None:
        """The loop keeps only weak references to its tasks."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def sweep(self) -> None:
        """Close the connections whose time is over."""
        now = monotonic()
        for one in [one for one in self._open if one.until <= now]:
            one.abort()

    async def close(self) -> None:
        """Close all connections: idle ones at once, others with their answer, if it comes in time.

        Answers that do not come are cancelled. Nothing is pending when this returns.
        """
        self.closing = True
        for one in list(self._open):
            if not one.is_busy:
                one.abort()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_ANSWERS_S)
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for one in list(self._open):
            one.abort()


class Http1(asyncio.Protocol):
    """Its ``on_`` methods are the callbacks of the parser."""

    _transport: asyncio.Transport

    def __init__(self, service: Service, connections: Connections) -> None:
        self._service, self._connections, self._bounds = service, connections, connections.bounds
        self._parser = HttpRequestParser(self)
        self._queue: deque[tuple[Request, bool]] = deque()
        self._task: asyncio.Task[Answer] | None = None
        #: Bytes that were read since the last whole request.
        self._read = 0
        self._ended = self._lingers = False
        self.on_message_begin()
        #: When the connection is closed, on the monotonic clock.
        self.until = monotonic() + self._bounds.idle_s

    # The connection

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self._task is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._uid = peer_uid(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=self._bounds.write_bytes)
        if not self._connections.add(self):
            self._refuse(503, "busy", f"more than {self._bounds.connections} connections are open")

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._queue.clear()
        self._connections.discard(self)
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self.until = monotonic() + self._bounds.idle_s
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()

    def abort(self) -> None:
        self._ended = True
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._read += len(data)
        while data and not self._ended:
            try:
                if self._unparsed:
                    data = self._take_body(data)
                    continue
                self._parser.feed_data(data)
                data = b""
            except HttpParserUpgrade as upgrade:
                # The client offers HTTP/2. It goes on with HTTP/1.1 when its request is answered.
                data = data[upgrade.args[0] :]
                self._parser = HttpRequestParser(self)
            except HttpParserError:
                self._refuse(400, "malformed", "the request is not HTTP/1.1")
        bounds = self._bounds
        if self._read > bounds.head_bytes + 2 * bounds.body_bytes:
            self._refuse(413, "too-large", "head, body and trailers are too large")
        elif not self._complete_head and self._read > bounds.head_bytes:
            self._refuse(431, "too-large", f"the head has more than {bounds.head_bytes} bytes")

    # The request that is read

    def on_message_begin(self) -> None:
        self._url, self._headers, self._body = b"", dict[str, str](), b""
        self._method, self._keeps = "", True
        self._head_bytes = 0
        #: Bytes of the body that the parser leaves, because the request offers another protocol.
        self._unparsed = 0
        self._complete_head = False
        if self._task is None:
            self.until = monotonic() + self._bounds.request_s

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._complete_head or self._ended:
            return  # a trailer
        self._head_bytes += len(name) + len(value)
        known = name.decode("latin-1").lower()
        if self._head_bytes + len(self._url) > self._bounds.head_bytes:
            self._refuse(431, "too-large", f"the head has more than {self._bounds.head_bytes} bytes")
        elif known in _ONCE and known in self._headers:
            self._refuse(400, "malformed", f"the header {known} comes twice")
        self._headers[known] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._complete_head = True
        self._method = self._parser.get_method().decode("latin-1")
        self._keeps = self._parser.should_keep_alive()
        text = self._headers.get("content-length", "")
        length = int(text) if text.isascii() and text.isdigit() else 0
        if length > self._bounds.body_bytes:
            self._refuse_body()
        elif self._parser.should_upgrade() and "transfer-encoding" in self._headers:
            self._refuse(400, "malformed", "the body of a request with Upgrade needs a Content-Length")
        elif self._parser.should_upgrade():
            self._unparsed = length
        elif self._headers.get("expect", "").lower() == "100-continue" and not self._ended:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if self._ended:
            return
        self._body = self._body + data if self._body else data
        if len(self._body) > self._bounds.body_bytes:
            self._refuse_body()

    def _take_body(self, data: bytes) -> bytes:
        """The bytes after the body, which the parser would take for another request."""
        part, rest = data[: self._unparsed], data[self._unparsed :]
        self.on_body(part)
        self._unparsed -= len(part)
        self.on_message_complete()
        return rest

    def on_message_complete(self) -> None:
        if self._ended or self._unparsed:
            return
        self._read = 0
        request = Request(
            method=self._method,
            path=self._url.decode("latin-1"),
            headers=self._headers,
            body=self._body,
            uid=self._uid,
        )
        if self._task is None:
            self._begin(request, self._keeps)
        elif len(self._queue) < self._bounds.pipelined:
            self._queue.append((request, self._keeps))
        else:
            self.abort()

    # The answer

    def _begin(self, request: Request, keeps: bool) -> None:
        self.until = inf
        answer: Answer | asyncio.Task[Answer]
        try:
            handled = self._service.handle(request)
            answer = handled if isinstance(handled, Answer) else begin(handled)
        except Exception:
            answer = self._defect()
        if isinstance(answer, Answer):
            self._write(answer, request.method, keeps)
            return
        self._connections.keep(answer)
        self._task = answer
        self._task.add_done_callback(lambda task: self._end(task, request.method, keeps))

    def _end(self, task: "asyncio.Task[Answer]", method: str, keeps: bool) -> None:
        self._task = None
        if task.cancelled():
            self.abort()
            return
        if self._ended:
            task.exception()  # or Python logs that it was never retrieved
            return
        try:
            answer = task.result()
        except Exception:
            answer = self._defect()
        self._write(answer, method, keeps)
        while self._queue and self._task is None:
            self._begin(*self._queue.popleft())

    def _defect(self) -> Answer:
        logger.exception("serving.defect: the request has no decision")
        return self._service.problem(500, "defect", "the request could not be decided: see the log")

    def _write(self, answer: Answer, method: str, keeps: bool) -> None:
        keeps = keeps and not self._connections.closing
        head = f"{_STATUS_LINES[answer.status]}{answer.kind}\r\ncontent-length: {len(answer.body)}\r\n"
        for name, value in answer.headers:
            head += f"{name}: {value}\r\n"
        head += "\r\n" if keeps else "connection: close\r\n\r\n"
        self.until = monotonic() + self._bounds.idle_s
        self._transport.write(head.encode("latin-1") + (b"" if method == "HEAD" else answer.body))
        if not keeps:
            self._ended = True
            self._queue.clear()
            if self._lingers:
                self.until = monotonic() + LINGER_S
                self._transport.write_eof()
            else:
                self._transport.close()

    def _refuse_body(self) -> None:
        self._refuse(413, "too-large", f"the body has more than {self._bounds.body_bytes} bytes")

    def _refuse(self, status: int, kind: str, detail: str) -> None:
        """The request cannot be read to its end, so the connection ends too."""
        if self._ended:
            return
        if self._task is not None or self._queue:
            # An answer now would look like that of the request before.
            self.abort()
            return
        self._lingers = self in self._connections
        self._write(self._service.problem(status, kind, detail), "GET", False)
