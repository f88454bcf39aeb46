"""Callers that each make one call after the other, over one connection.

A pair is a question and its report. envoyproxy/ratelimit and Envoy's filter have no report: there, a pair is
one question.
"""

import asyncio
import json
import random
from functools import partial
from typing import Any, Literal

#: The last two are requests to an Envoy, which asks about their tenant if they name one.
Kind = Literal["two requests", "carried", "json", "of tenants", "of nobody"]

DEPENDENCY = "payments"
#: The key and the value by which envoyproxy/ratelimit finds its limit.
ENTRY = {"key": "dependency", "value": DEPENDENCY}
DOMAIN = "bench"
#: Each caller that Envoy asks about is a tenant of its own.
TENANT_KEY, TENANT_HEADER = "tenant", "x-tenant"
_ALLOWED = {
    **dict.fromkeys(("two requests", "carried"), b'"allowed":true'),
    "json": b'"overallCode":"OK"',
    # What the application behind Envoy answers.
    **dict.fromkeys(("of tenants", "of nobody"), b""),
}
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


def first_request(kind: Kind, number: int) -> bytes:
    """What the caller with this number sends first, and also later if there is nothing to report."""
    if kind == "json":
        return _JSON
    if kind in ("two requests", "carried"):
        return _CALL
    tenant = f"{TENANT_HEADER}: tenant-{number:04}\r\n" if kind == "of tenants" else ""
    return f"GET / HTTP/1.1\r\nHost: app\r\n{tenant}\r\n".encode()


class Caller(asyncio.Protocol):
    """Sends the next request when the one before is answered, until ``running`` is false.

    With ``pause_s``, it waits so long before each, on average.
    """

    _transport: asyncio.Transport

    def __init__(self, kind: Kind, pause_s: float, number: int) -> None:
        self._kind: Kind = kind
        self._pause_s = pause_s
        self._first = first_request(kind, number)
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
        self._send(self._first)

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
        if self._kind not in ("two requests", "carried"):
            following = self._first
        elif self._reports:
            self._reports, following = False, self._first
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
        self._send(following)

    def _send(self, following: bytes) -> None:
        if not self._pause_s:
            self._transport.write(following)
            return
        pause_s = random.uniform(0, 2 * self._pause_s)
        asyncio.get_running_loop().call_later(pause_s, self._transport.write, following)

    def _end(self, why: str | None) -> None:
        if not self.ended.done():
            self.ended.set_result(why)
        self._transport.abort()


async def drive(
    port: int, kind: Kind, callers: int, seconds: float, *, pause_s: float = 0.0
) -> tuple[int, int]:
    """Pairs that so many callers make in this time, and decisions without Redis.

    Raises ``SystemExit`` when a caller cannot go on.
    """
    loop = asyncio.get_running_loop()
    connected = [
        (await loop.create_connection(partial(Caller, kind, pause_s, number), "127.0.0.1", port))[1]
        for number in range(callers)
    ]
    await asyncio.sleep(seconds)
    for caller in connected:
        caller.running = False
    for why in await asyncio.gather(*(caller.ended for caller in connected)):
        if why is not None:
            raise SystemExit(f"{kind}: {why}")
    return sum(caller.pairs for caller in connected), sum(caller.local for caller in connected)
