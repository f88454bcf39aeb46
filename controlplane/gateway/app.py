"""``POST /agent/v1/sync`` as a plain ASGI application.

No Django and no store in the path of a request: a beat is decoded, checked and absorbed in
memory, and answered with bytes that are already there.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from hmac import compare_digest
from time import perf_counter
from typing import Any

import msgspec

from controlplane.gateway import problems
from controlplane.gateway.beats import check_beat, check_names
from controlplane.gateway.fleet import FleetFull
from controlplane.gateway.metrics import exporter
from controlplane.gateway.problems import Problem
from controlplane.gateway.process import Gateway
from controlplane.gateway.tokens import Token
from fuseboard.contract.sync import MAX_BODY_BYTES, SYNC_PATH, decode_request

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_JSON = (b"content-type", b"application/json")
_PROBLEM = (b"content-type", b"application/problem+json")
_TEXT = (b"content-type", b"text/plain; version=0.0.4; charset=utf-8")


class ClientLeft(Exception):
    """The connection broke before the body was there."""


class GatewayApp:
    """The gateway, served. Starts it with the server's lifespan, or with the first request."""

    def __init__(self, gateway: Gateway) -> None:
        self.gateway = gateway
        self._metrics = exporter(gateway)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            raise ValueError("the gateway speaks HTTP only")
        self.gateway.start()
        try:
            if scope["path"] == SYNC_PATH:
                await self._sync(scope, receive, send)
            else:
                await self._respond(send, *self._other(scope))
        except Problem as problem:
            await self._respond(send, problem.status, problem.document(), (_PROBLEM, *problem.headers))
        except ClientLeft:
            return

    async def _sync(self, scope: Message, receive: Receive, send: Send) -> None:
        started = perf_counter()
        if scope["method"] != "POST":
            raise problems.wrong_method(b"POST")
        if not self.gateway.ready:
            raise problems.not_ready("The configuration has not been read yet.")
        token = self._admit(scope["headers"])
        body = await self._read(receive)
        await self._respond(send, 200, self._answer(token, body), (_JSON,))
        self.gateway.counts.observe(perf_counter() - started)

    def _admit(self, headers: Headers) -> Token:
        """Who asks. Looks at the headers alone, before any of the body is read."""
        authorization, content_type, length, encoding = b"", b"", b"0", b""
        for name, value in headers:
            if name == b"authorization":
                authorization = value
            elif name == b"content-type":
                content_type = value
            elif name == b"content-length":
                length = value
            elif name == b"content-encoding":
                encoding = value
        if len(length) > 9 or int(length) > MAX_BODY_BYTES:
            raise problems.too_large()
        token = self._token(authorization)
        wait_s = self.gateway.tokens.wait_s(token, self.gateway.clock.monotonic())
        if wait_s:
            raise problems.too_many(wait_s)
        plain = content_type == b"application/json" or _is_json(content_type)
        if not plain or (encoding and encoding != b"identity"):
            raise problems.wrong_media_type()
        return token

    async def _read(self, receive: Receive) -> bytes:
        parts: list[bytes] = []
        size = 0
        with self.gateway.readers:
            while True:
                message = await receive()
                if message["type"] != "http.request":
                    raise ClientLeft
                part = message.get("body", b"")
                size += len(part)
                if size > MAX_BODY_BYTES:
                    raise problems.too_large()
                if not message.get("more_body", False):
                    return b"".join([*parts, part]) if parts else part
                parts.append(part)

    def _answer(self, token: Token, body: bytes) -> bytes:
        gateway = self.gateway
        try:
            beat = decode_request(body)
        except msgspec.ValidationError as error:
            raise problems.invalid(error) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise problems.malformed(error) from None
        if beat.environment != token.environment:
            raise problems.wrong_environment(beat.environment)
        configuration = gateway.configurations.get(beat.environment)
        if configuration is None:
            raise problems.not_ready(f"Nothing is published for environment {beat.environment!r} yet.")
        fleet = gateway.fleet(beat.environment)
        check_beat(beat)
        if beat.server not in fleet.servers:
            check_names(beat)
        wait_s = fleet.wait_s(beat.server)
        if wait_s:
            raise problems.too_many(wait_s)
        try:
            if fleet.absorb(beat):
                gateway.hurry()
        except FleetFull:
            raise problems.not_ready("This environment has too many servers.") from None
        return configuration.answer(
            beat,
            server_time_us=int(gateway.clock.wall() * 1_000_000),
            next_ms=fleet.next_ms,
            live_servers=fleet.live_servers,
        )

    def _other(self, scope: Message) -> tuple[int, bytes, Headers]:
        path = scope["path"]
        if path not in ("/healthz", "/readyz", "/metrics"):
            raise problems.not_found()
        if scope["method"] not in ("GET", "HEAD"):
            raise problems.wrong_method(b"GET, HEAD")
        if path == "/healthz":
            return 200, b'{"status":"ok"}', (_JSON,)
        if path == "/readyz":
            if not self.gateway.ready:
                raise problems.not_ready("The configuration has not been read yet.")
            return 200, b'{"status":"ok"}', (_JSON,)
        self._may_read_metrics(scope["headers"])
        return 200, self._metrics(), (_TEXT,)

    def _may_read_metrics(self, headers: Headers) -> None:
        authorization = next((value for name, value in headers if name == b"authorization"), b"")
        configured = self.gateway.settings.metrics_token.encode()
        if configured and compare_digest(authorization, b"Bearer " + configured):
            return
        self._token(authorization)

    def _token(self, authorization: bytes) -> Token:
        token = self.gateway.tokens.check(authorization, self.gateway.clock.wall())
        if token is None:
            raise problems.unauthorized()
        return token

    async def _respond(self, send: Send, status: int, body: bytes, headers: Headers) -> None:
        self.gateway.counts.answers[status] += 1
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
        await send({"type": "http.response.body", "body": body})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                self.gateway.start()
                await send({"type": "lifespan.startup.complete"})
            else:
                await self.gateway.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _is_json(content_type: bytes) -> bool:
    return content_type.partition(b";")[0].strip().lower() == b"application/json"
