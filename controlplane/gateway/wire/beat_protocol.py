"""Beats answered where they are parsed: without a task, a scope and messages of ASGI for each.

Only a beat that arrives in one piece or two, as clients send head and body, on a connection where
nothing else is under way, is answered here; where its head came before, byte for byte, it is not
even parsed. Everything else goes uvicorn's way into the same
application: other paths, bodies that take their time, with their deadline, HTTP/1.0, ``Expect``,
and clients that do not read their answers.
"""

from asyncio import TimerHandle, Transport
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

import structlog
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from controlplane.gateway.wire.known_heads import Head, end_of_head
from controlplane.gateway.wire.one_write import OneWrite
from controlplane.gateway.wire.write_together import Outbox
from fuseboard.contract.sync import SYNC_PATH

#: The second piece of a beat follows the first at once, or is waited for uvicorn's way.
PATIENCE_S = 0.2

#: A request's head may arrive in pieces, but not for ever.
MAX_HEAD_BYTES = 65_536

_PATH = SYNC_PATH.encode()
_CLOSE = (b"connection", b"close")
_TEXT = (b"content-type", b"text/plain")

_NO_FIELDS: dict[bytes, bytes] = {}

Headers = Iterable[tuple[bytes, bytes]]

log = structlog.get_logger(__name__)


class TakesBeats(Protocol):
    """The application, which is an ASGI application besides."""

    def take(self, fields: dict[bytes, bytes], body: bytes, head: bytes) -> tuple[int, bytes, Headers]:
        """What a whole request to ``SYNC_PATH`` is answered: status, body and further headers."""

    def recall(self, head: bytes) -> Head | None:
        """What is known of a head, when the same bytes began such a request before."""

    def take_again(self, head: Head, body: bytes) -> tuple[int, bytes, Headers]:
        """What such a request is answered this time."""


class ShortWay(HttpToolsProtocol):
    """uvicorn's own, but for beats, and with an end to every head and every silence."""

    def __init__(self, config: Any, *arguments: Any, outbox: Outbox, **named: Any) -> None:
        super().__init__(config, *arguments, **named)
        self._outbox = outbox
        self._beats = cast(TakesBeats, config.app)
        #: No request has begun that is not also read to its end.
        self._between = True
        #: What was received first of the request that is being read, while it may be a beat.
        self._first = b""
        #: A head that is known and has come whole, and whose body has not.
        self._head: Head | None = None
        #: A beat's headers by name.
        self._fields: dict[bytes, bytes] = {}
        #: What there is of its body; ``None`` while the request is not a beat.
        self._body: bytes | None = None
        self._waiting: TimerHandle | None = None
        self._in_head = False
        self._head_bytes = 0
        #: When the connection was made or last answered here, on the loop's clock.
        self._rested_at = 0.0
        self._plain: Transport

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        self._plain = transport
        super().connection_made(cast(Transport, OneWrite(transport, self._outbox)))
        self._rested_at = self.loop.time()
        self._watch(self.timeout_keep_alive)

    def data_received(self, data: bytes) -> None:
        if self._between:
            head = self._head
            if head is not None:
                first = self._put_down()
                if len(data) == head.length:
                    self._answer_again(head, data)
                    return
                data = first + data
            elif self._is_known(data):
                return
            self._first = data
        self._read(data)

    def _is_known(self, data: bytes) -> bool:
        """Whether it is a beat with a known head, of one piece or the first of two, and is seen to."""
        end = end_of_head(data)
        if not end or self._is_busy() or self.flow.write_paused:
            return False
        head = self._beats.recall(data[:end])
        if head is None:
            return False
        if end == len(data) and head.length:
            self._head, self._first = head, data
            self._waiting = self.loop.call_later(PATIENCE_S, self._go_on_as_uvicorn)
        elif end + head.length == len(data):
            self._answer_again(head, data[end:])
        else:
            return False
        return True

    def _read(self, data: bytes) -> None:
        # That of a request which begins with this piece starts at 0.
        self._head_bytes += len(data)
        # uvicorn stops the timer with every piece and starts one with every answer, which costs a
        # twentieth of a beat. Ours runs on, and looks again when the connection was not at rest.
        timer, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = timer
        elif timer is not None:
            timer.cancel()
        if self._body is not None:
            if self._waiting is None:
                self._waiting = self.loop.call_later(PATIENCE_S, self._go_on_as_uvicorn)
            else:
                self._go_on_as_uvicorn()
        elif self._in_head and self._head_bytes > MAX_HEAD_BYTES and not self._plain.is_closing():
            self._respond(431, b"", (_CLOSE,))

    def eof_received(self) -> None:
        # The transport closes itself after this.
        self._outbox.send()
        super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()
        self._take_body()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_bytes, self._between = True, 0, False

    def on_header(self, name: bytes, value: bytes) -> None:
        # What follows a body in chunks is no header: a proxy in front has not looked at it.
        if self._in_head:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._is_beat():
            self._body = b""
        else:
            self._first = b""
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._body is None:
            super().on_body(body)
        else:
            self._body += body

    def on_message_complete(self) -> None:
        self._between = True
        first, self._first = self._first, b""
        if self._body is None:
            super().on_message_complete()
        else:
            self._answer(self._take_body(), first)

    def timeout_keep_alive_handler(self) -> None:
        if self._is_busy():
            self._watch(self.timeout_keep_alive)
            return
        left_s = self._rested_at + self.timeout_keep_alive - self.loop.time()
        if left_s > 0:
            self._watch(left_s)
        else:
            super().timeout_keep_alive_handler()

    def _is_beat(self) -> bool:
        if self.url != _PATH:
            return False
        parser, fields = self.parser, dict(self.headers)
        self._fields = fields
        return (
            parser.get_method() == b"POST"
            and not self._is_busy()
            and parser.get_http_version() == "1.1"
            and parser.should_keep_alive()
            and b"content-length" in fields
            and not parser.should_upgrade()
            and not self.expect_100_continue
            and not self.flow.write_paused
        )

    def _is_busy(self) -> bool:
        """Whether a request is under way."""
        cycle: RequestResponseCycle | None = self.cycle
        return (
            self._body is not None
            or self._head is not None
            or (cycle is not None and not cycle.response_complete)
        )

    def _go_on_as_uvicorn(self) -> None:
        if self._head is not None:
            # Its body is late: it is read like one that nobody knows.
            first = self._put_down()
            if not self._plain.is_closing():
                self._first = first
                self._read(first)
            return
        body, self._first = self._take_body(), b""
        if not self._plain.is_closing():
            super().on_headers_complete()
            super().on_body(body)

    def _put_down(self) -> bytes:
        """The head that was waiting for its body, as it came."""
        self._head, first, self._first = None, self._first, b""
        self._wait_no_longer()
        return first

    def _take_body(self) -> bytes:
        """What there is of it, which is nobody's any more."""
        body, self._body = self._body, None
        self._wait_no_longer()
        return body or b""

    def _wait_no_longer(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _answer(self, body: bytes, first: bytes) -> None:
        end = end_of_head(first)
        # What came in other pieces, or with something before or behind it, is not remembered.
        alone = first.startswith(b"POST ") and first[end:] in (b"", body)
        head = first[:end] if end and alone else b""
        self._respond_to(self._beats.take, self._fields, body, head)
        # Thousands of connections wait for their next beat: none keeps what the collector would look at.
        self.headers, self._fields = [], _NO_FIELDS

    def _answer_again(self, head: Head, body: bytes) -> None:
        self._respond_to(self._beats.take_again, head, body)

    def _respond_to(self, take: Callable[..., tuple[int, bytes, Headers]], *given: object) -> None:
        try:
            status, content, headers = take(*given)
        except Exception:
            log.exception("gateway.beat_failed")
            status, content, headers = 500, b"Internal Server Error", (_TEXT, _CLOSE)
        self._rested_at = self.loop.time()
        self._respond(status, content, headers)

    def _respond(self, status: int, content: bytes, headers: Headers) -> None:
        parts = [STATUS_LINE[status], b"content-length: %d\r\n" % len(content)]
        for name, value in headers:
            parts += name, b": ", value, b"\r\n"
        parts += b"\r\n", content
        self._outbox.put(self._plain, b"".join(parts), self.loop)
        if status != 200 and _CLOSE in headers:
            self._outbox.send()
            self._plain.close()

    def _watch(self, seconds: float) -> None:
        self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)
