"""The gateway on a real socket: heartbeats in any pieces, and what else clients send.

Limits are tested in `serving/test_http_limits.py`.
"""

import asyncio
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuseboard.contract.sync import MAX_BODY_BYTES, SYNC_PATH
from tests.controlplane.gateway.manual_gateway import TurnedClock, beat, known_tokens, ready_gateway
from tests.controlplane.gateway.wire import BEARER, JSON, KEEP_ALIVE_S, WITHIN_S, let_pass, request, wire
from tests.waiting import eventually

BAD = {
    "no token": request(usual=(JSON,)),
    "a wrong token": request(usual=("Authorization: Bearer fb_sel1_wrong", JSON)),
    "another environment": request(msgspec.json.encode(beat(environment="staging"))),
    "no JSON": request(b"{"),
    "a bomb that nobody unpacks": request(b"\x1f\x8b" + b"\0" * 1000, "Content-Encoding: gzip"),
    "another type": request(usual=(BEARER, "Content-Type: text/plain")),
    "a wrong value": request(msgspec.json.encode({**msgspec.to_builtins(beat()), "sequence": -1})),
    "deep nesting": request(b"[" * 100_000),
}


@pytest.mark.parametrize("name", BAD)
async def test_a_refusal_is_the_same_whole_and_in_pieces_and_the_connection_stays(name):
    async with wire() as connect:
        whole, pieces, data = await connect(), await connect(), BAD[name]
        await whole.send(data)
        at = data.index(b"\r\n\r\n") + 4
        await pieces.send(data[: at - 9], data[at - 9 : at], data[at : at + 1], data[at + 1 :])
        (status, _, document), other = await whole.answer(), await pieces.answer()
        assert status in (400, 401, 403, 415, 422)
        assert (status, document) == (other[0], other[2])
        for connection in (whole, pieces):
            await connection.send(request())
            assert (await connection.answer())[0] == 200


async def test_a_heartbeat_cut_anywhere_is_answered_like_a_whole_one():
    gateway = ready_gateway(token_burst=10_000)
    async with wire(gateway) as connect:
        connection = await connect()
        size = len(request())
        for at in [*range(1, size, 23), size - 1]:
            data = request(msgspec.json.encode(beat(f"pod-{at}")))
            await connection.send(data[:at], data[at:])
            assert (await connection.answer())[0] == 200
            data = request(msgspec.json.encode(beat(f"pod-{at}")))
            await connection.send(data[:at], data[at : at + 7], data[at + 7 :])
            assert (await connection.answer())[0] == 200
    assert gateway.fleet("production").stale_beats == 0


async def test_a_client_that_closes_its_side_is_answered():
    async with wire() as connect:
        connection = await connect()
        connection.writer.write(request() + request())
        connection.writer.write_eof()
        assert [(await connection.answer())[0] for _ in range(2)] == [200, 200]
        assert await connection.is_closed()


async def test_a_body_that_never_arrives_is_408_and_a_late_one_is_read():
    gateway = ready_gateway()
    async with wire(gateway, body_s=0.5) as connect:
        never, late, data = await connect(), await connect(), request()
        await never.send(request()[:-5])
        await late.send(data[:-5])
        await late.send(data[-5:])
        assert (await late.answer())[0] == 200
        assert (await never.answer())[0] == 408
        assert await never.is_closed()
    assert gateway.counts.answers == {200: 1, 408: 1}


async def test_a_client_that_leaves_amid_a_request_disturbs_no_other():
    gateway = ready_gateway()
    async with wire(gateway) as connect:
        gone, stays = await connect(), await connect()
        await gone.send(request()[:-5])
        gone.writer.transport.abort()
        await stays.send(request())
        assert (await stays.answer())[0] == 200
        await eventually(lambda: len(connect.open) == 1)
    assert gateway.counts.answers == {200: 1}


async def test_pipelined_requests_are_answered_in_order():
    gateway = ready_gateway()
    get = f"GET /readyz HTTP/1.1\r\nHost: gateway\r\n{BEARER}\r\n\r\n".encode()
    async with wire(gateway) as connect:
        connection = await connect()
        await connection.send(request() + request(b"{") + get + request(usual=(JSON,)) + request())
        assert [(await connection.answer())[0] for _ in range(5)] == [200, 400, 200, 401, 200]
        assert gateway.counts.answers == {200: 3, 400: 1, 401: 1}


async def test_a_client_that_does_not_read_is_not_read_and_gets_every_answer_later():
    gateway = ready_gateway()
    async with wire(gateway) as connect:
        connection, sent = await connect(), 0
        connection.writer.transport.pause_reading()
        await eventually(lambda: connect.made)
        [protocol] = connect.made
        async with asyncio.timeout(WITHIN_S):
            while not protocol._held:
                await connection.send(request(b"{") * 100)
                sent += 100
        assert gateway.counts.answers[400] < sent
        connection.writer.transport.resume_reading()
        for _ in range(sent):
            assert (await connection.answer())[0] == 400


CLOSED = {
    "of HTTP/1.0": (request(start=f"POST {SYNC_PATH} HTTP/1.0"), 200),
    "that says so": (request(None, "Connection: close"), 200),
    "with a larger body": (request(b"x", f"Content-Length: {MAX_BODY_BYTES + 1}", length=False), 413),
    "with a length no number holds": (
        request(b"{}", "Content-Length: 99999999999999999999", length=False),
        400,
    ),
    "with two lengths": (request(b"{}", "Content-Length: 3"), 400),
    "with a length and chunks": (request(b"0\r\n\r\n", "Transfer-Encoding: chunked"), 400),
    "with a broken header": (request(None, "X-Y: a\rb"), 400),
    "with a NUL in its path": (request(start="POST /agent/v1/\0sync HTTP/1.1"), 400),
    "of no HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
}


@pytest.mark.parametrize("name", CLOSED)
async def test_a_connection_is_closed_after_a_request(name):
    data, expected = CLOSED[name]
    gateway = ready_gateway()
    async with wire(gateway) as connect:
        connection = await connect()
        await connection.send(data)
        status, _, _ = await connection.answer()
        assert status == expected
        assert await connection.is_closed()
    assert bool(gateway.fleets) == (expected == 200)


async def test_a_chunked_body_is_read_and_fields_after_it_are_refused():
    """What comes after the body must not pass for a header, or a proxy in front could be deceived."""
    body = msgspec.json.encode(beat())
    chunks = b"%x\r\n%b\r\n0\r\n" % (len(body), body)
    gateway = ready_gateway()
    async with wire(gateway) as connect:
        connection = await connect()
        chunked = "Transfer-Encoding: chunked"
        await connection.send(request(chunks + b"\r\n", chunked, length=False))
        assert (await connection.answer())[0] == 200
        trailer = chunks + BEARER.encode() + b"\r\n\r\n"
        await connection.send(
            request(trailer, chunked, "Trailer: Authorization", usual=(JSON,), length=False)
        )
        assert (await connection.answer())[0] == 400


async def test_expect_100_continue_is_answered():
    async with wire() as connect:
        connection = await connect()
        head, body = request(None, "Expect: 100-continue").split(b"\r\n\r\n", 1)
        await connection.send(head + b"\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(body)
        assert (await connection.answer())[0] == 200


async def test_a_connection_with_heartbeats_stays_open_and_an_idle_one_is_closed():
    async with wire(ready_gateway(token_burst=10_000)) as connect:
        connection = await connect()
        for _ in range(4):
            await connection.send(request())
            assert (await connection.answer())[0] == 200
            [protocol] = connect.made
            let_pass(protocol, 0.4 * KEEP_ALIVE_S)
        let_pass(protocol, 0.6 * KEEP_ALIVE_S)
        assert await connection.is_closed()


async def test_a_bug_is_a_500_and_closes_one_connection(monkeypatch):
    gateway = ready_gateway()
    async with wire(gateway) as connect:
        connection = await connect()
        with monkeypatch.context() as patch:
            patch.setattr(gateway.tokens, "check", lambda *_: 1 / 0)
            await connection.send(request())
            status, head, body = await connection.answer()
        assert (status, body) == (500, b"Internal Server Error")
        assert b"connection: close" in head
        assert await connection.is_closed()
        another = await connect()
        await another.send(request())
        assert (await another.answer())[0] == 200


async def test_empty_lines_before_a_request_are_no_request():
    async with wire() as connect:
        connection = await connect()
        await connection.send(b"\r\n\r\n" + request())
        assert (await connection.answer())[0] == 200
        await connection.send(b"\r\n\r\n" + msgspec.json.encode(beat()))
        assert (await connection.answer())[0] == 400
        assert await connection.is_closed()


def revoke(gateway, clock):
    gateway.tokens.replace({})


def outlive(gateway, clock):
    clock.turn(200_000)


def spend(gateway, clock):
    token = known_tokens()["sel1"]
    while not gateway.tokens.wait_s(token, clock.monotonic()):
        pass


def forget(gateway, clock):
    gateway.ready = False


@pytest.mark.parametrize(("change", "status"), [(revoke, 401), (outlive, 401), (spend, 429), (forget, 503)])
async def test_a_change_holds_for_connections_that_are_open(change, status):
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    async with wire(gateway) as connect:
        connection = await connect()
        await connection.send(request())
        assert (await connection.answer())[0] == 200
        change(gateway, clock)
        await connection.send(request())
        assert (await connection.answer())[0] == status


SHORT = msgspec.json.encode(beat("pod", sequence=1_000))
GET = f"GET /readyz HTTP/1.1\r\nHost: gateway\r\n{BEARER}\r\n\r\n".encode()
CHUNKED = request(b"", "Transfer-Encoding: chunked", length=False) + b"%x\r\n%b\r\n0\r\n\r\n" % (
    len(SHORT),
    SHORT,
)
ASKED = st.sampled_from(
    [
        *[request(msgspec.json.encode(beat(f"pod-{n}", sequence=1_000 + n))) for n in range(4)],
        request(SHORT),
        request(b"{" * len(SHORT)),
        request(b""),
        request(SHORT, usual=("Authorization: Bearer fb_sel1_wrong", JSON)),
        b"\r\n" + request(SHORT),
        b"\r\n\r\n" + request(SHORT),
        GET,
        CHUNKED,
    ]
)
#: After these the gateway closes the connection.
LAST = st.sampled_from(
    [
        b"",
        request(SHORT, "Connection: close"),
        request(SHORT, "Connection: close, keep-alive"),
        request(SHORT, start="POST /agent/v1/sync HTTP/1.0"),
    ]
)


@st.composite
def conversations(draw):
    """Requests, and the pieces in which their bytes are sent."""
    asked = [one for one in [*draw(st.lists(ASKED, min_size=2, max_size=8)), draw(LAST)] if one]
    data = b"".join(asked)
    ends = [sum(map(len, asked[:n])) for n in range(1, len(asked))]
    heads_end = [at + 4 for at in range(len(data)) if data.startswith(b"\r\n\r\n", at)]
    cut = st.sampled_from([*ends, *ends, *heads_end]) | st.integers(1, len(data) - 1)
    cuts = sorted({0, len(data), *draw(st.lists(cut, max_size=2 * len(asked)))})
    return asked, [data[a:b] for a, b in pairwise(cuts)]


async def converse(pieces, answers):
    async with wire(ready_gateway(token_burst=10_000)) as connect:
        connection = await connect()
        await connection.send(*pieces)
        return [await connection.answer() for _ in range(answers)]


async def converse_in_turns(requests):
    async with wire(ready_gateway(token_burst=10_000)) as connect:
        connection, answers = await connect(), []
        for one in requests:
            await connection.send(one)
            answers.append(await connection.answer())
        return answers


@settings(max_examples=100)
@given(conversations())
def test_requests_in_any_pieces_are_answered_as_one_after_the_other(conversation):
    asked, pieces = conversation
    assert asyncio.run(converse(pieces, len(asked))) == asyncio.run(converse_in_turns(asked))
