"""Callers that each make one call after the other, over one connection.

A pair is a question and its report. envoyproxy/ratelimit has no report: there, a pair is one question.
"""

import asyncio
import json
from typing import Any, Literal

Kind = Literal["two requests", "carried", "json"]

DEPENDENCY = "payments"
#: The key and the value by which envoyproxy/ratelimit finds its limit.
ENTRY = {"key": "dependency", "value": DEPENDENCY}
DOMAIN = "bench"
_ALLOWED = {"two requests": b'"allowed":true', "carried": b'"allowed":true', "json": b'"overallCode":"OK"'}
#: A decision of an agent that Redis did not make.
_LOCAL = b'"mode":"local"'


def request(path: str, content: Any) -> bytes:
    body = json.dumps(content, separators=(",", ":"))
    lines = (
        f"POST {path} HTTP/1.1",
        "Host: 127.0.0.1",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
    )
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


_CALL = request("/v1/calls", {"dependency": DEPENDENCY})
_JSON = request("/json", {"domain": DOMAIN, "descriptors": [{"entries": [ENTRY]}]})


class Caller(asyncio.Protocol):
    """Sends the next request when the one before is answered, until ``running`` is false."""

    _transport: asyncio.Transport

    def __init__(self, kind: Kind) -> None:
        self._kind: Kind = kind
        self._waiting = b""
        #: A report is under way.
        self._reports = False
        self.pairs = self.local = 0
        self.running = True
        #: ``None``, or why it could not go on.
        self.ended: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        transport.write(_JSON if self._kind == "json" else _CALL)

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ended.done():
            self.ended.set_result(f"the connection was closed: {error}")

    def data_received(self, data: bytes) -> None:
        self._waiting += data
        head, found, body = self._waiting.partition(b"\r\n\r\n")
        length = head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0]
        if not found or len(body) < int(length):
            return
        self._waiting = b""
        if not head.startswith(b"HTTP/1.1 200"):
            self._end(f"it answered {head[:80]!r} {body[:200]!r}")
        elif not self._reports and _ALLOWED[self._kind] not in body:
            self._end(f"a call was refused: {body[:200]!r}")
        else:
            self.local += _LOCAL in body
            self._go_on(body)

    def _go_on(self, body: bytes) -> None:
        if self._kind == "json":
            following = _JSON
        elif self._reports:
            self._reports, following = False, _CALL
        else:
            report = {"permit": json.loads(body)["permit"], "status": 200, "elapsed_ms": 12}
            if self._kind == "carried":
                following = request("/v1/calls", {"dependency": DEPENDENCY, "reports": [report]})
            else:
                self._reports, following = True, request("/v1/reports", [report])
        if not self._reports:
            self.pairs += 1
            if not self.running:
                self._end(None)
                return
        self._transport.write(following)

    def _end(self, why: str | None) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
        self._transport.abort()


async def drive(port: int, kind: Kind, callers: int, seconds: float) -> tuple[int, int]:
    """Pairs that so many callers make in this time, and decisions without Redis.

    Raises ``SystemExit`` when a caller cannot go on.
    """
    loop = asyncio.get_running_loop()
    connected = [
        (await loop.create_connection(lambda: Caller(kind), "127.0.0.1", port))[1] for _ in range(callers)
    ]
    await asyncio.sleep(seconds)
    for caller in connected:
        caller.running = False
    for why in await asyncio.gather(*(caller.ended for caller in connected)):
        if why is not None:
            raise SystemExit(f"{kind}: {why}")
    return sum(caller.pairs for caller in connected), sum(caller.local for caller in connected)
