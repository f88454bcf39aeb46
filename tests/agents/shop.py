"""An ASGI application that counts its orders, behind ``Idempotency-Key``."""

from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from fuseboard import Agent
from fuseboard.integrations.asgi_idempotency import RUN, IdempotencyMiddleware

KEY = {"idempotency-key": "order-1"}

Handler = Callable[[Any], Awaitable[tuple[int, bytes]]]


class Shop:
    """Counts what it did. ``handler`` returns the status and the body of the answer."""

    def __init__(self) -> None:
        self.runs = 0
        self.bodies: list[bytes] = []
        self.fences: list[int] = []
        self.handler: Handler = self.created
        self.parts = 1
        self.headers = [
            (b"content-type", b"text/plain"),
            (b"set-cookie", b"session=1"),
            (b"location", b"/orders/1"),
        ]

    async def created(self, scope: Any) -> tuple[int, bytes]:
        return 201, b"order %d" % self.runs

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.runs += 1
        run = scope.get(RUN)
        self.fences.append(run.fence if run is not None else 0)
        self.bodies.append((await receive()).get("body", b""))
        status, body = await self.handler(scope)
        await send({"type": "http.response.start", "status": status, "headers": self.headers})
        for part in range(self.parts):
            await send({"type": "http.response.body", "body": body, "more_body": part + 1 < self.parts})


def client_of(shop: Shop, agent: Agent, **rules: Any) -> httpx.AsyncClient:
    app = IdempotencyMiddleware(shop, agent, lambda scope: _caller(scope), **rules)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


def _caller(scope: Any) -> str | None:
    name = dict(scope["headers"]).get(b"x-caller", b"acme").decode()
    return None if name == "unknown" else name


async def order(client: httpx.AsyncClient, body: bytes = b"one book", **headers: str) -> httpx.Response:
    return await client.post(
        "/orders", content=body, headers={**KEY, "content-type": "text/plain", **headers}
    )
