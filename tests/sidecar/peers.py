"""Peers that write bytes to a listener, and an application behind it that answers with what it got."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fuseboard.serving.exchange import Answer, Request
from fuseboard.serving.http1 import Bounds, Connections
from fuseboard.serving.listeners import Listeners
from fuseboard.sidecar.answers import problem
from tests.waiting import PATIENCE_S

HOST = b"Host: 127.0.0.1:7480\r\n"
UPGRADE = b"Connection: upgrade\r\nUpgrade: h2c\r\n"
GET = b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"


class Echo:
    """Answers with what it got, or waits for ``go``."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.go = asyncio.Event()
        self.cancelled = 0

    problem = staticmethod(problem)

    def handle(self, request: Request) -> Any:
        self.asked.append(request)
        if request.path == "/wait":
            return self._wait()
        if request.path == "/soon":
            return self._soon()
        if request.path == "/defect":
            raise ZeroDivisionError
        if request.path == "/later-defect":
            return self._defect()
        if request.path == "/long":
            return Answer(200, b"x" * 1_000_000)
        return Answer(200, json.dumps([request.method, request.path, request.body.decode()]).encode())

    async def _soon(self) -> Answer:
        return Answer(200, b'"soon"')

    async def _defect(self) -> Answer:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def _wait(self) -> Answer:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Answer(200, b'"waited"')


class Peer:
    """One connection that writes bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def answer(self) -> tuple[int, dict[str, str], bytes]:
        async with asyncio.timeout(PATIENCE_S):
            head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
            line, *lines = head.strip().split("\r\n")
            headers = dict(text.split(": ", 1) for text in lines)
            body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        return int(line.split()[1]), headers, body

    async def ask(self, data: bytes) -> tuple[int, dict[str, str], bytes]:
        self.writer.write(data)
        return await self.answer()

    async def is_closed(self) -> bool:
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read() == b""
            except ConnectionError:
                return True


class Served:
    def __init__(self, echo: Echo, connections: Connections, port: int) -> None:
        self.echo, self.connections, self.port = echo, connections, port
        self._peers: list[Peer] = []

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self._peers.append(peer)
        return peer

    def leave(self) -> None:
        for peer in self._peers:
            peer.writer.close()


@asynccontextmanager
async def served(echo: Echo | None = None, **bounds: Any) -> AsyncIterator[Served]:
    listeners, connections, echo = Listeners(), Connections(Bounds(**bounds)), echo or Echo()
    one = Served(echo, connections, await listeners.listen_tcp(echo, connections, "127.0.0.1", 0))
    try:
        yield one
    finally:
        one.leave()
        await listeners.stop()


def post(body: bytes, path: str = "/", *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body
