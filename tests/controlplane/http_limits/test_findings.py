"""The attacks of docs/security_review.md on framing and deadlines, sent as bytes, at gateway and web."""

from contextlib import suppress

import pytest

from tests.controlplane.gateway.wire import let_pass, request, wire
from tests.controlplane.http_limits.clients import GET, HEAD, refusals, web_wire
from tests.controlplane.http_limits.test_http_order import upgrade
from tests.waiting import eventually

SMUGGLED = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"


@pytest.mark.parametrize("protocol", ["foo", "h2c", "websocket"])
@pytest.mark.parametrize("path", ["/readyz", "/agent/v1/sync", "/api/v1/production/plan"])
async def test_finding_4_the_body_of_an_upgrade_is_never_a_request(serve, protocol, path):
    """The body comes in a segment of its own, after the head was read."""
    head = upgrade(protocol, start=f"POST {path} HTTP/1.1", more=f"Content-Length: {len(SMUGGLED)}\r\n")
    async with serve() as connect:
        connection = await connect()
        connection.writer.write(head)
        assert (await connection.answer())[0] == 400
        with suppress(ConnectionError):
            await connection.send(SMUGGLED, GET)
        assert await connection.is_closed()


async def test_finding_9_a_head_is_answered_before_the_request_behind_it():
    async with wire() as connect:
        connection = await connect()
        await connection.send(HEAD)
        assert (await connection.head())[0] == 200
        await connection.send(HEAD + request() + HEAD)
        assert (await connection.head())[0] == 200
        status, _, body = await connection.answer()
        assert (status, b'"next_ms"' in body) == (200, True)
        assert (await connection.head())[0] == 200


async def test_finding_10_silent_and_trickling_connections_end(serve):
    head_s, trickle = 60.0, b"GET /healthz HTTP/1.1\r\nX: yyyy"
    async with serve(head_s=head_s) as connect:
        silent = [await connect() for _ in range(15)]
        slow = [await connect() for _ in range(15)]
        await eventually(lambda: len(connect.made) == 30)
        for letter in trickle:
            for connection in slow:
                await connection.send(bytes([letter]))
            for protocol in connect.made:
                let_pass(protocol, head_s / len(trickle))
        for connection in silent:
            assert await connection.is_closed()
        for connection in slow:
            assert (await connection.answer())[0] == 408


@pytest.mark.parametrize(
    "more", ["".join(f"X-{number}: a\r\n" for number in range(200)), f"X: {'a' * 9_000}\r\n"]
)
async def test_a_socket_with_a_head_that_its_parser_refuses_ends(more):
    before = refusals(400)
    async with web_wire() as connect:
        connection = await connect()
        await connection.send(upgrade("websocket", more=more))
        assert (await connection.answer())[0] == 400
        assert await connection.is_closed()
    assert refusals(400) == before + 1


async def test_web_counts_what_it_refuses_before_django():
    before = refusals(400)
    async with web_wire() as connect:
        connection = await connect()
        await connection.send(b"nonsense\r\n\r\n")
        assert (await connection.answer())[0] == 400
    assert refusals(400) == before + 1


async def test_finding_12_no_answer_names_the_server(serve):
    async with serve() as connect:
        connection = await connect()
        await connection.send(GET)
        assert b"\r\nserver:" not in (await connection.answer())[1]


@pytest.mark.parametrize("path", ["/ws/other", "/", "/ws/live/", "/%0a", "/ws/live%00"])
async def test_finding_12_a_socket_to_an_unknown_path_is_refused_without_a_stack_trace(
    path, monkeypatch, caplog
):
    from controlplane.asgi import application

    monkeypatch.setattr(application.application_mapping["websocket"], "allowed_origins", ["http://here"])
    here = "Origin: http://here\r\n"
    async with web_wire() as connect:
        known = await connect()
        await known.send(upgrade("websocket", more=here))
        assert (await known.head())[0] == 101
        unknown = await connect()
        await unknown.send(upgrade("websocket", start=f"GET {path} HTTP/1.1", more=here))
        assert (await unknown.head())[0] == 403
        assert await unknown.is_closed()
    assert not [record for record in caplog.records if record.exc_info]
