"""The gateway on a real socket, and requests as bytes."""

import asyncio
import re
import socket
from contextlib import asynccontextmanager
from dataclasses import replace

import msgspec
from uvicorn.server import ServerState

from controlplane.gateway.app import GatewayApp
from controlplane.gateway.wire.serving import LIMITS, gateway_config
from fuseboard.contract.sync import SYNC_PATH
from tests.controlplane.gateway.manual_gateway import TOKEN, beat, ready_gateway

WITHIN_S = 20
KEEP_ALIVE_S = 75
JSON = "Content-Type: application/json"
BEARER = f"Authorization: Bearer {TOKEN}"


def request(body=None, *fields, start=f"POST {SYNC_PATH} HTTP/1.1", usual=(BEARER, JSON), length=True):
    """A request as bytes; by default with the body of a good heartbeat."""
    body = msgspec.json.encode(beat()) if body is None else body
    sized = (f"Content-Length: {len(body)}",) if length else ()
    head = "\r\n".join((start, "Host: gateway", *usual, *sized, *fields))
    return head.encode("latin-1") + b"\r\n\r\n" + body


def let_pass(protocol, seconds):
    """Let a connection of ``served`` look at its deadlines as if so much time had passed."""
    protocol._since -= seconds
    protocol._timer.cancel()
    protocol._look()


class Connection:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    async def send(self, *pieces):
        for piece in pieces:
            self.writer.write(piece)
            await self.writer.drain()
            # Lets the gateway read one piece before the next is sent.
            for _ in range(5):
                await asyncio.sleep(0)

    async def answer(self):
        """The next response: its status, head and body."""
        async with asyncio.timeout(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            length = int(re.search(rb"content-length: (\d+)", head.lower())[1])
            return int(head.split()[1]), head.lower(), await self.reader.readexactly(length)

    async def head(self):
        """The next response, to a HEAD: its status and head."""
        async with asyncio.timeout(WITHIN_S):
            head = await self.reader.readuntil(b"\r\n\r\n")
            return int(head.split()[1]), head.lower()

    async def is_closed(self):
        """Reads to the end; fails if the gateway keeps the connection."""
        async with asyncio.timeout(WITHIN_S):
            return not await self.reader.read(65_536)


@asynccontextmanager
async def served(config):
    """Opens connections to what these options of uvicorn serve.

    ``connect.made`` are its protocols, and ``connect.open`` those that uvicorn knows as open.
    """
    config.load()
    state, loop, opened, made = ServerState(), asyncio.get_running_loop(), [], []

    def protocol():
        made.append(config.http_protocol_class(config=config, server_state=state, app_state={}))
        return made[-1]

    async def connect():
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        opened.append(writer)
        return Connection(reader, writer)

    server = await loop.create_server(protocol, "127.0.0.1", 0)
    connect.made, connect.open = made, state.connections
    try:
        yield connect
    finally:
        for writer in opened:
            writer.close()
        server.close()
        if state.tasks:
            # Django closes the file of a body after the answer is sent.
            await asyncio.wait(state.tasks, timeout=1.0)


@asynccontextmanager
async def wire(gateway=None, *, keep_alive_s=KEEP_ALIVE_S, **limits):
    """Opens connections to a gateway that runs as in production, apart from these limits."""
    app = GatewayApp(gateway or ready_gateway())
    config = gateway_config(app, app.count_refusal, limits=replace(LIMITS, **limits))
    config.timeout_keep_alive = keep_alive_s
    async with served(config) as connect:
        yield connect
