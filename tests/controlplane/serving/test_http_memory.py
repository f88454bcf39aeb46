"""What a client can make the server keep, and what the limits use of uvicorn."""

import ast
import asyncio
import gc
import inspect
import weakref
from pathlib import Path

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controlplane import http_limits
from controlplane.http_limits.connection import MOST_IN_FLIGHT, SLICE_BYTES
from controlplane.http_limits.joined_writes import JoinedWrites
from tests.controlplane.serving.clients import GET, SOON_S, post, scripted
from tests.waiting import eventually

# Memory.


async def test_only_a_few_pipelined_requests_are_in_memory_and_all_are_answered():
    count, tiny = 5_000, b"GET / HTTP/1.1\r\n\r\n"
    async with scripted() as (connect, app):
        connection = await connect()
        sending = asyncio.create_task(connection.send(post(0, path="/wait") + tiny * count))
        await eventually(lambda: app.waiting)
        [protocol] = connect.made
        await eventually(lambda: protocol._held)
        assert protocol._begun - protocol._answered <= MOST_IN_FLIGHT + SLICE_BYTES / len(tiny) + 1
        app.go_on.set()
        for _ in range(count + 1):
            assert (await connection.answer())[0] == 200
            assert protocol._begun - protocol._answered <= MOST_IN_FLIGHT + SLICE_BYTES / len(tiny) + 1
        await sending


async def test_a_client_that_never_reads_is_hung_up_on():
    async with scripted(unread_s=SOON_S, body_s=SOON_S) as (connect, app):
        connection = await connect()
        connection.writer.transport.pause_reading()
        await connection.send(post(0, path="/endless"))
        await eventually(lambda: app.left == 1)


async def test_a_closed_connection_is_freed_without_the_collector():
    async with scripted() as (connect, _):
        gc.collect()
        gc.disable()
        try:
            for sent in (GET, GET[:-5], post(10)[:-1] + b"x", b"nonsense\r\n\r\n", b""):
                connection = await connect()
                await connection.send(sent)
                if sent == GET:
                    await connection.answer()
                await eventually(lambda: connect.made)
                gone = weakref.ref(connect.made.pop())
                connection.writer.close()
                await eventually(lambda gone=gone: gone() is None)
        finally:
            gc.enable()


class Recorded(asyncio.Transport):
    def __init__(self):
        super().__init__()
        self.done = []

    def write(self, data):
        self.done.append(bytes(data))

    def close(self):
        self.done.append("close")

    def abort(self):
        self.done.append("abort")

    def is_closing(self):
        return False

    def get_write_buffer_size(self):
        return 1000


async def test_what_is_written_in_one_turn_leaves_at_once_and_in_order():
    real = Recorded()
    transport = JoinedWrites(real, asyncio.get_running_loop())
    transport.write(b"head ")
    transport.write(bytearray(b"body"))
    assert (real.done, transport.get_write_buffer_size()) == ([], 1009)
    await asyncio.sleep(0)
    assert (real.done, transport.get_write_buffer_size()) == ([b"head body"], 1000)
    transport.write(b"last")
    transport.close()
    assert real.done == [b"head body", b"last", "close"]
    transport.write(b"x" * 40_000)
    transport.write(b"y" * 40_000)
    assert len(real.done[-1]) == 80_000
    transport.write(b"never")
    transport.abort()
    await asyncio.sleep(0)
    assert real.done[-1] == "abort"


# What this relies on.


def test_only_public_parts_of_uvicorn_are_used():
    """Of uvicorn's protocol: its constructor, as `uvicorn.Server` calls it, and `asyncio.Protocol`."""
    assert issubclass(HttpToolsProtocol, asyncio.Protocol)
    assert {"config", "server_state", "app_state"} <= set(inspect.signature(HttpToolsProtocol).parameters)
    assert "http" in inspect.signature(uvicorn.Config).parameters
    assert uvicorn.Config(None, http=HttpToolsProtocol, log_config=None).http is HttpToolsProtocol
    found = [
        node
        for file in Path(http_limits.__file__).parent.glob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) != "self"
    ]
    of_uvicorn = {node.attr for node in found if ast.unparse(node.value) == "self._server"}
    assert of_uvicorn <= {name for name in dir(asyncio.Protocol) if not name.startswith("_")}
    assert [ast.unparse(node) for node in found if node.attr.startswith("_")] == ["super().__init__"]
