"""How much a client may send, how long it may take, and how it is refused."""

import asyncio
from contextlib import suppress

import msgspec
import pytest

from controlplane.fleet.status_client import PATH as FLEET_PATH
from fuseboard.contract.sync import MAX_BODY_BYTES
from tests.controlplane.gateway.manual_gateway import beat
from tests.controlplane.gateway.wire import KEEP_ALIVE_S, let_pass, request, wire
from tests.controlplane.http_limits.clients import GET, SOON_S, post, scripted
from tests.waiting import eventually

# Heads.


async def test_a_head_that_is_too_large_is_431(serve):
    async with serve() as connect:
        connection = await connect()
        with suppress(ConnectionError):
            for _ in range(200):
                await connection.send(b"GET / HTTP/1.1\r\n" if _ == 0 else b"X-More: %b\r\n" % (b"y" * 1000))
        assert (await connection.answer())[0] == 431


async def test_one_header_field_that_never_ends_is_431(serve):
    async with serve() as connect:
        connection = await connect()
        with suppress(ConnectionError):
            await connection.send(b"GET / HTTP/1.1\r\nX-More: ", *[b"y" * 10_000] * 12)
        assert (await connection.answer())[0] == 431


async def test_a_large_head_within_the_limit_is_read(serve):
    async with serve() as connect:
        connection = await connect()
        await connection.send(GET.replace(b"\r\n\r\n", b"\r\nX-More: %b\r\n\r\n" % (b"y" * 60_000)))
        assert (await connection.answer())[0] == 200


@pytest.mark.parametrize("sent", [b"G", b"GET /healthz HTTP/1.1\r\nHost: h", GET + b"GET / HTTP"])
async def test_a_head_that_stays_incomplete_is_408(serve, sent):
    async with serve(head_s=SOON_S) as connect:
        connection = await connect()
        await connection.send(sent)
        if sent.startswith(GET):
            assert (await connection.answer())[0] == 200
        status, head, _ = await connection.answer()
        assert (status, b"connection: close" in head) == (408, True)
        assert await connection.is_closed()


async def test_a_head_that_trickles_in_is_408(serve):
    async with serve(head_s=SOON_S) as connect:
        connection = await connect()

        async def trickle():
            with suppress(ConnectionError):
                for byte in b"GET /" + b"a" * 10_000:
                    await connection.send(bytes([byte]))
                    await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        assert (await connection.answer())[0] == 408
        trickling.cancel()


# Silence.


async def test_a_connection_without_a_request_is_closed(serve):
    async with serve(head_s=SOON_S) as connect:
        assert await (await connect()).is_closed()


async def test_an_idle_connection_is_closed_whatever_newlines_it_sends(serve):
    async with serve(keep_alive_s=SOON_S) as connect:
        silent, noisy = await connect(), await connect()
        for connection in (silent, noisy):
            await connection.send(GET)
            assert (await connection.answer())[0] == 200
        await noisy.send(b"\r\n")
        assert await silent.is_closed()
        assert await noisy.is_closed()


async def test_a_connection_in_use_stays_open(serve):
    async with serve(head_s=KEEP_ALIVE_S, body_s=KEEP_ALIVE_S) as connect:
        connection = await connect()
        for _ in range(8):
            await connection.send(GET)
            assert (await connection.answer())[0] == 200
            let_pass(connect.made[0], KEEP_ALIVE_S / 4)


# Bodies.


@pytest.mark.parametrize(
    "head", [post(10), post(10, "Expect: 100-continue"), post(0, "Transfer-Encoding: chunked", "X: ")]
)
async def test_a_body_that_stays_incomplete_is_408(head):
    """The path reads its body: others answer before."""
    head = head.replace(b"\r\nX: \r\nContent-Length: 0", b"")
    async with scripted(body_s=SOON_S) as (connect, app):
        connection = await connect()
        await connection.send(head)
        await eventually(lambda: app.reading)
        if b"Expect" in head:
            assert (await connection.head())[0] == 100
        status, head, _ = await connection.answer()
        assert (status, b"connection: close" in head) == (408, True)
        assert await connection.is_closed()
        await eventually(lambda: app.left == 1)


async def test_a_body_that_trickles_in_is_408():
    async with scripted(body_s=SOON_S) as (connect, _):
        connection = await connect()
        await connection.send(post(1000))

        async def trickle():
            with suppress(ConnectionError):
                for _ in range(900):
                    await connection.send(b"x")
                    await asyncio.sleep(0.01)

        trickling = asyncio.create_task(trickle())
        assert (await connection.answer())[0] == 408
        trickling.cancel()


async def test_a_late_body_is_408_at_both(serve):
    path = FLEET_PATH if serve is wire else "/login/"
    async with serve(body_s=SOON_S) as connect:
        connection = await connect()
        await connection.send(post(10, path=path))
        assert (await connection.answer())[0] == 408
        assert await connection.is_closed()


async def test_a_body_without_end_is_413(serve):
    """Also where the application has answered before, and discards what it did not ask for."""
    async with serve(body_bytes=100_000) as connect:
        connection = await connect()
        await connection.send(post(0, "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b""))
        with suppress(ConnectionError):
            for _ in range(100):
                await connection.send(b"1000\r\n%b\r\n" % (b"x" * 4096))
        assert (await connection.answer())[0] in (405, 413)
        assert await connection.is_closed()


async def test_a_body_over_the_limit_is_413_while_it_is_read():
    async with scripted(body_bytes=50_000) as (connect, app):
        connection = await connect()
        with suppress(ConnectionError):
            await connection.send(post(1_000_000), *[b"x" * 10_000] * 20)
        assert (await connection.answer())[0] == 413
        await eventually(lambda: app.left == 1)


async def test_the_frames_of_chunks_do_not_count_as_body():
    """The largest body of a heartbeat, which an application counts without them."""
    body = msgspec.json.encode(beat()).ljust(MAX_BODY_BYTES)
    parts = (body[at : at + 64] for at in range(0, len(body), 64))
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    async with wire() as connect:
        connection = await connect()
        await connection.send(request(b"", "Transfer-Encoding: chunked", length=False))
        await connection.send(chunks + b"0\r\n\r\n")
        assert (await connection.answer())[0] == 200


async def test_a_slow_body_within_the_limits_is_read():
    async with scripted(body_bytes=100_000) as (connect, _):
        connection = await connect()
        await connection.send(post(90_000), *[b"x" * 9_000] * 10)
        assert await connection.answer() == (200, b"http/1.1 200 ok\r\ncontent-length: 5\r\n\r\n", b"90000")


async def test_an_application_may_wait_for_its_client_to_leave():
    """A deadline for bodies is no deadline for answers."""
    async with scripted() as (connect, app):
        connection = await connect()
        await connection.send(post(0, path="/wait"))
        await eventually(lambda: app.waiting)
        let_pass(connect.made[0], 10 * KEEP_ALIVE_S)
        app.go_on.set()
        assert (await connection.answer())[0] == 200


async def test_a_request_that_was_answered_early_gets_no_second_answer():
    async with scripted(body_s=SOON_S) as (connect, _):
        connection = await connect()
        await connection.send(post(10, path="/early"))
        assert (await connection.answer())[0] == 403
        assert await connection.is_closed()


async def test_a_body_after_an_early_answer_leaves_the_connection_usable_and_not_open_for_ever():
    async with scripted(keep_alive_s=SOON_S) as (connect, _):
        connection = await connect()
        await connection.send(post(10, path="/early"))
        assert (await connection.answer())[0] == 403
        await connection.send(b"x" * 10)
        await connection.send(GET)
        assert (await connection.answer())[0] == 200
        await connection.send(post(10, path="/early"))
        assert (await connection.answer())[0] == 403
        await connection.send(b"x" * 10)
        assert await connection.is_closed()
