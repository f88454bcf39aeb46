"""The listener of the sidecar: who may ask, what cannot be read, and the bounds of a connection."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.errors import Misconfigured
from fuseboard.reporting.token import TokenSource
from fuseboard.serving import http1
from fuseboard.serving.exchange import Answer, Request
from fuseboard.serving.http1 import Bounds, Connections, Http1
from fuseboard.serving.listeners import Listeners
from fuseboard.sidecar.access import LoopbackAccess, loopback_of, token_of
from fuseboard.sidecar.answers import problem
from tests.waiting import PATIENCE_S, eventually

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
    def __init__(self, echo: Echo, listeners: Listeners, port: int) -> None:
        self.echo, self.connections, self.port = echo, listeners.connections, port
        self._peers: list[Peer] = []

    async def peer(self) -> Peer:
        peer = Peer(*await asyncio.open_connection("127.0.0.1", self.port))
        self._peers.append(peer)
        return peer

    def leave(self) -> None:
        for peer in self._peers:
            peer.writer.close()


@asynccontextmanager
async def served(**bounds: Any) -> AsyncIterator[Served]:
    listeners, echo = Listeners(Connections(Bounds(**bounds))), Echo()
    one = Served(echo, listeners, await listeners.listen_tcp(echo, "127.0.0.1", 0))
    try:
        yield one
    finally:
        one.leave()
        await listeners.stop()


def post(body: bytes, path: str = "/", *headers: str) -> bytes:
    lines = "".join(f"{header}\r\n" for header in headers)
    return f"POST {path} HTTP/1.1\r\nHost: x\r\n{lines}Content-Length: {len(body)}\r\n\r\n".encode() + body


class TestAccess:
    ACCESS = LoopbackAccess(TokenSource("secret"))

    def status(self, headers: dict[str, str]) -> int:
        refused = self.ACCESS.refuse(Request(method="POST", path="/", headers=headers, body=b""))
        return 200 if refused is None else refused.status

    @pytest.mark.parametrize("host", ["127.0.0.1:7480", "localhost", "LocalHost:1", "[::1]:7480"])
    @pytest.mark.parametrize("scheme", ["Bearer", "bearer"])
    def test_the_application_may_ask(self, host: str, scheme: str) -> None:
        assert self.status({"host": host, "authorization": f"{scheme} secret"}) == 200

    @pytest.mark.parametrize(
        "host", ["", "evil.example:7480", "127.0.0.1.evil.example", "10.0.0.1", "localhost:x"]
    )
    def test_another_host_may_not(self, host: str) -> None:
        assert self.status({"host": host, "authorization": "Bearer secret"}) == 403

    @pytest.mark.parametrize("origin", ["http://127.0.0.1:7480", "null", ""])
    def test_a_browser_may_not(self, origin: str) -> None:
        headers = {"host": "localhost", "authorization": "Bearer secret", "origin": origin}
        assert self.status(headers) == 403

    @pytest.mark.parametrize("given", ["", "Bearer", "Bearer wrong", "Basic secret", "secret", "Bearer \xff"])
    def test_a_request_without_the_token_may_not(self, given: str) -> None:
        assert self.status({"host": "localhost", "authorization": given}) == 401

    def test_without_a_token_the_other_rules_stay(self) -> None:
        open_access = LoopbackAccess(None)
        request = Request(method="POST", path="/", headers={"host": "localhost"}, body=b"")
        assert open_access.refuse(request) is None
        refused = open_access.refuse(Request(method="POST", path="/", headers={"host": "x"}, body=b""))
        assert refused is not None

    def test_a_token_that_was_replaced_is_the_one_that_counts(self, tmp_path: Path) -> None:
        file = tmp_path / "token"
        file.write_text("first\n")
        source = token_of({"FUSEBOARD_SIDECAR_TOKEN_FILE": str(file)})
        assert source.current() == "first"
        (tmp_path / "next").write_text("second\n")
        (tmp_path / "next").replace(file)
        assert source.current() == "second"

    @pytest.mark.parametrize(
        "environ",
        [
            {},
            {"FUSEBOARD_SIDECAR_TOKEN": "a", "FUSEBOARD_SIDECAR_TOKEN_FILE": "b"},
            {"FUSEBOARD_SIDECAR_TOKEN": "two words"},
            {"FUSEBOARD_SIDECAR_TOKEN_FILE": "/nowhere/at/all"},
        ],
    )
    def test_a_token_that_cannot_be_used_is_an_error_at_the_start(self, environ: dict[str, str]) -> None:
        with pytest.raises(Misconfigured, match="FUSEBOARD_SIDECAR_TOKEN"):
            token_of(environ)

    @pytest.mark.parametrize(
        "address", ["0.0.0.0:7480", "10.0.0.1:1", "127.0.0.1:x", "example.com:80", ":7480", "7480"]
    )
    def test_only_loopback_is_listened_on(self, address: str) -> None:
        with pytest.raises(Misconfigured, match="--listen must be"):
            loopback_of(address)

    def test_loopback_has_three_spellings(self) -> None:
        assert loopback_of("localhost:1") == loopback_of("127.0.0.1:1") == ("127.0.0.1", 1)
        assert loopback_of("[::1]:7480") == ("::1", 7480)


class TestRequests:
    async def test_a_connection_serves_one_request_after_the_other(self) -> None:
        async with served() as one:
            peer = await one.peer()
            for _ in range(3):
                assert await peer.ask(post(b"{}", "/x")) == (
                    200,
                    {"content-type": "application/json", "content-length": "20"},
                    b'["POST", "/x", "{}"]',
                )
            assert len(one.connections) == 1

    async def test_requests_that_come_together_are_answered_in_their_order(self) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait") + post(b"", "/soon") + post(b"a") + post(b"b"))
            await eventually(lambda: one.echo.asked)
            one.echo.go.set()
            assert [(await peer.answer())[2] for _ in range(4)] == [
                b'"waited"',
                b'"soon"',
                b'["POST", "/", "a"]',
                b'["POST", "/", "b"]',
            ]

    async def test_a_chunked_body_is_read(self) -> None:
        async with served() as one:
            peer = await one.peer()
            chunks = (
                b"POST / HTTP/1.1\r\n"
                + HOST
                + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2\r\nbc\r\n0\r\n\r\n"
            )
            assert (await peer.ask(chunks))[2] == b'["POST", "/", "abc"]'

    async def test_a_client_that_expects_to_be_asked_for_its_body_is_asked(self) -> None:
        async with served() as one:
            peer = await one.peer()
            head, _, body = post(b"abc", "/", "Expect: 100-continue").partition(b"\r\n\r\n")
            assert (await peer.ask(head + b"\r\n\r\n"))[0] == 100
            assert (await peer.ask(body))[2] == b'["POST", "/", "abc"]'

    async def test_a_client_that_offers_http2_goes_on_with_http1(self) -> None:
        async with served() as one:
            peer = await one.peer()
            upgrade = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABk")
            for _ in range(2):
                assert (await peer.ask(post(b"a", "/", *upgrade)))[2] == b'["POST", "/", "a"]'
            # Its body is no other request, however it comes.
            hidden = post(GET, "/", *upgrade)
            peer.writer.write(hidden[:-5])
            await asyncio.sleep(0)
            assert (await peer.ask(hidden[-5:] + post(b"", "/", *upgrade)))[2].startswith(
                b'["POST", "/", "GET'
            )
            assert (await peer.answer())[2] == b'["POST", "/", ""]'
            assert len(one.echo.asked) == 4

    async def test_a_client_that_closes_gets_its_answer_and_the_end(self) -> None:
        async with served() as one:
            peer = await one.peer()
            status, headers, _ = await peer.ask(post(b"", "/", "Connection: close"))
            assert (status, headers["connection"]) == (200, "close")
            assert await peer.is_closed()

    async def test_the_answer_to_head_has_no_body(self) -> None:
        async with served() as one:
            peer = await one.peer()
            peer.writer.write(GET.replace(b"GET", b"HEAD"))
            await peer.reader.readuntil(b"\r\n\r\n")
            assert (await peer.ask(GET))[0] == 200

    async def test_a_defect_is_500_and_the_connection_goes_on(self) -> None:
        async with served() as one:
            peer = await one.peer()
            assert (await peer.ask(post(b"", "/defect")))[0] == 500
            assert (await peer.ask(post(b"", "/later-defect")))[0] == 500
            assert (await peer.ask(GET))[0] == 200


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
            await first.ask(GET)
            second = await one.peer()
            status, headers, _ = await second.answer()
            assert (status, headers["retry-after"]) == (503, "1")
            assert await second.is_closed()
            assert one.connections.refused == 1
            assert (await first.ask(GET))[0] == 200

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

    async def test_a_request_that_waits_for_its_decision_is_not_closed(self) -> None:
        async with served(request_s=0.01, idle_s=0.02) as one:
            peer = await one.peer()
            peer.writer.write(post(b"", "/wait"))
            await eventually(lambda: one.echo.asked)
            one.connections.sweep()
            one.echo.go.set()
            assert (await peer.answer())[0] == 200

    async def test_a_peer_that_reads_nothing_is_not_read_from(self) -> None:
        async with served(pipelined=0) as one:
            peer = await one.peer()
            for _ in range(100):
                peer.writer.write(post(b"", "/long"))
            await eventually(lambda: one.echo.asked)
            asked = len(one.echo.asked)
            # Answers of 1 MB: those that fit into the buffers of the two sockets, and one more.
            assert asked < 100
            for _ in range(100):
                assert len((await peer.answer())[2]) == 1_000_000

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
        listeners, echo = Listeners(Connections(Bounds())), Echo()
        one = Served(echo, listeners, await listeners.listen_tcp(echo, "127.0.0.1", 0))
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


class _Transport(asyncio.Transport):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        pass

    def abort(self) -> None:
        pass

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


@given(st.lists(st.one_of(_BITS, st.binary(max_size=200)), max_size=20))
def test_whatever_bytes_come_the_answers_are_whole_and_little_is_kept(pieces: list[bytes]) -> None:
    class Service:
        problem = staticmethod(problem)

        def handle(self, request: Request) -> Answer:
            return Answer(200, b"{}")

    connections, transport = Connections(Bounds()), _Transport()
    connection = Http1(Service(), connections)
    connection.connection_made(transport)
    for piece in pieces:
        connection.data_received(piece)
    assert len(connection._body) <= 16 * 1024
    assert sum(len(name) + len(value) for name, value in connection._headers.items()) <= 8 * 1024
    answers = transport.written.replace(b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    while answers:
        head, _, rest = answers.partition(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        assert head.startswith(b"HTTP/1.1 ")
        answers = rest[length:]
    connection.connection_lost(None)
