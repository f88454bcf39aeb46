"""Which answer belongs to which request, and what could deceive a proxy in front."""

import re
from contextlib import suppress

import pytest

from tests.controlplane.gateway.wire import wire
from tests.controlplane.http_limits.clients import GET, HEAD, post, scripted
from tests.waiting import eventually

# `Upgrade`.

_FIELDS = "Connection: Upgrade\r\nUpgrade: {}\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: {}\r\n"
_KEY = "dGhlIHNhbXBsZSBub25jZQ=="


def upgrade(protocol, *, start="GET /ws/live HTTP/1.1", more=""):
    return f"{start}\r\nHost: localhost\r\n{_FIELDS.format(protocol, _KEY)}{more}\r\n".encode()


UPGRADES = {
    "another protocol": upgrade("foo"),
    "HTTP/2": upgrade("h2c", more="HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"),
    "another protocol, with a body": upgrade("foo", start="POST / HTTP/1.1", more="Content-Length: 38\r\n"),
    "a WebSocket by POST": upgrade("websocket", start="POST /ws/live HTTP/1.1"),
    "a WebSocket with a body": upgrade("websocket", more="Content-Length: 38\r\n"),
    "a WebSocket with chunks": upgrade("websocket", more="Transfer-Encoding: chunked\r\n"),
    "a WebSocket or another": upgrade("websocket", more="Upgrade: foo\r\n"),
    "two opinions": upgrade("websocket", more="Connection: keep-alive\r\n"),
    "a tunnel": b"CONNECT other:443 HTTP/1.1\r\nHost: other:443\r\n\r\n",
}


@pytest.mark.parametrize("name", UPGRADES)
async def test_an_upgrade_is_400_and_what_follows_is_not_read(serve, name):
    async with serve() as connect:
        connection = await connect()
        with suppress(ConnectionError):
            await connection.send(UPGRADES[name], GET)
        assert (await connection.answer())[0] == 400
        assert await connection.is_closed()


# channels looks at the connection of its thread to Postgres, which an earlier test may have opened.
@pytest.mark.django_db(transaction=True)
async def test_a_websocket_reaches_web_and_is_400_at_the_gateway(serve):
    async with serve() as connect:
        connection = await connect()
        await connection.send(upgrade("websocket", more="Origin: https://elsewhere.example\r\n"))
        status, _ = await connection.head()
        # 403: the consumer listens to pages of its own origin only.
        assert status == (400 if serve is wire else 403)


async def test_a_websocket_behind_an_unanswered_request_is_400():
    async with scripted(websockets=True) as (connect, app):
        connection = await connect()
        await connection.send(post(0, path="/wait"), upgrade("websocket"))
        app.go_on.set()
        assert [(await connection.answer())[0] for _ in range(2)] == [200, 400]


# Order, and what else a proxy in front could be deceived with.


def without_request_id(head):
    return re.sub(rb"x-request-id: \w+\r\n", b"", head)


async def test_head_is_answered_in_order(serve):
    async with serve() as connect:
        connection = await connect()
        await connection.send(HEAD)
        status, head = await connection.head()
        assert (status, b"content-length: " in head) == (200, True)
        head = without_request_id(head)
        await connection.send(HEAD + GET + HEAD + HEAD + GET)
        for sent in (HEAD, GET, HEAD, HEAD, GET):
            if sent is HEAD:
                found, other = await connection.head()
                assert (found, without_request_id(other)) == (status, head)
            else:
                assert (await connection.answer())[2].startswith(b'{"status":')


async def test_fields_after_a_body_are_400(serve):
    """uvicorn adds them to the head, which a proxy in front has checked without them."""
    async with serve() as connect:
        connection = await connect()
        await connection.send(
            post(0, "Transfer-Encoding: chunked").replace(b"Content-Length: 0\r\n", b"")
            + b"1\r\n{\r\n0\r\nAuthorization: Bearer fb_a_b\r\n\r\n"
        )
        assert (await connection.answer())[0] == 400
        assert await connection.is_closed()


NOT_HTTP = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": post(2, "Content-Length: 3"),
    "a length and chunks": post(2, "Transfer-Encoding: chunked"),
    "a broken header": GET.replace(b"Host: localhost", b"Host: local\rhost"),
}


@pytest.mark.parametrize("name", NOT_HTTP)
async def test_what_is_not_http_is_400(serve, name):
    async with serve() as connect:
        connection = await connect()
        await connection.send(NOT_HTTP[name])
        assert (await connection.answer())[0] == 400
        assert await connection.is_closed()


async def test_a_refusal_waits_for_the_answers_before_it():
    async with scripted() as (connect, app):
        connection = await connect()
        await connection.send(post(0, path="/wait"), GET, b"nonsense\r\n\r\n", GET)
        app.go_on.set()
        assert [(await connection.answer())[0] for _ in range(3)] == [200, 200, 400]
        assert await connection.is_closed()


async def test_a_refusal_waits_for_a_mistake_to_be_answered():
    async with scripted() as (connect, _):
        connection = await connect()
        await connection.send(post(0, path="/raise"), b"nonsense\r\n\r\n")
        assert (await connection.answer())[0] == 500
        assert await connection.is_closed()


async def test_a_client_may_close_its_side_and_wait():
    async with scripted() as (connect, app):
        connection = await connect()
        connection.writer.write(post(0, path="/wait") + GET)
        connection.writer.write_eof()
        await eventually(lambda: app.waiting and connect.made[0]._ended)
        app.go_on.set()
        assert [(await connection.answer())[0] for _ in range(2)] == [200, 200]
        assert await connection.is_closed()


async def test_a_client_that_closes_its_side_amid_a_request_is_let_go():
    async with scripted() as (connect, app):
        connection = await connect()
        connection.writer.write(post(10))
        connection.writer.write_eof()
        assert await connection.is_closed()
        await eventually(lambda: app.left == 1)
