"""The gateway on a real socket: beats answered where they are parsed, and whatever else comes."""

import asyncio
import socket
from contextlib import suppress

import msgspec
import pytest

from controlplane.gateway.wire.beat_protocol import MAX_HEAD_BYTES
from fuseboard.contract.sync import MAX_BODY_BYTES, SYNC_PATH
from tests.controlplane.gateway import TurnedClock, beat, ready_gateway
from tests.controlplane.wire import BEARER, JSON, WITHIN_S, request, wire
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


async def test_a_beat_cut_anywhere_is_answered_like_a_whole_one():
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


async def test_who_says_no_more_after_a_beat_is_answered():
    async with wire() as connect:
        connection = await connect()
        connection.writer.write(request() + request())
        connection.writer.write_eof()
        assert [(await connection.answer())[0] for _ in range(2)] == [200, 200]
        assert await connection.is_closed()


async def test_a_body_that_never_comes_is_408_and_one_that_comes_late_is_read():
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    async with wire(gateway) as connect:
        never, late, data = await connect(), await connect(), request()
        await never.send(request()[:-5])
        await late.send(data[:-5])
        # For a moment they are waited for, and then with a deadline.
        await eventually(lambda: len(gateway.readers._since) == 2)
        await late.send(data[-5:])
        assert (await late.answer())[0] == 200
        clock.turn(60)
        gateway.readers.sweep()
        assert (await never.answer())[0] == 408
        assert await never.is_closed()


async def test_a_client_that_goes_half_way_disturbs_nobody():
    gateway = ready_gateway()
    async with wire(gateway) as connect:
        gone, stays = await connect(), await connect()
        await gone.send(request()[:-5])
        gone.writer.transport.abort()
        await stays.send(request())
        assert (await stays.answer())[0] == 200
        await eventually(lambda: len(connect.served) == 1)
    assert gateway.counts.answers == {200: 1}


async def test_pipelined_beats_are_answered_in_order_whatever_is_between_them():
    gateway = ready_gateway()
    get = f"GET /readyz HTTP/1.1\r\nHost: gateway\r\n{BEARER}\r\n\r\n".encode()
    async with wire(gateway) as connect:
        connection = await connect()
        await connection.send(request() + request(b"{") + get + request(usual=(JSON,)) + request())
        assert [(await connection.answer())[0] for _ in range(5)] == [200, 400, 200, 401, 200]
        assert gateway.counts.answers == {200: 3, 400: 1, 401: 1}


async def test_who_never_reads_is_read_no_further_and_gets_every_answer_later():
    gateway = ready_gateway()
    async with wire(gateway) as connect:
        connection, sent = await connect(), 0
        connection.writer.transport.pause_reading()
        served = next(iter(connect.served))
        served.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        async with asyncio.timeout(WITHIN_S):
            while not served.flow.write_paused:
                await connection.send(request(b"{") * 100)
                sent += 100
        await connection.send(request(b"{") * 100)
        await asyncio.sleep(0.05)
        assert gateway.counts.answers[400] < sent + 100
        connection.writer.transport.resume_reading()
        for _ in range(sent + 100):
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


async def test_a_body_in_chunks_counts_but_never_what_follows_it():
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
        assert (await connection.answer())[0] == 401


async def test_who_asks_first_is_told_to_go_on():
    async with wire() as connect:
        connection = await connect()
        head, body = request(None, "Expect: 100-continue").split(b"\r\n\r\n", 1)
        await connection.send(head + b"\r\n\r\n")
        async with asyncio.timeout(WITHIN_S):
            assert await connection.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        await connection.send(body)
        assert (await connection.answer())[0] == 200


async def test_a_head_that_never_ends_is_cut_off():
    async with wire() as connect:
        connection = await connect()
        await connection.send(f"POST {SYNC_PATH} HTTP/1.1\r\n".encode())
        with suppress(ConnectionError):
            for _ in range(2 * MAX_HEAD_BYTES // 1000):
                await connection.send(b"X-More: %b\r\n" % (b"y" * 1000))
            pytest.fail("it reads on and on")


@pytest.mark.parametrize("sent", [b"", b"POST /agent", b"POST / HTTP/1.1\r\nHost: g"])
async def test_who_never_finishes_a_head_is_hung_up_on(sent):
    async with wire(keep_alive_s=0.3) as connect:
        connection = await connect()
        await connection.send(sent)
        assert await connection.is_closed()


async def test_a_connection_that_beats_is_kept_and_one_at_rest_is_closed():
    async with wire(ready_gateway(token_burst=10_000), keep_alive_s=0.5) as connect:
        connection = await connect()
        for _ in range(4):
            await connection.send(request())
            assert (await connection.answer())[0] == 200
            await asyncio.sleep(0.2)
        assert await connection.is_closed()


async def test_a_mistake_of_ours_is_a_500_and_costs_one_connection(monkeypatch):
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
