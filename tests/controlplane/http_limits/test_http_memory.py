"""What a client can make the server keep, and what the limits use of uvicorn."""

import ast
import asyncio
import gc
import inspect
import socket
import struct
import weakref
from pathlib import Path

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from controlplane import http_limits
from controlplane.http_limits.connection import MAX_IN_FLIGHT, SLICE_BYTES
from controlplane.http_limits.joined_writes import JoinedWrites
from tests.controlplane.http_limits.clients import GET, SOON_S, post, scripted
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
        assert protocol._begun - protocol._answered <= MAX_IN_FLIGHT + SLICE_BYTES / len(tiny) + 1
        app.go_on.set()
        for _ in range(count + 1):
            assert (await connection.answer())[0] == 200
            assert protocol._begun - protocol._answered <= MAX_IN_FLIGHT + SLICE_BYTES / len(tiny) + 1
        await sending


async def test_a_client_that_never_reads_is_hung_up_on():
    async with scripted(unread_s=SOON_S, body_s=SOON_S) as (connect, app):
        connection = await connect()
        connection.writer.transport.pause_reading()
        await connection.send(post(0, path="/endless"))
        await eventually(lambda: app.left == 1)


async def _leave_an_answer_unread(connection, protocol):
    """Returns when a part of an answer, too small to pause uvicorn, waits in the server."""
    connection.writer.transport.pause_reading()
    for _ in range(1_000):
        answered = protocol._answered
        await connection.send(post(0, path="/large"))
        await eventually(lambda answered=answered: protocol._answered > answered)
        if protocol._transport.get_write_buffer_size():
            break
    assert 0 < protocol._transport.get_write_buffer_size() < 65_536
    assert protocol._unread_since is None


def _losses(protocol):
    """Gets the exception, or ``None``, with which the connection ends."""
    lost, end = [], protocol.connection_lost

    def connection_lost(error):
        lost.append(error)
        end(error)

    protocol.connection_lost = connection_lost
    return lost


_MISTAKE = post(0, path="/raise")


@pytest.mark.parametrize("last", [b"", _MISTAKE, _MISTAKE + GET, _MISTAKE + GET[:-2], b"nonsense"])
async def test_a_client_that_never_reads_the_last_answer_is_hung_up_on(last):
    """`close` alone waits until the client has read everything."""
    async with scripted(unread_s=SOON_S, keep_alive_s=SOON_S, head_s=SOON_S) as (connect, _):
        connection = await connect()
        await eventually(lambda: connect.made)
        lost = _losses(connect.made[0])
        await _leave_an_answer_unread(connection, connect.made[0])
        await connection.send(last)
        await eventually(lambda: lost)


async def test_nothing_is_written_to_a_connection_that_has_ended():
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with scripted() as (connect, _):
        connection = await connect()
        await eventually(lambda: connect.made)
        [protocol] = connect.made
        end = protocol.connection_lost

        def connection_lost(error):
            # As an application that answers in the turn in which the connection ends.
            protocol._transport.write(b"too late")
            end(error)

        protocol.connection_lost = connection_lost
        sent = connection.writer.get_extra_info("socket")
        # Makes `close` a reset.
        sent.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.writer.close()
        await eventually(lambda: not connect.open)
        await asyncio.sleep(0.01)
    assert errors == []


async def test_requests_that_wait_behind_a_mistake_are_dropped_with_the_connection():
    errors = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with scripted() as (connect, app):
        connection = await connect()
        large = post(0, f"X-Filler: {'x' * 3_000}")
        requests = [post(0, path="/wait"), post(0, path="/raise"), *[large] * 30]
        sending = asyncio.create_task(connection.send(b"".join(requests)))
        await eventually(lambda: app.waiting and connect.made[0]._held)
        app.go_on.set()
        assert [(await connection.answer())[0] for _ in range(2)] == [200, 500]
        await eventually(lambda: not connect.open)
        await asyncio.gather(sending, return_exceptions=True)
    assert errors == []


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
