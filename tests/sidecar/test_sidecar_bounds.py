"""The bounds of a connection, whatever its peer sends or does not read."""

import asyncio
import json
import socket
from collections.abc import Callable, Coroutine
from itertools import pairwise
from time import monotonic
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.serving import http1
from fuseboard.serving.exchange import Answer, Request
from fuseboard.serving.http1 import Bounds, Connections, Http1
from fuseboard.serving.listeners import Listeners
from fuseboard.sidecar.answers import problem
from tests.sidecar.peers import GET, UPGRADE, Echo, Served, post, served
from tests.waiting import PATIENCE_S, eventually


class TestBounds:
    @pytest.mark.parametrize(
        ("data", "status"),
        [
            (b"not http\r\n\r\n", 400),
            (b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
            (b"GET /" + b"a" * 9_000 + b" HTTP/1.1\r\n", 431),
            (b"GET / HTTP/1.1\r\nX: " + b"a" * 9_000, 431),
            (b"GET / HTTP/1.1\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(2_000)), 431),
            (post(b"x" * 16_385), 413),
            (post(b"x" * 3_000_000), 413),
            (b"POST / HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n", 413),
            (b"POST / HTTP/1.1\r\n" + UPGRADE + b"Content-Length: 20000\r\n\r\n", 413),
            (b"POST / HTTP/1.1\r\n" + UPGRADE + b"Transfer-Encoding: chunked\r\n\r\n", 400),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n4e20\r\n" + b"x" * 20_000, 413),
            (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;" + b"x" * 60_000, 413),
        ],
    )
    async def test_a_request_out_of_bounds_is_a_problem_and_ends_the_connection(
        self, data: bytes, status: int
    ) -> None:
        async with served() as one:
            peer = await one.peer()
            answered, headers, body = await peer.ask(data)
            assert (answered, headers["content-type"]) == (status, "application/problem+json")
            assert json.loads(body)["status"] == status
            assert await peer.is_closed()
            assert one.echo.asked == []
            peer.writer.close()
            await eventually(lambda: len(one.connections) == 0)

    async def test_a_refused_connection_ends_also_if_its_peer_stays(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http1, "LINGER_S", 0.01)
        async with served() as one:
            peer = await one.peer()
            assert (await peer.ask(b"not http\r\n\r\n"))[0] == 400
            await eventually(lambda: len(one.connections) == 0)

    async def test_the_largest_body_is_served(self) -> None:
        async with served() as one:
            peer = await one.peer()
            assert (await peer.ask(post(b"x" * 16_384)))[0] == 200

    async def test_too_many_connections_get_503(self) -> None:
        async with served(connections=1) as one:
            first = await one.peer()
            first.writer.write(post(b"", "/wait"))
            await eventually(lambda: one.echo.asked)
            second = await one.peer()
            status, headers, _ = await second.answer()
            assert (status, headers["retry-after"]) == (503, "1")
            assert await second.is_closed()
            assert (one.connections.refused, one.connections.displaced) == (1, 0)
            one.echo.go.set()
            assert (await first.answer())[0] == 200

    async def test_a_connection_beyond_the_bound_reads_why_whatever_it_has_sent(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Bytes that nothing reads reset a connection that is closed, and the answer could be lost."""
        monkeypatch.setattr(http1, "LINGER_S", PATIENCE_S)
        async with served(connections=1) as one:
            first = await one.peer()
            first.writer.write(post(b"", "/wait"))
            await eventually(lambda: one.echo.asked)
            with socket.create_connection(("127.0.0.1", one.port)) as second:
                second.sendall(post(b"x" * 10_000))  # before the listener knows of the connection
                second.setblocking(False)
                await eventually(lambda: one.connections.lingering == 1)
                await asyncio.get_running_loop().sock_sendall(second, b"x" * 100_000)
                answer, part = b"", b"begin"
                async with asyncio.timeout(PATIENCE_S):
                    while part:
                        answer += (part := await asyncio.get_running_loop().sock_recv(second, 4096))
            assert answer.startswith(b"HTTP/1.1 503 ")
            assert b"1 connections are open" in answer
            await eventually(lambda: one.connections.lingering == 0)
            assert len(one.echo.asked) == 1

    @pytest.mark.parametrize(("at_once", "lingering"), [(1, 1), (0, 0)])
    async def test_few_connections_beyond_the_bound_are_kept_and_not_for_long(
        self, monkeypatch: pytest.MonkeyPatch, at_once: int, lingering: int
    ) -> None:
        monkeypatch.setattr(http1, "MAX_LINGERING", at_once)
        monkeypatch.setattr(http1, "LINGER_S", PATIENCE_S)
        async with served(connections=1) as one:
            first = await one.peer()
            first.writer.write(post(b"", "/wait"))
            await eventually(lambda: one.echo.asked)
            refused = [await one.peer() for _ in range(3)]
            for peer in refused:
                assert (await peer.answer())[0] == 503
            assert (one.connections.refused, one.connections.lingering) == (3, lingering)
            monkeypatch.setattr(http1, "monotonic", lambda: monotonic() + http1.LINGER_S)
            one.connections.sweep()
            await eventually(lambda: one.connections.lingering == 0)
            assert len(one.connections) == 1

    async def test_a_new_connection_displaces_the_one_that_is_idle_for_the_longest_time(self) -> None:
        async with served(connections=3) as one:
            used, silent = await one.peer(), await one.peer()
            waiting = await one.peer()
            waiting.writer.write(post(b"", "/wait"))
            await eventually(lambda: one.echo.asked)
            assert (await used.ask(GET))[0] == 200
            assert (await (await one.peer()).ask(GET))[0] == 200
            assert await silent.is_closed()
            assert (await used.ask(GET))[0] == 200
            one.echo.go.set()
            assert (await waiting.answer())[0] == 200
            assert (one.connections.refused, one.connections.displaced) == (0, 1)

    async def test_a_connection_has_little_time_for_its_first_byte(self) -> None:
        async with served(request_s=0.01, idle_s=600) as one:
            used, silent = await one.peer(), await one.peer()
            assert (await used.ask(GET))[0] == 200
            assert await silent.is_closed()
            await eventually(lambda: len(one.connections) == 1)
            assert (await used.ask(GET))[0] == 200

    async def test_a_request_that_begins_behind_another_has_as_little_time(self) -> None:
        async with served(request_s=0.01, idle_s=600) as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait") + GET[:7])
            await eventually(lambda: one.echo.asked)
            one.echo.go.set()
            assert (await peer.answer())[0] == 200
            assert await peer.is_closed()

    async def test_a_listener_that_keeps_no_connection_open_answers_once(self) -> None:
        async with served(keeps_open=False) as one:
            peer = await one.peer()
            status, headers, _ = await peer.ask(GET * 3)
            assert (status, headers["connection"]) == (200, "close")
            assert await peer.is_closed()
            assert len(one.echo.asked) == 1

    async def test_too_many_requests_that_wait_end_the_connection(self) -> None:
        async with served(pipelined=2) as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait") + GET * 3)
            assert await peer.is_closed()
            await eventually(lambda: one.echo.cancelled == 1)

    @pytest.mark.parametrize("begun", [b"", b"POST / HTTP/1.1\r\nContent-Le", post(b"abc")[:-1]])
    async def test_a_connection_that_brings_no_request_is_closed(self, begun: bytes) -> None:
        async with served(request_s=0.01, idle_s=0.02) as one:
            peer = await one.peer()
            peer.writer.write(begun)
            assert await peer.is_closed()
            await eventually(lambda: len(one.connections) == 0)

    async def test_a_request_that_waits_for_its_decision_is_not_closed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait"))
            await eventually(lambda: one.echo.asked)
            now = http1.monotonic()
            with monkeypatch.context() as later:
                later.setattr(http1, "monotonic", lambda: now + 10_000)
                one.connections.sweep()
            one.echo.go.set()
            assert (await peer.answer())[0] == 200

    @pytest.mark.parametrize("number", [16, 10_000])
    async def test_a_peer_that_reads_nothing_gets_no_more_answers(self, number: int) -> None:
        echo = _Measured()
        async with served(echo) as one:
            echo.connections = one.connections
            peer = await one.peer()
            peer.writer.write(post(b"", "/long") * number)
            await eventually(lambda: one.echo.asked)
            if number > 16:
                # More than may wait: what it has not read is lost with its connection.
                await eventually(lambda: len(one.connections) == 0)
                assert len(echo.asked) <= 16
            else:
                for _ in range(number):
                    assert len((await peer.answer())[2]) == 1_000_000
            # When a request is begun, the answers before it are sent, except so many bytes.
            assert max(echo.unsent) <= 64 * 1024

    async def test_requests_of_one_read_take_turns_with_other_work(self) -> None:
        async with served() as one:
            peer, turns = await one.peer(), [0]

            def turn() -> None:
                turns.append(len(one.echo.asked))
                if len(one.echo.asked) < 32:
                    asyncio.get_running_loop().call_soon(turn)

            turn()
            peer.writer.write(GET * 32)
            for _ in range(32):
                assert (await peer.answer())[0] == 200
            assert max(after - before for before, after in pairwise(turns)) <= 16

    async def test_more_requests_than_may_wait_are_not_answered_from_one_read(self) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(GET * 5_000)
            assert await peer.is_closed()
            assert len(one.echo.asked) <= 16

    async def test_an_answer_that_nobody_waits_for_is_cancelled(self) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait"))
            await eventually(lambda: one.echo.asked)
            peer.writer.close()
            await eventually(lambda: one.echo.cancelled == 1)
            await eventually(lambda: len(one.connections) == 0)

    async def test_an_answer_that_comes_during_the_stop_is_sent(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(http1, "LAST_ANSWERS_S", PATIENCE_S)
        listeners, connections, echo = Listeners(), Connections(Bounds()), Echo()
        one = Served(echo, connections, await listeners.listen_tcp(echo, connections, "127.0.0.1", 0))
        peer, idle = await one.peer(), await one.peer()
        peer.writer.write(post(b"", "/wait"))
        await eventually(lambda: echo.asked)
        asyncio.get_running_loop().call_soon(echo.go.set)
        await listeners.stop()
        status, headers, _ = await peer.answer()
        assert (status, headers["connection"]) == (200, "close")
        assert await idle.is_closed()
        one.leave()

    async def test_nothing_is_pending_after_the_stop(self) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait"))
            await eventually(lambda: one.echo.asked)
        assert one.echo.cancelled == 1


@pytest.mark.parametrize("leaves", [False, True])
async def test_an_answer_whose_peer_has_just_left_is_taken_back(leaves: bool) -> None:
    taken_back: list[bool] = []
    go = asyncio.Event()

    class Service:
        problem = staticmethod(problem)

        def handle(self, request: Request) -> Coroutine[Any, Any, Answer]:
            return self._answer()

        async def _answer(self) -> Answer:
            await go.wait()
            return Answer(200, b"{}", unsent=lambda: taken_back.append(True))

    transport = _Transport(lambda: connection)
    connection = Http1(Service(), Connections(Bounds()))
    connection.connection_made(transport)
    connection.data_received(GET)
    go.set()
    if leaves:  # when the wait is over, and the decision does not know it yet
        connection.connection_lost(None)
    await eventually(lambda: not connection.is_busy)
    assert bool(transport.written) is not leaves
    assert bool(taken_back) is leaves


class _Measured(Echo):
    """Notes how many bytes its peers have not read when they get their next answer."""

    def __init__(self) -> None:
        super().__init__()
        self.connections: Connections | None = None
        self.unsent: list[int] = []

    def handle(self, request: Request) -> Any:
        assert self.connections is not None
        self.unsent += [one._transport.get_write_buffer_size() for one in self.connections._open]
        return super().handle(request)


class _Transport(asyncio.Transport):
    """Sends nothing until ``send``, and keeps what was written."""

    HIGH = 64 * 1024

    def __init__(self, protocol: Callable[[], Http1]) -> None:
        super().__init__()
        self.written, self._unsent, self.most = b"", 0, 0
        self.reads, self.aborted = True, False
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)
        paused = self._unsent > self.HIGH
        self._unsent += len(data)
        self.most = max(self.most, self._unsent)
        if self._unsent > self.HIGH and not paused:
            self._protocol().pause_writing()

    def send(self) -> None:
        paused, self._unsent = self._unsent > self.HIGH, 0
        if paused:
            self._protocol().resume_writing()

    def get_write_buffer_size(self) -> int:
        return self._unsent

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def close(self) -> None:
        pass

    def abort(self) -> None:
        self.aborted = True

    def write_eof(self) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass


_BITS = st.sampled_from(
    [
        GET,
        b"POST / HTTP/1.1\r\n",
        b"\r\n",
        b"Content-Length: 3\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"3\r\nabc\r\n",
        b"0\r\n\r\n",
        UPGRADE,
        b"Expect: 100-continue\r\n",
        b"x" * 9_000,
    ]
)


@given(
    st.lists(st.one_of(_BITS, st.binary(max_size=200), st.none()), max_size=20),
    st.sampled_from([2, 30_000]),
)
def test_whatever_bytes_come_the_answers_are_whole_and_little_is_kept(
    pieces: list[bytes | None], length: int
) -> None:
    """``None`` is a peer that reads what was sent."""

    class Service:
        problem = staticmethod(problem)

        def handle(self, request: Request) -> Answer:
            return Answer(200, b"x" * length)

    async def connect() -> bytes:
        transport = _Transport(lambda: connection)
        connection = Http1(Service(), Connections(Bounds()))
        connection.connection_made(transport)
        for piece in pieces:
            if piece is None:
                transport.send()
                await asyncio.sleep(0)
            elif transport.reads and not transport.aborted:
                connection.data_received(piece)
            assert len(connection._body) <= 16 * 1024
            assert sum(len(name) + len(value) for name, value in connection._headers.items()) <= 8 * 1024
            assert len(connection._queue) <= 16
        connection.connection_lost(None)
        assert transport.most <= 64 * 1024 + length + 200
        return transport.written

    answers = asyncio.run(connect()).replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    while answers:
        head, _, rest = answers.partition(b"\r\n\r\n")
        size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert head.startswith(b"HTTP/1.1 ")
        answers = rest[size:]
