"""HTTP/1.1 on one connection: one request at a time, within bounds.

Whatever a peer sends, a connection keeps at most one read of a socket, the head and body of one request, a
few requests that wait for it, and ``write_bytes`` of answers and one more.
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

from fuseboard.serving.call import Waiting, begin
from fuseboard.serving.exchange import Answer, Request, Service
from fuseboard.serving.heads import KnownHeads
from fuseboard.serving.shares import may_have_more
from fuseboard.serving.sockets import peer_uid

logger = logging.getLogger("fuseboard.serving")

#: A second one could contradict the first, which was checked.
_ONCE = frozenset({"authorization", "content-type", "host", "origin"})
_STATUS_LINES = {
    status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: " for status in HTTPStatus
}

#: When connections are closed, the time that answers have which are worked on.
LAST_ANSWERS_S = 0.5

#: The time in which a peer whose request was not read to its end may read why. If the connection were closed
#: at once, the bytes that nothing reads would reset it, and the answer could be lost.
LINGER_S = 1.0

#: The most connections beyond the bound that may read why. Further ones are closed at once.
MAX_LINGERING = 256

#: The answers that a connection gets in one turn of the loop. Then others have theirs.
PER_TURN = 16


class Bounds(Struct, frozen=True, kw_only=True):
    head_bytes: int = 8 * 1024
    body_bytes: int = 16 * 1024
    #: From the first byte of a request to its last, and from the connection to the first byte.
    request_s: float = 5.0
    #: Without a request, after an answer.
    idle_s: float = 75.0
    connections: int = 1024
    #: Requests of one connection that wait for the one before, or for the next turn of the loop.
    pipelined: int = 16
    #: A connection has more than one request.
    keeps_open: bool = True
    #: A peer that does not read its answers is not read from until fewer bytes wait.
    write_bytes: int = 64 * 1024


class Connections:
    """The open connections that share their bounds."""

    def __init__(self, bounds: Bounds, *, fair: bool = False) -> None:
        """If they are ``fair``, one user of a unix socket cannot use them up."""
        self.bounds, self._fair = bounds, fair
        self.heads = KnownHeads(bounds.body_bytes)
        self._open: set[Http1] = set()
        self._lingering: set[Http1] = set()
        #: The answers that are worked on, also for peers that have left.
        self._waiting: set[Waiting[Answer]] = set()
        self._none_waits: asyncio.Future[None] | None = None
        #: No connection is kept after its next answer.
        self.closing = False
        #: Connections that were refused because there were too many, and all had a request.
        self.refused = 0
        #: Connections without a request that made room for newer ones.
        self.displaced = 0

    def __len__(self) -> int:
        return len(self._open)

    @property
    def lingering(self) -> int:
        """The connections beyond the bound whose peers may still read why."""
        return len(self._lingering)

    def add(self, one: "Http1") -> bool:
        """When there are too many, the connection that has had no answer for the longest time is closed."""
        most, among = self.bounds.connections, self._open
        if self._fair and len(among) < most:
            among = {other for other in among if other.uid == one.uid}
        if len(self._open) >= most or (self._fair and not may_have_more(len(among), len(self._open), most)):
            idle = [other for other in among if not other.is_busy]
            if not idle:
                self.refused += 1
                if len(self._lingering) < MAX_LINGERING:
                    self._lingering.add(one)
                return False
            self.displaced += 1
            oldest = min(idle, key=lambda other: other.since)
            oldest.abort()
            self._open.discard(oldest)
        self._open.add(one)
        return True

    def __contains__(self, one: "Http1") -> bool:
        return one in self._open or one in self._lingering

    def discard(self, one: "Http1") -> None:
        self._open.discard(one)
        self._lingering.discard(one)

    def keep(self, waiting: Waiting[Answer]) -> None:
        self._waiting.add(waiting)

    def has_ended(self, waiting: Waiting[Answer]) -> None:
        self._waiting.discard(waiting)
        if not self._waiting and self._none_waits is not None and not self._none_waits.done():
            self._none_waits.set_result(None)

    async def _until_none_waits(self, timeout_s: float | None) -> None:
        if self._waiting:
            self._none_waits = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._none_waits], timeout=timeout_s)

    def sweep(self) -> None:
        """Close the connections whose time is over."""
        now = monotonic()
        for one in [one for one in (*self._open, *self._lingering) if one.until <= now]:
            one.abort()

    async def close(self) -> None:
        """Close all connections: idle ones at once, others with their answer, if it comes in time.

        Answers that do not come are cancelled. Nothing is pending when this returns.
        """
        self.closing = True
        for one in list(self._open):
            if not one.is_busy:
                one.abort()
        await self._until_none_waits(LAST_ANSWERS_S)
        for waiting in list(self._waiting):
            waiting.cancel()
        await self._until_none_waits(None)
        for one in (*self._open, *self._lingering):
            one.abort()


class Http1(asyncio.Protocol):
    """Its ``on_`` methods are the callbacks of the parser."""

    _transport: asyncio.Transport

    def __init__(self, service: Service, connections: Connections) -> None:
        self._service, self._connections, self._bounds = service, connections, connections.bounds
        self._parser = HttpRequestParser(self)
        self._queue: deque[tuple[Request, bool]] = deque()
        #: The answer that is worked on, with what it needs of its request.
        self._waiting: Waiting[Answer] | None = None
        self._asked = ("", True)
        #: Bytes that were read since the last whole request.
        self._read = 0
        #: The read that began between two requests, until the first of its requests is complete.
        self._whole = b""
        #: Requests that were begun in this turn of the loop, as far as one read brought them.
        self._begun = 0
        #: The next turn of the loop goes on with what waits.
        self._next: asyncio.Handle | None = None
        self._ended = self._lingers = self._paused = False
        #: The time of the last answer, on the monotonic clock, or of the connection.
        self.since = monotonic()
        #: When the connection is closed.
        self.until = self.since + self._bounds.request_s
        self._forget_request()

    # The connection

    @property
    def is_busy(self) -> bool:
        """Whether a request waits for its answer."""
        return self._waiting is not None

    @property
    def _is_first(self) -> bool:
        """Whether no other request of the connection waits."""
        return self._waiting is None and not self._queue

    @property
    def _may_begin(self) -> bool:
        """Whether the next request has its turn: none waits for its answer, and the peer reads."""
        return (
            self._waiting is None
            and not self._paused
            and not self._ended
            and self._transport.get_write_buffer_size() <= self._bounds.write_bytes
        )

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.uid = peer_uid(transport.get_extra_info("socket"))
        self._transport.set_write_buffer_limits(high=self._bounds.write_bytes)
        if not self._connections.add(self):
            self._refuse(503, "busy", f"more than {self._bounds.connections} connections are open")

    def connection_lost(self, error: Exception | None) -> None:
        self._ended = True
        self._queue.clear()
        self._connections.discard(self)
        if self._waiting is not None:
            self._waiting.cancel()
        if self._next is not None:
            self._next.cancel()

    def pause_writing(self) -> None:
        self._paused = True
        self.until = monotonic() + self._bounds.idle_s
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._paused = False
        self._transport.resume_reading()
        self._go_on_soon()

    def abort(self) -> None:
        self._ended = True
        self._queue.clear()
        self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._whole = b""
        if not self._partial and not self._queue and self._may_begin:
            if (known := self._connections.heads.request_in(data, self.uid)) is not None:
                self._begin(known, True)
                return
            self._whole = data
        self._read += len(data)
        self._begun = 0
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
                data = b""
                # The request before may have said that it is the last. It gets its answer.
                if self._keeps or self._partial:
                    self._refuse(400, "malformed", "the request is not HTTP/1.1")
        bounds = self._bounds
        if self._read > bounds.head_bytes + 2 * bounds.body_bytes:
            self._refuse(413, "too-large", "head, body and trailers are too large")
        elif not self._complete_head and self._read > bounds.head_bytes:
            self._refuse(431, "too-large", f"the head has more than {bounds.head_bytes} bytes")
        self._go_on_soon()

    # The request that is read

    def on_message_begin(self) -> None:
        if self._ended:
            raise ConnectionAbortedError  # the parser stops
        self._forget_request()
        self._partial = True
        if self._waiting is None:
            self.until = monotonic() + self._bounds.request_s

    def _forget_request(self) -> None:
        #: A request has begun, and is not complete.
        self._partial = False
        self._url, self._headers = b"", dict[str, str]()
        self._body: bytes | bytearray = b""
        self._method, self._keeps = "", True
        self._head_bytes = 0
        #: Bytes of the body that the parser leaves, because the request offers another protocol.
        self._unparsed = 0
        self._complete_head = False

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
        self._headers[known] = value.decode("latin-1").strip(" \t")

    def on_headers_complete(self) -> None:
        self._complete_head = True
        self._method = self._parser.get_method().decode("latin-1")
        # An HTTP/1.0 client reads until the connection ends, unless a header says that it stays open.
        self._keeps = self._parser.should_keep_alive() and self._parser.get_http_version() == "1.1"
        text = self._headers.get("content-length", "0")
        if not (text.isascii() and text.isdigit()):
            # The parser and this class must find the same end of the body.
            self._refuse(400, "malformed", "the Content-Length is not a number")
            return
        length = int(text)
        if length > self._bounds.body_bytes:
            self._refuse_body()
        elif self._parser.should_upgrade() and "transfer-encoding" in self._headers:
            self._refuse(400, "malformed", "the body of a request with Upgrade needs a Content-Length")
        elif self._parser.should_upgrade():
            self._unparsed = length
        elif self._headers.get("expect", "").lower() == "100-continue" and self._is_first:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if self._ended:
            return
        # The first part is mostly all. Many parts of a large body would be copied again and again.
        if not self._body:
            self._body = data
        elif isinstance(self._body, bytearray):
            self._body += data
        else:
            self._body = bytearray(self._body + data)
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
        self._read, self._partial = 0, False
        request = Request(
            method=self._method,
            path=self._url.decode("latin-1"),
            headers=self._headers,
            body=bytes(self._body),
            uid=self.uid,
        )
        if self._whole and self._keeps:
            self._connections.heads.learn(self._whole, request)
        self._whole = b""
        if self._is_first and self._may_begin and self._begun < PER_TURN:
            self._begun += 1
            self._begin(request, self._keeps)
        elif len(self._queue) < self._bounds.pipelined:
            self._queue.append((request, self._keeps))
        else:
            self.abort()

    # The answer

    def _begin(self, request: Request, keeps: bool) -> None:
        self.until = inf
        answer: Answer | Waiting[Answer]
        try:
            handled = self._service.handle(request)
            answer = handled if isinstance(handled, Answer) else begin(handled, self._end)
        except Exception:
            answer = self._defect()
        if isinstance(answer, Answer):
            self._write(answer, request.method, keeps)
            return
        self._connections.keep(answer)
        self._waiting, self._asked = answer, (request.method, keeps)

    def _end(self, waiting: Waiting[Answer]) -> None:
        self._connections.has_ended(waiting)
        self._waiting = None
        try:
            answer = waiting.result()
        except asyncio.CancelledError:
            self.abort()
            return
        except Exception:
            answer = self._defect()
        if self._ended:
            if answer.unsent is not None:
                answer.unsent()
            return
        self._write(answer, *self._asked)
        self._go_on_soon()

    def _go_on_soon(self) -> None:
        """Begin what waits in the next turn of the loop."""
        if self._queue and self._waiting is None and not self._paused and self._next is None:
            self._next = asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._next = None
        while self._queue and self._may_begin:
            self._begin(*self._queue.popleft())
        # The transport may have more than it should, and say so at the end of this turn only.
        self._go_on_soon()

    def _defect(self) -> Answer:
        logger.exception("serving.defect: the request has no decision")
        return self._service.problem(500, "defect", "the request could not be decided: see the log")

    def _write(self, answer: Answer, method: str, keeps: bool) -> None:
        keeps = keeps and self._bounds.keeps_open and not self._connections.closing
        head = f"{_STATUS_LINES[answer.status]}{answer.kind}\r\ncontent-length: {len(answer.body)}\r\n"
        for name, value in answer.headers:
            head += f"{name}: {value}\r\n"
        head += "\r\n" if keeps else "connection: close\r\n\r\n"
        self.since = monotonic()
        self.until = self.since + (self._bounds.request_s if self._partial else self._bounds.idle_s)
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
        if not self._is_first:
            # An answer now would look like that of the request before.
            self.abort()
            return
        self._lingers = self in self._connections
        self._write(self._service.problem(status, kind, detail), "GET", False)
