"""Heads that came before are not parsed again: no answer and no request may show that."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fuseboard.serving import heads
from fuseboard.serving.exchange import Answer, Request
from fuseboard.serving.heads import KnownHeads
from fuseboard.serving.http1 import Bounds, Connections, Http1
from fuseboard.sidecar.answers import problem
from tests.sidecar.peers import GET, HOST, post, served

_BODY_BYTES = Bounds().body_bytes
_ENDS = (b"\r\n", b"\n", b"\r")


class Told:
    """Answers with all that it got."""

    problem = staticmethod(problem)

    def handle(self, request: Request) -> Any:
        told = [request.method, request.path, dict(request.headers), request.body.decode("latin-1")]
        answer = Answer(200, json.dumps(told).encode())
        return self._later(answer) if request.path == "/later" else answer

    async def _later(self, answer: Answer) -> Answer:
        await asyncio.sleep(0)
        return answer


class Written(asyncio.Transport):
    def __init__(self) -> None:
        super().__init__()
        self.written, self.ended = b"", False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        self.ended = True

    abort = write_eof = close


class Forgetful(KnownHeads):
    def request_in(self, data: bytes, uid: int | None) -> Request | None:
        return None


async def _answers(known: KnownHeads, reads: list[bytes]) -> list[tuple[bytes, bool]]:
    """What two connections answer, and whether they end: the second one meets the heads of the first."""
    connections, found = Connections(Bounds()), []
    connections.heads = known
    for _ in range(2):
        transport = Written()
        connection = Http1(Told(), connections)
        connection.connection_made(transport)
        for data in reads:
            if not transport.ended:
                connection.data_received(data)
                for _ in range(8):
                    await asyncio.sleep(0)
        connection.connection_lost(None)
        found.append((transport.written, transport.ended))
    return found


_CHUNKS = (
    b"3\r\nabc\r\n0\r\n\r\n",
    b"03\r\nabd\r\n0\r\n\r\n",
    b"0\r\n\r\n",
    b"3;x=y\r\nabc\r\n0\r\n\r\n",
    b"A\r\n0123456789\r\n0\r\n\r\n",
    b"3\r\nabc\r\n0\r\nx: y\r\n\r\n",
    b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",
    b"3\r\nabc\r\n0\r\n\r\nGET",
    b"3\r\nabcd\r\n0\r\n\r\n",
    b"0\r\n\r\n0\r\n\r\n",
)
CHUNKED = b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n"


def _request(path: str, lines: list[bytes], length: int | None, body: bytes, end: bytes) -> bytes:
    method = b"GET " if length is None else b"POST "
    lines = [method + path.encode() + b" HTTP/1.1", *lines]
    if length is not None:
        lines.append(b"Content-Length: %d" % length)
    return end.join(lines) + end + end + body


_LINES = st.sampled_from(
    [
        b"Host: 127.0.0.1:7480",
        b"Content-Length: 3",
        b"Connection: close",
        b"Connection: upgrade\r\nUpgrade: h2c",
        b"Transfer-Encoding: chunked",
        b"Expect: 100-continue",
        b"X: \x80 a",
        b" folded",
        b"X: " + b"x" * heads.MAX_HEAD_BYTES,
    ]
)
_REQUESTS = st.builds(
    _request,
    st.sampled_from(["/", "/later"]),
    st.lists(_LINES, max_size=2),
    st.sampled_from([None, 0, 3]),
    st.sampled_from([b"", b"abc", b"\r\n\r\n", b"\n\n\n", b"\r\n\r\nabc", *_CHUNKS]),
    st.sampled_from(_ENDS),
)
_READS = st.lists(
    st.one_of(
        _REQUESTS,
        st.tuples(_REQUESTS, _REQUESTS).map(b"".join),
        st.tuples(_REQUESTS, st.integers(1, 60)).map(lambda cut: cut[0][: cut[1]]),
        st.sampled_from([b"\r\n", b"abc", GET, post(b"abc")]),
    ),
    max_size=6,
)


@given(_READS)
@example([post(b"abc"), post(b"abd"), GET, GET])
@example([GET, GET + b"\r\n", GET + GET, GET])
@example([post(b"abc"), post(b"abc")[:-1], b"d", post(b"abc") + post(b"abc")[:9], post(b"abc")[9:]])
@example([GET, b"\r", GET, post(b"", "/later") + GET, GET])
@example([CHUNKED + chunks for chunks in _CHUNKS[:2] * 2])
@example([CHUNKED + chunks for chunks in (_CHUNKS[0], *_CHUNKS[2:4], _CHUNKS[0])])
@example([CHUNKED + chunks for chunks in (_CHUNKS[0], *_CHUNKS[4:7], _CHUNKS[0])])
@example([CHUNKED + chunks for chunks in (_CHUNKS[0], _CHUNKS[7])])
@example([CHUNKED + chunks for chunks in (_CHUNKS[0], _CHUNKS[8])])
@example([CHUNKED + chunks for chunks in (_CHUNKS[0], _CHUNKS[9])])
@example([CHUNKED + _CHUNKS[0], CHUNKED + b"4001\r\n" + b"x" * 0x4001 + b"\r\n0\r\n\r\n"])
def test_answers_are_those_of_a_listener_that_parses_every_head(reads: list[bytes]) -> None:
    twice = reads + reads
    assert asyncio.run(_answers(KnownHeads(_BODY_BYTES), twice)) == asyncio.run(
        _answers(Forgetful(_BODY_BYTES), twice)
    )


@pytest.mark.parametrize("data", [post(b"abc"), CHUNKED + _CHUNKS[0]])
async def test_a_head_that_came_before_is_not_parsed(data: bytes) -> None:
    async with served() as one:
        first, second = await one.peer(), await one.peer()
        assert (await first.ask(data))[2] == b'["POST", "/", "abc"]'
        assert len(one.connections.heads) == 1
        assert (await second.ask(data.replace(b"abc", b"xyz")))[2] == b'["POST", "/", "xyz"]'
        # The same object: nothing was parsed for it.
        assert one.echo.asked[0].headers is one.echo.asked[1].headers


@pytest.mark.parametrize(
    "data",
    [
        post(b"", "/", "Expect: 100-continue"),
        post(b"", "/", "Connection: close"),
        post(b"", "/", "X: " + "x" * heads.MAX_HEAD_BYTES),
        b"POST / HTTP/1.1\r\n" + HOST + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + HOST + b"Connection: upgrade\r\nUpgrade: h2c\r\n\r\n",
        GET + GET,
    ],
)
async def test_a_head_that_does_not_say_all_of_its_request_is_not_learned(data: bytes) -> None:
    async with served() as one:
        peer = await one.peer()
        await peer.ask(data)
        assert len(one.connections.heads) == 0


@pytest.mark.parametrize("end", [b"\n\n", b"\r\r", b"\n\r\n"])
def test_a_head_whose_end_another_parser_could_see_elsewhere_is_not_learned(end: bytes) -> None:
    known = KnownHeads(_BODY_BYTES)
    data = b"POST / HTTP/1.1" + end + b"\r\n\r\n"
    known.learn(data, Request(method="POST", path="/", headers={}, body=b""))
    assert len(known) == 0


def test_few_heads_are_kept() -> None:
    known = KnownHeads(_BODY_BYTES)
    for number in range(3 * heads.MAX_HEADS):
        request = Request(method="GET", path=f"/{number}", headers={}, body=b"")
        data = b"GET /%d HTTP/1.1\r\n\r\n" % number
        known.learn(data, request)
        assert known.request_in(data, None) == request
        assert len(known) <= heads.MAX_HEADS
