"""What hostile processes send to every listener of a sidecar.

Bytes that are no request, requests out of bounds, and valid ones that use up what is kept for each name.
"""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from time import monotonic
from typing import Any

from fuseboard.envoy.access_log import EXPORT, EXPORT_OVER_HTTP
from fuseboard.envoy.bridge import PROTOBUF
from fuseboard.envoy.service import SHOULD_RATE_LIMIT
from fuseboard.serving.exchange import JSON
from tests.envoy.messages import descriptor, request
from tests.envoy.test_access_log import export, record

#: Processes that attack at the same time.
AT_ONCE = 40
#: A peer that stays waits for the answer for at most this time.
STAYS_S = 2.0
#: Few enough acts per second to leave the machine to others, and the sidecar its other work.
PAUSE_S = 0.05

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]


def tcp(port: int) -> Connect:
    """Connect to a port of loopback."""
    return lambda: asyncio.open_connection("127.0.0.1", port)


def unix(path: str) -> Connect:
    """Connect to a unix socket."""
    return lambda: asyncio.open_unix_connection(path)


class Hostile:
    """Peers of the listeners that ``connects`` reach. The same ``seed`` makes the same choices."""

    def __init__(
        self, connects: list[Connect], *, token: str, of_envoy: Connect | None = None, seed: int = 1
    ) -> None:
        self._connects, self._token, self._of_envoy = connects, token, of_envoy
        self._random = random.Random(seed)
        #: Acts that were done.
        self.done = 0

    async def press(self, *, acts: float = float("inf"), for_s: float = float("inf")) -> None:
        """Do so many acts, or go on for so long."""
        until = monotonic() + for_s

        async def one() -> None:
            while self.done < acts and monotonic() < until:
                self.done += 1
                # The sidecar may close a connection at any time.
                with suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
                    await self._act()
                await asyncio.sleep(PAUSE_S)

        await asyncio.gather(*(one() for _ in range(AT_ONCE)))

    async def _act(self) -> None:
        choose = self._random
        if self._of_envoy is not None and choose.random() < 0.3:
            connect, sent = self._of_envoy, self._like_envoy()
        else:
            connect, sent = choose.choice(self._connects), self._bytes()
        reader, writer = await connect()
        try:
            writer.write(sent)
            if choose.random() < 0.2:
                return  # leaves before the answer
            if choose.random() < 0.1:
                writer.write_eof()
            async with asyncio.timeout(STAYS_S):
                await writer.drain()
                await reader.read(choose.choice((1, 100, 100_000)))
        finally:
            if choose.random() < 0.5:
                writer.transport.abort()
            else:
                writer.close()

    def _bytes(self) -> bytes:
        choose = self._random
        kind = choose.randrange(10)
        if kind == 0:
            return choose.randbytes(choose.choice((1, 100, 30_000)))
        if kind == 1:  # a head without an end
            return b"POST /v1/calls HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * choose.randrange(20_000)
        if kind == 2:  # a body without an end, or one that is too large
            length = choose.choice((5, 17_000, 10**9))
            return self._post("/v1/calls", b"", length=length) + b"{" * choose.randrange(20_000)
        if kind == 3:  # requests that wait for each other
            return b"GET /v1/openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" * choose.choice((2, 16, 200))
        if kind == 4:
            return b"GET /%s HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" % choose.choice(
                (b"metrics", b"readyz", b"v1/dependencies", b"%x" % choose.getrandbits(64))
            )
        if kind == 5:  # JSON that is deep, or of another shape
            body = b"[" * 8_000 + b"]" * 8_000 if choose.random() < 0.5 else json.dumps(self._odd()).encode()
            return self._post(choose.choice(("/v1/calls", "/v1/reports", "/v1/requests")), body)
        if kind == 6:
            chunked = b"POST /v1/reports HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
            return chunked + b"%x\r\n" % choose.randrange(2**20) + b"x" * choose.randrange(3_000)
        return b"".join(self._valid() for _ in range(choose.randrange(1, 12)))

    def _valid(self) -> bytes:
        """A request of which something is kept: a permit, a hold, or the rules of a name."""
        choose = self._random
        name = f"t-{choose.getrandbits(40):x}"
        path, content = choose.choice(
            (
                ("/v1/calls", {"dependency": "payments", "tenant": name}),
                ("/v1/calls", {"dependency": f"d-{choose.getrandbits(40):x}"}),
                ("/v1/requests", {"tenant": name, "costs": {"tokens": 1}}),
                ("/v1/requests", {"tenant": None, "subject": {"ip": f"10.{choose.randrange(256)}.0.1"}}),
                ("/v1/requests", {"tenant": name, "subject": {"user": name, "endpoint": f"GET /{name}"}}),
                ("/v1/requests", {"tenant": "acme", "wait_ms": 1_000}),
                ("/v1/check", {"tenant": name}),
                ("/v1/explain", {"dependency": "payments", "tenant": name}),
                ("/v1/reports", [{"permit": name, "status": 500, "code": name * 50}]),
                ("/v1/reports", [{"permit": name, "status": 5}] * 100),
                ("/v1/finish", {"hold": name, "settle": {"tokens": 10**12}}),
                ("/v1/give-back", {"permit": name}),
            )
        )
        return self._post(path, json.dumps(content).encode())

    def _like_envoy(self) -> bytes:
        """Questions and logs of Envoy with unknown names, and messages that are none."""
        choose = self._random
        if choose.random() < 0.2:
            return self._bytes()
        name = f"{choose.getrandbits(40):x}"
        entries = [
            (choose.choice(("tenant", "vendor", "ip", name)), name) for _ in range(choose.randrange(1, 9))
        ]
        asked = request(
            *(descriptor(*entries[place:]) for place in range(choose.randrange(1, 5))),
            domain=choose.choice(("edge", "edge", "edge", name)),
            hits=choose.choice((0, 1, 2**31)),
        )
        logged = export(record(f"p{name}", code="500"), node=name)
        path, body = choose.choice(((SHOULD_RATE_LIMIT, asked), (EXPORT, logged), (EXPORT_OVER_HTTP, logged)))
        if choose.random() < 0.2:
            body = choose.choice((choose.randbytes(300), body[:-1], body * 50, b"\x0a" * 3_000))
        return self._post(path, body, kind=PROTOBUF) * choose.randrange(1, 12)

    def _odd(self) -> Any:
        choose = self._random
        value = choose.choice((None, -1, 1.5, 10**30, "", "x" * 10_000, "\x00", [], {}, True))
        return choose.choice((value, [value], {"dependency": value, "tenant": value, "reports": [value]}))

    def _post(self, path: str, body: bytes, *, length: int | None = None, kind: str = JSON) -> bytes:
        token = self._token if self._random.random() < 0.9 else "wrong"
        given = len(body) if length is None else length
        return (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
            f"Traceparent: 00-{self._random.getrandbits(128):032x}-{self._random.getrandbits(64):016x}-01\r\n"
            f"Content-Type: {kind}\r\nContent-Length: {given}\r\n\r\n"
        ).encode() + body
