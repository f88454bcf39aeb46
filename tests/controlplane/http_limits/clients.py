"""Servers with tight limits, and what clients send to them."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import uvicorn
from asgiref.sync import sync_to_async
from django.db import connections

from controlplane.http_limits.limits import Limits
from controlplane.http_limits.serving import limited
from controlplane.management.commands import web
from controlplane.metrics import REQUESTS
from tests.controlplane.gateway.wire import served

GET = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
HEAD = b"HEAD /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
#: Short enough for a test that waits for it, long beside everything that must not wait.
SOON_S = 0.3
#: Several such answers fill the buffers of the system, and one more does not pause uvicorn's writing.
LARGE_BYTES = 30_000


@asynccontextmanager
async def web_wire(*, keep_alive_s=75, **limits):
    """Opens connections to a web process that runs as in production, apart from these limits."""
    from controlplane.asgi import application

    # An earlier test may have left a connection in the thread that checks logins. Looking at it would be
    # access to a database, which a test without one must not have.
    await sync_to_async(connections.close_all)()
    config = web.server_config(application, limits=replace(web.LIMITS, **limits))
    config.timeout_keep_alive = keep_alive_s
    async with served(config) as connect:
        yield connect


def refusals(status):
    """How many requests web refused with this status before Django got them."""
    labels = {"route": "none", "status": str(status)}
    samples = [sample for metric in REQUESTS.collect() for sample in metric.samples]
    return sum(each.value for each in samples if each.name.endswith("_total") and each.labels == labels)


def post(size, *fields, body=b"", path="/healthz"):
    """A POST that announces ``size`` bytes."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *fields]
    return "\r\n".join([*lines, f"Content-Length: {size}", "", ""]).encode() + body


# An application whose every path is one behaviour.


class Scripted:
    def __init__(self):
        self.reading = self.waiting = False
        self.left = 0
        self.go_on = asyncio.Event()

    async def __call__(self, scope, receive, send):
        path, size, more = scope["path"], 0, True
        if path == "/early":
            await self.answer(send, 403, b"no")
            return
        self.reading = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.left += 1
                return
            size += len(message["body"])
            more = message["more_body"]
        if path == "/raise":
            raise RuntimeError("a mistake")
        if path == "/wait":
            self.waiting = True
            await self.go_on.wait()
        if path == "/large":
            await self.answer(send, 200, b"x" * LARGE_BYTES)
            return
        if path == "/endless":
            await self.endless(send, receive)
            return
        await self.answer(send, 200, b"%d" % size)

    async def answer(self, send, status, body):
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def endless(self, send, receive):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        leaving = asyncio.create_task(receive())
        while not leaving.done():
            await send({"type": "http.response.body", "body": b"x" * 65_536, "more_body": True})
            await asyncio.sleep(0)
        self.left += 1


@asynccontextmanager
async def scripted(*, keep_alive_s=75, **limits):
    """Opens connections to a `Scripted` application behind these limits; they and it."""
    app = Scripted()
    usual = {"body_bytes": 1_000_000, "body_s": 20.0}
    config = uvicorn.Config(
        **limited(app, Limits(**{**usual, **limits})),
        lifespan="off",
        log_config=None,
        server_header=False,
        date_header=False,
        timeout_keep_alive=keep_alive_s,
    )
    async with served(config) as connect:
        yield connect, app
