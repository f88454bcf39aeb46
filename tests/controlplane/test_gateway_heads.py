"""A head that was read before is not read again, and nobody can tell."""

import asyncio
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controlplane.gateway.app import GatewayApp
from controlplane.gateway.wire import known_heads
from controlplane.gateway.wire.known_heads import Heads
from controlplane.gateway.wire.tokens import Token, TokenBook
from tests.controlplane.gateway import TurnedClock, beat, known_tokens, ready_gateway
from tests.controlplane.wire import BEARER, JSON, request, wire
from tests.waiting import eventually

GOOD = [msgspec.json.encode(beat(f"pod-{n}", sequence=1_000 + n)) for n in range(4)]
SHORT = msgspec.json.encode(beat("pod", sequence=1_000))
GET = f"GET /readyz HTTP/1.1\r\nHost: gateway\r\n{BEARER}\r\n\r\n".encode()
CHUNKED = request(b"", "Transfer-Encoding: chunked", length=False) + b"%x\r\n%b\r\n0\r\n\r\n" % (
    len(SHORT),
    SHORT,
)

#: Most have the same head.
ASKED = st.sampled_from(
    [
        *map(request, GOOD),
        *map(request, GOOD),
        request(SHORT),
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
#: After these the gateway hangs up.
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
    """How many requests, and the pieces that their bytes are sent in."""
    asked = [*draw(st.lists(ASKED, min_size=2, max_size=8)), draw(LAST)]
    data = b"".join(asked)
    ends = [sum(map(len, asked[:n])) for n in range(1, len(asked))]
    heads_end = [at + 4 for at in range(len(data)) if data.startswith(b"\r\n\r\n", at)]
    cut = st.sampled_from([*ends, *ends, *heads_end]) | st.integers(1, len(data) - 1)
    cuts = sorted({0, len(data), *draw(st.lists(cut, max_size=2 * len(asked)))})
    return len(asked) - (not asked[-1]), [data[a:b] for a, b in pairwise(cuts)]


async def converse(conversation, *, forgetful):
    count, pieces = conversation
    told = []
    async with wire(ready_gateway(token_burst=10_000)) as connect:
        if forgetful:
            connect.app.recall = lambda head: None
        for _ in range(2):  # the second connection begins with what the first one taught
            connection = await connect()
            await connection.send(*pieces)
            told += [await connection.answer() for _ in range(count)]
    return [(status, sorted(head.splitlines()), body) for status, head, body in told]


@settings(max_examples=150)
@given(conversations())
def test_every_conversation_is_the_same_with_and_without_memory(conversation):
    remembered = asyncio.run(converse(conversation, forgetful=False))
    assert remembered == asyncio.run(converse(conversation, forgetful=True))


async def taught(connect, gateway, monkeypatch):
    """A connection of which the gateway knows the head, and would fail to read it again."""
    connection = await connect()
    await connection.send(request(SHORT))
    assert (await connection.answer())[0] == 200
    monkeypatch.setattr(gateway.tokens, "check", lambda *_: pytest.fail("the head was read again"))
    return connection


async def test_it_is_known_on_every_connection_and_for_every_pod(monkeypatch):
    gateway = ready_gateway()
    async with wire(gateway) as connect:
        first = await taught(connect, gateway, monkeypatch)
        head, body = request(SHORT.replace(b"pod", b"web")).split(b"\r\n\r\n")
        for connection in (first, await connect()):
            await connection.send(head + b"\r\n\r\n" + body)
            assert (await connection.answer())[0] == 200
            await connection.send(head + b"\r\n\r\n", body)
            assert (await connection.answer())[0] == 200
    assert set(gateway.fleet("production").servers) == {"pod", "web"}


async def test_a_known_head_waits_for_the_answer_before_it(monkeypatch):
    gateway, respond = ready_gateway(), GatewayApp._respond

    async def late(*given):
        await asyncio.sleep(0.05)
        await respond(*given)

    monkeypatch.setattr(GatewayApp, "_respond", late)
    async with wire(gateway) as connect:
        connection = await connect()
        await connection.send(request(SHORT), GET, request(SHORT))
        answers = [await connection.answer() for _ in range(3)]
    assert [b"server_time_us" in body for _, _, body in answers] == [True, False, True]


async def test_a_known_head_whose_body_is_late_is_waited_for_and_not_for_ever():
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    async with wire(gateway) as connect:
        never, late = await connect(), await connect()
        for connection in (never, late):
            await connection.send(request(SHORT))
            assert (await connection.answer())[0] == 200
            await connection.send(request(SHORT)[: -len(SHORT)])
        await eventually(lambda: len(gateway.readers._since) == 2)
        await late.send(SHORT)
        assert (await late.answer())[0] == 200
        clock.turn(60)
        gateway.readers.sweep()
        assert (await never.answer())[0] == 408
        assert await never.is_closed()


async def test_what_is_sent_before_a_head_opens_no_door():
    """Empty lines before a request are allowed; they must not become a head that needs no token."""
    async with wire() as connect:
        connection = await connect()
        await connection.send(b"\r\n\r\n" + request(SHORT))
        assert (await connection.answer())[0] == 200
        await connection.send(b"\r\n\r\n" + SHORT)
        assert (await connection.answer())[0] == 400
        assert await connection.is_closed()


async def test_a_connection_is_not_at_rest_while_a_body_is_on_its_way():
    async with wire() as connect:
        connection = await connect()
        await connection.send(request(SHORT))
        assert (await connection.answer())[0] == 200
        await connection.send(request(SHORT)[: -len(SHORT)])
        [served] = connect.served
        served._rested_at = float("-inf")
        served.timeout_keep_alive_handler()
        await connection.send(SHORT)
        assert (await connection.answer())[0] == 200


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
async def test_what_changed_since_is_seen(change, status):
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    async with wire(gateway) as connect:
        connection = await connect()
        await connection.send(request(SHORT))
        assert (await connection.answer())[0] == 200
        change(gateway, clock)
        await connection.send(request(SHORT))
        assert (await connection.answer())[0] == status


def test_memory_is_bounded_and_holds_no_secret(monkeypatch):
    monkeypatch.setattr(known_heads, "MOST_HEADS", 3)
    book = TokenBook(rate_per_s=1.0, burst=1)
    memory = Heads(book)
    for number in range(4):
        memory.keep(b"Authorization: secret %d" % number, Token("sel", b"", "production"), number)
    assert memory.find(b"Authorization: secret 0") is None
    assert memory.find(b"Authorization: secret 3").length == 3
    assert "secret" not in repr(memory._known)
    book.replace(known_tokens())
    assert memory.find(b"Authorization: secret 3") is None
