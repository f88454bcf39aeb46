"""Who may send a large body is decided from its head: finding 11 of docs/security_review.md."""

import asyncio
import json
from contextlib import asynccontextmanager, suppress

import pytest
from asgiref.sync import sync_to_async

from controlplane.accounts.owned_tokens import TokenEnded
from controlplane.api.http import large_bodies
from controlplane.api.http.body_limit import MAX_BODY, MAX_OF_PLAN, BodyLimit
from controlplane.management.commands import web
from tests.controlplane.calling import token_of
from tests.controlplane.gateway.wire import served
from tests.controlplane.http_limits.clients import refusals
from tests.people import create_person
from tests.waiting import eventually

pytestmark = pytest.mark.django_db(transaction=True)

SIZE = 60 * MAX_BODY
PATHS = [
    "/import",
    "/env/staging/import",
    *(f"/api/v1/production/{name}" for name in ("plan", "apply", "what-if")),
]


class Reader:
    """Stands for Django: counts what it is given, and can be made to wait."""

    def __init__(self):
        self.begun = self.bytes = 0
        self.go_on = asyncio.Event()
        self.go_on.set()

    async def __call__(self, scope, receive, send):
        self.begun += 1
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            self.bytes += len(message["body"])
            more = message["more_body"]
        await self.go_on.wait()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


@asynccontextmanager
async def reading():
    reader = Reader()
    async with served(web.server_config(BodyLimit(reader))) as connect:
        yield connect, reader


def head(path, *fields, size=SIZE, sized=True):
    framing = f"Content-Length: {size}" if sized else "Transfer-Encoding: chunked"
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/yaml", framing, *fields]
    return "\r\n".join([*lines, "", ""]).encode()


@sync_to_async
def bearer(role, **fields):
    return f"Authorization: Bearer {token_of(role, **fields)}"


@sync_to_async
def cookie(name, **fields):
    """The session of a person who has just logged in."""
    from django.conf import settings
    from django.test import Client

    from controlplane.accounts.models import User

    browser = Client()
    browser.force_login(User.objects.filter(username=name).first() or create_person(name, **fields))
    return f"Cookie: {settings.SESSION_COOKIE_NAME}={browser.cookies[settings.SESSION_COOKIE_NAME].value}"


UNKNOWN_CALLERS = {
    "nothing": [],
    "a token that is none": ["Authorization: Bearer fb_a_b"],
    "an unknown token": [f"Authorization: Bearer fb_{'0' * 16}_{'0' * 64}"],
    "another scheme": ["Authorization: Basic YWRhOmFkYQ=="],
    "a forged session": ["Cookie: fuseboard=e30:1:forged; __Host-fuseboard=e30:1:forged"],
    "bytes": ["Authorization: Bearer \u00ff\u00fe", "Cookie: \u00ff"],
}


@pytest.mark.parametrize("sized", [True, False], ids=["sized", "chunks"])
@pytest.mark.parametrize("who", UNKNOWN_CALLERS)
@pytest.mark.parametrize("path", PATHS)
async def test_finding_11_an_unknown_caller_gets_401_before_the_body(production, path, who, sized):
    async with reading() as (connect, reader):
        connection = await connect()
        connection.writer.write(head(path, *UNKNOWN_CALLERS[who], sized=sized))
        status, fields, body = await connection.answer()
        assert (status, json.loads(body)["status"]) == (401, 401)
        assert b"www-authenticate: bearer" in fields
        assert (reader.begun, reader.bytes) == (0, 0)


async def test_finding_11_the_whole_body_may_follow_and_is_discarded(production):
    """A client that sends first and reads then must get the answer, not a reset."""
    async with reading() as (connect, reader):
        connection = await connect()
        connection.writer.write(head("/import"))
        with suppress(ConnectionError):
            for _ in range(60):
                connection.writer.write(b"x" * MAX_BODY)
                await connection.writer.drain()
        assert (await connection.answer())[0] == 401
        assert await connection.is_closed()
        assert reader.bytes == 0


@pytest.mark.parametrize("path", PATHS)
async def test_finding_11_who_may_not_edit_is_403_before_any_of_the_body_is_sent(production, path):
    senders = [await bearer("viewer"), await bearer("operator"), await cookie("vera"), await cookie("olga")]
    async with reading() as (connect, reader):
        for sender in senders:
            connection = await connect()
            connection.writer.write(head(path, sender))
            assert (await connection.answer())[0] == 403
        assert reader.begun == 0


async def test_a_role_in_another_environment_is_403(production):
    production_token = await bearer("admin", environment="production")
    person = await cookie("ada", environment_roles={"staging": "operator"})
    async with reading() as (connect, reader):
        for path, sender in (("/api/v1/staging/plan", production_token), ("/env/staging/import", person)):
            connection = await connect()
            connection.writer.write(head(path, sender))
            assert (await connection.answer())[0] == 403
        assert reader.begun == 0


async def test_a_token_whose_owner_is_deactivated_is_401(production, monkeypatch):
    def ended(token):
        raise TokenEnded("Its owner, ada, is deactivated.")

    monkeypatch.setattr("controlplane.accounts.tokens.user_of", ended)
    async with reading() as (connect, reader):
        connection = await connect()
        connection.writer.write(head("/import", "Authorization: Bearer one"))
        status, _, body = await connection.answer()
        assert (status, reader.begun) == (401, 0)
        assert json.loads(body)["detail"].startswith(
            "Its owner, ada, is deactivated. This token has ended. Ask an"
        )


async def test_a_session_does_not_count_beside_a_wrong_token(production):
    async with reading() as (connect, _):
        connection = await connect()
        connection.writer.write(head("/import", "Authorization: Bearer wrong", await cookie("ada")))
        assert (await connection.answer())[0] == 401


async def test_an_ended_session_is_401(production):
    from controlplane.accounts.models import Login

    sender = await cookie("ada")
    await sync_to_async(Login.objects.all().delete)()
    async with reading() as (connect, _):
        connection = await connect()
        connection.writer.write(head("/import", sender))
        assert (await connection.answer())[0] == 401


@pytest.mark.parametrize("path", PATHS)
async def test_who_may_edit_sends_large_bodies(production, path):
    for sender in (await bearer("admin"), await cookie("ada")):
        async with reading() as (connect, reader):
            connection = await connect()
            await connection.send(head(path, sender, size=3 * MAX_BODY), b"x" * 3 * MAX_BODY)
            assert (await connection.answer())[0] == 200
            assert reader.bytes == 3 * MAX_BODY
            connection.writer.write(head(path, sender, size=MAX_OF_PLAN + 1))
            assert (await connection.answer())[0] == 413


def chunks(size):
    return b"%x\r\n%s\r\n0\r\n\r\n" % (size, b"x" * size)


async def test_a_small_body_in_chunks_is_read_of_every_known_caller(production, monkeypatch):
    monkeypatch.setattr(large_bodies, "MAX_AT_ONCE", 1)
    viewer, admin, other = await bearer("viewer"), await bearer("admin"), await bearer("admin")
    async with reading() as (connect, reader):
        connection = await connect()
        await connection.send(head(PATHS[-1], viewer, sized=False), chunks(1_000))
        assert (await connection.answer())[0] == 200
        assert reader.bytes == 1_000
        # More than 1 MiB of it is refused, for the same reason as with a length.
        await connection.send(head(PATHS[-1], viewer, sized=False), chunks(MAX_BODY + 1))
        status, _, body = await connection.answer()
        assert (status, "Your role" in json.loads(body)["detail"]) == (403, True)
        # Two large files of others do not matter for it.
        first = await connect()
        first.writer.write(head("/import", admin, size=2 * MAX_BODY))
        await eventually(lambda: reader.begun == 3)
        for sender, expected in ((admin, 429), (other, 503)):
            small, large = await connect(), await connect()
            await small.send(head("/import", sender, sized=False), chunks(1_000))
            assert (await small.answer())[0] == 200
            await large.send(head("/import", sender, sized=False), chunks(MAX_BODY + 1))
            assert (await large.answer())[0] == expected


async def test_small_bodies_and_other_paths_are_not_asked(production):
    """Django answers them, with a page or a problem."""
    async with reading() as (connect, reader):
        connection = await connect()
        await connection.send(head("/import", size=MAX_BODY), b"x" * MAX_BODY)
        assert (await connection.answer())[0] == 200
        await connection.send(head("/login", size=2), b"{}")
        assert (await connection.answer())[0] == 200
        assert reader.begun == 2


async def test_a_caller_sends_one_large_body_at_a_time(production):
    admin, ada = await bearer("admin"), await cookie("ada")
    async with reading() as (connect, reader):
        first, second, other = await connect(), await connect(), await connect()
        first.writer.write(head("/import", admin, size=2 * MAX_BODY))
        await eventually(lambda: reader.begun)
        second.writer.write(head("/api/v1/production/apply", admin))
        status, fields, body = await second.answer()
        assert (status, b"retry-after: 5" in fields) == (429, True)
        assert "Another large file of yours" in json.loads(body)["detail"]
        await other.send(head("/import", ada, size=2 * MAX_BODY), b"x" * 2 * MAX_BODY)
        assert (await other.answer())[0] == 200
        await first.send(b"x" * 2 * MAX_BODY)
        assert (await first.answer())[0] == 200
        await first.send(head("/import", admin, size=2 * MAX_BODY), b"x" * 2 * MAX_BODY)
        assert (await first.answer())[0] == 200


async def test_a_client_that_leaves_frees_its_place(production):
    admin = await bearer("admin")
    async with reading() as (connect, reader):
        first = await connect()
        first.writer.write(head("/import", admin, size=2 * MAX_BODY))
        await eventually(lambda: reader.begun)
        first.writer.close()

        async def status() -> int:
            again = await connect()
            await again.send(head("/import", admin, size=2 * MAX_BODY), b"x" * 2 * MAX_BODY)
            return (await again.answer())[0]

        await eventually(status, "its place is free", accept=lambda found: found == 200)


async def test_a_process_reads_few_large_bodies_at_once(production, monkeypatch):
    monkeypatch.setattr(large_bodies, "MAX_AT_ONCE", 1)
    async with reading() as (connect, reader):
        first, second = await connect(), await connect()
        first.writer.write(head("/import", await bearer("admin")))
        await eventually(lambda: reader.begun)
        second.writer.write(head("/import", await bearer("admin")))
        assert (await second.answer())[0] == 503


async def test_a_refused_body_is_counted(production):
    from controlplane.asgi import application

    before = refusals(401)
    async with served(web.server_config(application)) as connect:
        connection = await connect()
        connection.writer.write(head("/import"))
        assert (await connection.answer())[0] == 401
    assert refusals(401) == before + 1
