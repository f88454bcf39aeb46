"""A protocol between the transport and uvicorn's protocol."""

import asyncio
from collections.abc import Callable
from typing import Any, cast

import httptools

# `uvicorn.Config(http=...)` accepts a protocol class, and this is the one that `http="httptools"` names.
# Only its constructor and the methods of asyncio.Protocol are used. A test in test_http_limits.py pins both.
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controlplane.http_limits.joined_writes import JoinedWrites
from controlplane.http_limits.limits import (
    BODY_TOO_LARGE,
    HEAD_TOO_LARGE,
    NO_TRAILERS,
    NO_UPGRADE,
    NOT_HTTP,
    TOO_SLOW,
    Limits,
    Refusal,
)

#: Where an ASGI scope's state carries the connection, until `CountAnswers` takes it out.
CONNECTION = "fuseboard.connection"

#: uvicorn gets this much at once, because it creates several objects for every request in it.
SLICE_BYTES = 16_384

#: Requests of one connection that uvicorn works on or queues. While there are more, nothing is read.
MAX_IN_FLIGHT = 8

#: How long a client that is still sending may take to notice a refusal. If its bytes meet a closed
#: connection, its system discards the refusal.
LINGER_S = 2.0

# The connection waits for a request, the rest of a head, or the rest of a body.
_IDLE, _HEAD, _BODY = 0, 1, 2


class LimitedConnection(asyncio.Protocol):
    """One connection: passes on what keeps the limits, and refuses the rest.

    A refusal waits until everything before it is answered. `refused` gets the status of each.
    """

    def __init__(
        self, limits: Limits, refused: Callable[[int], None], *, app_state: dict[str, Any], **uvicorn: Any
    ) -> None:
        self._limits = limits
        self._refused = refused
        self._idle_s: float = uvicorn["config"].timeout_keep_alive
        #: uvicorn copies this into every scope, so that an answer finds its connection.
        self._state = {**app_state, CONNECTION: self}
        #: `None` when uvicorn has heard that the connection ended, or has given it to a WebSocket.
        self._server: HttpToolsProtocol | None = HttpToolsProtocol(app_state=self._state, **uvicorn)
        self._parser: Any = httptools.HttpRequestParser(self)
        # Ignore bytes that follow a request with `Connection: close`, like uvicorn.
        self._parser.set_dangerous_leniencies(lenient_data_after_close=True)
        self._transport: JoinedWrites
        self._loop: asyncio.AbstractEventLoop
        self._timer: asyncio.TimerHandle
        self._stage = _IDLE
        #: When the stage began, on the loop's clock.
        self._since = 0.0
        #: Bytes that have arrived in this stage, without the slice in which it began.
        self._bytes = 0
        #: Requests whose head is complete, and those that the application is done with.
        self._begun = self._answered = 0
        #: The header fields of the head that is being read.
        self._fields: list[tuple[bytes, bytes]] = []
        #: Received and not parsed yet, because too many requests are in flight.
        self._held = b""
        #: Since when the client has not read its answers.
        self._unread_since: float | None = None
        #: The client sends no more.
        self._ended = False
        #: The refusal of the slice that is being parsed.
        self._fault: Refusal | None = None
        #: Nothing is read any more.
        self._refusal: Refusal | None = None

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport = JoinedWrites(cast(asyncio.Transport, transport), self._loop)
        self._since = self._loop.time()
        self._look_again_in(self._limits.head_s)
        if self._server is not None:
            self._server.connection_made(cast(asyncio.Transport, self._transport))

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        if self._held:
            # uvicorn resumes reading when it takes a request out of its queue.
            self._held += data
            self._transport.pause_reading()
        elif len(data) <= SLICE_BYTES and self._begun - self._answered < MAX_IN_FLIGHT:
            self._take(data)
        else:
            self._take_in_slices(data)

    def eof_received(self) -> bool | None:
        self._ended = True
        if self._server is None:
            return None
        # Without TLS a client may close its side and wait for its answers. `answered` closes ours.
        if self._owes_answers() and self._transport.get_extra_info("sslcontext") is None:
            return True
        # The transport closes itself after this.
        self._transport.flush()
        self._server.eof_received()
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._timer.cancel()
        if self._server is not None:
            self._server.connection_lost(exc)
            self._let_go()

    def pause_writing(self) -> None:
        self._unread_since = self._loop.time()
        if self._server is not None:
            self._server.pause_writing()

    def resume_writing(self) -> None:
        self._unread_since = None
        if self._server is not None:
            self._server.resume_writing()

    # Called by the parser.

    def on_message_begin(self) -> None:
        self._stage = _HEAD

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage == _HEAD:
            self._fields.append((name, value))
        else:
            # uvicorn adds it to the head, which a proxy in front has checked without it.
            self._fault = NO_TRAILERS

    def on_headers_complete(self) -> None:
        if self._parser.should_upgrade() and not self._may_become_websocket():
            self._fault = NO_UPGRADE
        self._stage = _BODY
        self._begun += 1
        self._fields.clear()

    def on_message_complete(self) -> None:
        self._stage = _IDLE

    # Called by `CountAnswers`.

    def answered(self) -> None:
        """The application is done with the oldest request in flight."""
        self._answered += 1
        self._since = self._loop.time()
        if self._refusal is not None:
            self._send_refusal(self._refusal)
        elif self._held and self._begun - self._answered < MAX_IN_FLIGHT:
            held, self._held = self._held, b""
            self._transport.resume_reading()
            self.data_received(held)
        elif self._ended and not self._owes_answers():
            self._transport.close()

    def _take_in_slices(self, data: bytes) -> None:
        for start in range(0, len(data), SLICE_BYTES):
            if self._begun - self._answered >= MAX_IN_FLIGHT:
                self._held = data[start:]
                self._transport.pause_reading()
                return
            self._take(data[start : start + SLICE_BYTES])
            if self._refusal is not None:
                return

    def _take(self, piece: bytes) -> None:
        """Parse a slice, and pass it to uvicorn unless something is wrong with it."""
        stage, begun = self._stage, self._begun
        becomes_websocket = False
        try:
            self._parser.feed_data(piece)
        except httptools.HttpParserUpgrade:
            becomes_websocket = True
        except httptools.HttpParserError:
            self._fault = self._fault or NOT_HTTP
        if self._stage != stage or self._begun != begun:
            self._bytes = 0
            self._since = self._loop.time()
        elif stage != _IDLE:
            self._bytes += len(piece)
            self._fault = self._fault or self._excess()
        if self._fault is not None:
            # uvicorn gets nothing of this slice, so none of the requests in it has begun.
            self._stage, self._begun = stage, begun
            self._refuse(self._fault)
            return
        if self._server is not None:
            self._server.data_received(piece)
        if becomes_websocket:
            # uvicorn has given the transport to another protocol. If it ever does not, this reads no more.
            self._refusal = NO_UPGRADE
            self._timer.cancel()
            self._let_go()
            self._end_without_handshake()

    def _end_without_handshake(self) -> None:
        """Refuse a head that the parser of WebSockets does not read, such as one of 200 lines.

        That parser discards whatever comes then, and neither answers nor closes.
        """
        if getattr(self._transport.get_protocol(), "handshake_initiated", True):
            return
        self._refused(NOT_HTTP.status)
        self._transport.write(NOT_HTTP.answer)
        self._transport.close()

    def _excess(self) -> Refusal | None:
        if self._stage == _HEAD:
            return HEAD_TOO_LARGE if self._bytes > self._limits.head_bytes else None
        return BODY_TOO_LARGE if self._bytes > self._limits.body_bytes else None

    def _may_become_websocket(self) -> bool:
        """Whether uvicorn takes this request as a WebSocket, and only frames can follow it."""
        fields = [(name.lower(), value.lower()) for name, value in self._fields]
        names = [name for name, _ in fields]
        return (
            self._limits.websockets
            and self._parser.get_method() == b"GET"
            and self._begun == self._answered
            and b"content-length" not in names
            and b"transfer-encoding" not in names
            # uvicorn looks at the last of several.
            and names.count(b"connection") == names.count(b"upgrade") == 1
            and (b"upgrade", b"websocket") in fields
        )

    def _owes_answers(self) -> bool:
        """Whether requests that arrived whole are not answered yet."""
        return bool(self._held) or self._begun - self._answered > (self._stage == _BODY)

    def _refuse(self, refusal: Refusal) -> None:
        self._refusal, self._held = refusal, b""
        self._send_refusal(refusal)

    def _send_refusal(self, refusal: Refusal) -> None:
        """Refuse what is being read and close, as soon as everything before it is answered."""
        if self._server is None or self._owes_answers():
            return
        in_body, waits = self._stage == _BODY, self._begun > self._answered
        # An application may answer before it has the whole body, and a part of that may be on its way.
        if not in_body or (waits and not self._transport.get_write_buffer_size()):
            self._refused(refusal.status)
            self._transport.write(refusal.answer)
        # Uvicorn, and an application that waits for the body, must see that the client has left.
        self._server.connection_lost(ConnectionAbortedError(refusal.detail))
        self._let_go()
        self._linger()

    def _linger(self) -> None:
        """Close, but read on for a moment, and discard what arrives."""
        self._timer.cancel()
        if self._ended or self._transport.is_closing() or not self._transport.can_write_eof():
            self._transport.close()
            self._timer = self._loop.call_later(self._limits.unread_s, self._transport.abort)
            return
        self._transport.write_eof()
        self._timer = self._loop.call_later(LINGER_S, self._transport.abort)

    def _look_again_in(self, seconds: float) -> None:
        # No later than the shortest deadline, which may begin at any time. One timer per connection
        # that runs on costs less than one per request.
        limits = self._limits
        seconds = min(seconds, limits.head_s, limits.body_s, limits.unread_s, self._idle_s)
        self._timer = self._loop.call_later(seconds, self._look)

    def _look(self) -> None:
        """Close if the client has kept the server waiting for too long."""
        now, limits = self._loop.time(), self._limits
        if self._unread_since is None and self._transport.is_closing():
            # A transport closes once its last bytes are sent, however long the client does not read them.
            self._unread_since = now
        if self._unread_since is not None and now - self._unread_since >= limits.unread_s:
            self._transport.abort()
            return
        if self._owes_answers():
            self._since = now
        if self._stage == _BODY:
            limit_s = limits.body_s
        elif self._stage == _HEAD or not self._begun:
            limit_s = limits.head_s
        else:
            limit_s = self._idle_s
        left_s = self._since + limit_s - now
        if left_s > 0:
            self._look_again_in(left_s)
        elif self._stage == _IDLE or self._transport.is_closing():
            self._transport.close()
            self._look_again_in(limits.unread_s)
        else:
            self._refuse(TOO_SLOW)

    def _let_go(self) -> None:
        """Break the reference cycles, so that a closed connection does not wait for the collector."""
        self._state.pop(CONNECTION, None)
        self._parser = self._server = None
