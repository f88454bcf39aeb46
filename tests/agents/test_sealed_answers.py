"""Kept answers are sealed: a pod of another service, with the same user of Redis, cannot make one."""

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, AlreadyDone
from fuseboard.contract import keys
from fuseboard.contract.seal_keys import SealKey
from fuseboard.integrations.idempotency import Kept
from fuseboard.reporting import seals
from fuseboard.reporting.seals import Seals
from tests.agents.gateways import FakeGateway, gateway_running
from tests.agents.shop import Shop, client_of, order
from tests.contract.compat.release import python_path, source
from tests.waiting import eventually

RECORD, SECOND = (keys.idempotency("production", "acme", "POST", "/orders", f"order-{n}") for n in (1, 2))
ONE, TWO, THREE = (SealKey(id=bytes([n]) * 4, key=bytes([n]) * 32) for n in (1, 2, 3))
EVIL = SealKey(id=ONE.id, key=bytes(32))
PLANTED = msgspec.msgpack.encode(Kept(201, [], b"evil"))
#: The newest version before answers were sealed.
BEFORE = "239105b8"


#: Most tests of the agent run without the package. test_sealed_answers_acl.py of the control plane needs it.
HOW = ["signed", *(["encrypted"] if find_spec("cryptography") else [])]


@pytest.fixture(params=HOW)
def how(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """With the package ``cryptography``, and without it."""
    forget_package()
    if request.param == "signed":
        monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    yield str(request.param)
    forget_package()


def forget_package() -> None:
    for cached in (seals._ciphers, seals._cipher_of, seals._log_readable):
        cached.cache_clear()


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with gateway_running() as gateway:
        gateway.seal_keys = (ONE,)
        yield gateway


@asynccontextmanager
async def pod(redis_url: str, url: str, **more: Any) -> AsyncIterator[Agent]:
    settings = AgentSettings(
        redis_url=redis_url, url=url, token="fb_test", service="shop", server="shop-1", **more
    )
    async with Agent(settings=settings) as agent:
        yield agent


@asynccontextmanager
async def shopping(redis_url: str, gateway: FakeGateway, shop: Shop, **more: Any) -> AsyncIterator[Any]:
    async with pod(redis_url, gateway.url, **more) as agent, client_of(shop, agent) as client:
        yield client


async def test_an_answer_is_repeated_by_another_pod_and_cannot_be_read_in_redis(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, how: str
) -> None:
    shop = Shop()
    shop.handler = secret
    async with shopping(redis_url, gateway, shop) as client:
        assert (await order(client)).content == b"the card ends with 4242"
    async with shopping(redis_url, gateway, shop) as other:
        again = await order(other)
    assert (again.status_code, again.content, shop.runs) == (201, b"the card ends with 4242", 1)
    record = limits.hgetall(RECORD)
    assert record[b"answer"] == b"", "where an earlier version looks"
    assert (b"4242" in record[b"sealed"]) == (how == "signed")


async def secret(_: Any) -> tuple[int, bytes]:
    return 201, b"the card ends with 4242"


def sealed_by(key: SealKey, about: str = f"{RECORD}\n", text: bytes = PLANTED) -> bytes:
    made = Seals(None, expected=True)
    made.take((key,))
    return made.seal(about.encode(), text)[0]


async def test_a_planted_answer_is_refused_and_nothing_runs_again(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop()
    async with shopping(redis_url, gateway, shop) as client:
        await order(client)
        own = limits.hget(RECORD, "sealed")
        fingerprint = limits.hget(RECORD, "print").decode()
        about = f"{RECORD}\n{fingerprint}"
        for planted in (
            {"sealed": PLANTED},
            {"sealed": sealed_by(EVIL, about)},
            {"sealed": sealed_by(TWO, about)},
            {"sealed": sealed_by(ONE, f"{SECOND}\n{fingerprint}")},
            {"sealed": sealed_by(ONE, f"{RECORD}\n{'0' * 64}")},
            {"sealed": own[:-1]},
            {"sealed": own[:-1] + bytes([own[-1] ^ 1])},
            {"sealed": (b"s" if own[:1] == b"e" else b"e") + own[1:]},
            *({"sealed": own[:length]} for length in (0, 1, 4, 5, 6, 17, 36, 37)),
        ):
            limits.hset(RECORD, mapping=planted)
            answer = await order(client)
            assert (answer.status_code, shop.runs) == (409, 1), planted
            assert answer.json()["type"] == "urn:fuseboard:problem:idempotency-done"
        # As an earlier version stores an answer.
        limits.hdel(RECORD, "sealed")
        limits.hset(RECORD, "answer", PLANTED)
        assert (await order(client)).status_code == 409
        limits.hset(RECORD, "sealed", own)
        assert (await order(client)).content == b"order 1", "only its own is repeated"
    assert "seals.refused" in caplog.text


async def test_a_result_of_once_is_sealed_too(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, how: str
) -> None:
    async with pod(redis_url, gateway.url) as agent:
        async with agent.once("order-paid", "evt-1") as work:
            work.keep({"card": "4242"})
        with pytest.raises(AlreadyDone) as done:
            async with agent.once("order-paid", "evt-1"):
                pytest.fail("entered")
        assert done.value.result == {"card": "4242"}
        [record] = limits.keys("*:idempotency")
        limits.hset(record, "sealed", b'{"card": "evil"}')
        with pytest.raises(AlreadyDone) as planted:
            async with agent.once("order-paid", "evt-1"):
                pytest.fail("entered")
        assert planted.value.result is None


async def test_an_answer_without_its_key_is_counted_for_operators(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, how: str
) -> None:
    """A log line alone stays unread."""
    shop = Shop()
    async with shopping(redis_url, gateway, shop) as client:
        assert (await order(client)).status_code == 201
    gateway.seal_keys = (TWO,)
    async with pod(redis_url, gateway.url) as agent, client_of(shop, agent) as client:
        assert (await order(client)).status_code == 409
        assert agent.resilience()["once"]["unsealed"] == 1
    assert shop.runs == 1


async def test_during_a_rotation_the_old_key_opens_and_the_new_one_seals(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, how: str
) -> None:
    shop = Shop()
    async with shopping(redis_url, gateway, shop) as early:
        await order(early)
        gateway.seal_keys = (TWO, ONE)
        async with shopping(redis_url, gateway, shop) as late:
            assert (await order(late)).content == b"order 1"
            await order(late, **{"idempotency-key": "order-2"})
            assert limits.hget(SECOND, "sealed")[1:5] == TWO.id
    gateway.seal_keys = (THREE, TWO)
    async with shopping(redis_url, gateway, shop) as last:
        assert (await order(last)).status_code == 409, "the key before the last is not accepted any more"
        assert (await order(last, **{"idempotency-key": "order-2"})).content == b"order 2"
    assert shop.runs == 2


async def test_a_pod_uses_the_keys_of_its_last_run_while_no_gateway_answers(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, tmp_path: Path, how: str
) -> None:
    shop = Shop()
    async with shopping(redis_url, gateway, shop, state_dir=tmp_path / "state") as client:
        await order(client)
    [kept] = (tmp_path / "state").glob("*.keys")
    assert kept.stat().st_mode & 0o777 == 0o600
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    gateway.url = "http://127.0.0.1:9"
    async with shopping(redis_url, gateway, shop, state_dir=tmp_path / "state") as client:
        assert (await order(client)).content == b"order 1"
        await order(client, **{"idempotency-key": "order-2"})
        assert (await order(client, **{"idempotency-key": "order-2"})).content == b"order 2"


@pytest.mark.parametrize(
    "content", [b"", b"no keys", b"[{}]", b"[", b'[{"id":"AAAA","key":"AAAA"}]', b"\xff" * 9]
)
async def test_a_damaged_file_of_keys_is_left_and_replaced(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "production@shop.keys"
    path.write_bytes(content)
    shop = Shop()
    async with shopping(redis_url, gateway, shop, state_dir=tmp_path) as client:
        await order(client)
        assert (await order(client)).content == b"order 1"
    assert msgspec.json.decode(path.read_bytes(), type=tuple[SealKey, ...]) == (ONE,)


async def test_without_a_key_yet_no_answer_is_kept_and_nothing_runs_again(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway
) -> None:
    gateway.url, shop = "http://127.0.0.1:9", Shop()
    async with shopping(redis_url, gateway, shop) as client:
        await order(client)
        assert limits.hget(RECORD, "answer") == b""
        assert ((await order(client)).status_code, shop.runs) == (409, 1)
        limits.hset(RECORD, "answer", PLANTED)
        assert (await order(client)).status_code == 409, "a pod without a key believes no answer"


def loaded() -> tuple[int, int]:
    """How many ciphers there are, and how many texts had to wait until the package was loaded."""
    return seals._cipher_of.cache_info().currsize, seals._ciphers.cache_info().misses


def test_the_package_is_loaded_with_the_keys_and_not_with_the_first_text(
    tmp_path: Path, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    first = Seals(path, expected=True)
    first.take((ONE, TWO))
    before = loaded()
    assert before == (2, 1)
    assert "seals.readable" not in caplog.text, "this pod keeps no answers"
    first.seal(b"about", b"text")
    first.seal(b"about", b"text")
    assert loaded() == before
    assert caplog.text.count("seals.readable") == (how == "signed")
    first.store()
    forget_package()
    again = Seals(path, expected=True)
    again.read()
    assert loaded() == before


async def test_a_running_pod_has_the_package_before_its_first_answer(
    redis_url: str, gateway: FakeGateway, how: str
) -> None:
    async with pod(redis_url, gateway.url):
        # A heartbeat has its own thread.
        await eventually(lambda: loaded() == (1, 1))


async def test_with_an_earlier_control_plane_answers_are_kept_as_before(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway
) -> None:
    gateway.seal_keys, shop = (), Shop()
    async with shopping(redis_url, gateway, shop) as client:
        await order(client)
        assert b"order 1" in limits.hget(RECORD, "answer")
        assert (await order(client)).content == b"order 1"


def test_a_control_plane_that_goes_back_does_not_undo_the_seal() -> None:
    made = Seals(None, expected=True)
    made.take((ONE,))
    made.take(())
    text, sealed = made.seal(b"about", b"text")
    assert (sealed, made.open(b"about", text), made.open(b"about", b"text")) == (True, b"text", b"")


def test_keys_are_in_no_log_and_no_text() -> None:
    assert "***" in repr(ONE)
    assert repr(ONE.key) not in repr((ONE, TWO))


_EARLIER = """
import asyncio, sys
from fuseboard import Agent, AgentSettings
from fuseboard.integrations.asgi_idempotency import IdempotencyMiddleware

SCOPE = {"type": "http", "method": "POST", "path": "/orders", "query_string": b"",
         "headers": [(b"idempotency-key", sys.argv[2].encode()), (b"content-type", b"text/plain")]}

async def order(scope, receive, send):
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"an earlier pod"})

async def main():
    async def receive():
        return {"type": "http.request", "body": b"one book"}
    async def send(message):
        print(message.get("status", ""), message.get("body", b"").decode())
    async with Agent(settings=AgentSettings(redis_url=sys.argv[1], server="old")) as agent:
        await IdempotencyMiddleware(order, agent, lambda scope: "acme")(dict(SCOPE), receive, send)

asyncio.run(main())
"""


async def test_a_pod_of_an_earlier_version_beside_a_new_one_repeats_nothing_wrong(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, tmp_path: Path
) -> None:
    old, shop = source(BEFORE), Shop()

    async def earlier(key: str) -> str:
        environment = os.environ | {"PYTHONPATH": python_path(old / "agents")}
        command = [sys.executable, "-c", _EARLIER, redis_url, key]
        run = await asyncio.to_thread(
            subprocess.run, command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=30
        )
        assert run.returncode == 0, run.stderr
        return run.stdout

    async with shopping(redis_url, gateway, shop) as client:
        await order(client)
        found = await earlier("order-1")
        assert "409" in found
        assert "Its answer was not kept" in found
        assert "201 \n an earlier pod\n" in await earlier("order-2")
        assert "an earlier pod" in await earlier("order-2"), "it repeats its own"
        answer = await order(client, **{"idempotency-key": "order-2"})
        assert (answer.status_code, shop.runs) == (409, 1)


@pytest.fixture(autouse=True)
def _log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="fuseboard")
