"""``Idempotency-Key`` on an ASGI application: repeats, failures, killed and stopped processes."""

import asyncio
import re
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from controlplane.embedded.valkey import Valkey
from fuseboard import Agent, AgentSettings, Misconfigured
from fuseboard.contract import keys
from fuseboard.integrations.asgi_idempotency import IdempotencyMiddleware
from fuseboard.integrations.idempotency import MAX_ANSWER, MAX_BODY, Kept, Rules
from fuseboard.primitives import idempotency as records
from tests.agents.shop import KEY, Shop, client_of, order
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
RECORD = keys.idempotency("production", "acme", "POST", "/orders", "order-1")


@pytest.fixture
def shop() -> Shop:
    return Shop()


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str) -> AsyncIterator[Agent]:
    async with Agent(settings=AgentSettings(redis_url=redis_url, server="shop-1")) as agent:
        yield agent


@pytest.fixture
async def client(shop: Shop, agent: Agent) -> AsyncIterator[httpx.AsyncClient]:
    async with client_of(shop, agent, lease_s=20) as client:
        yield client


@pytest.fixture
async def hasty(shop: Shop, agent: Agent) -> AsyncIterator[httpx.AsyncClient]:
    """The lease of a process that died is over before the test loses patience."""
    async with client_of(shop, agent, lease_s=2) as client:
        yield client


class TestRepeats:
    async def test_what_became_of_requests_is_counted(self, client: httpx.AsyncClient, agent: Agent):
        await asyncio.gather(*(order(client) for _ in range(3)))
        await order(client)
        assert (await order(client, b"two books")).status_code == 422
        counted = agent.resilience()["once"]
        assert (counted["begun"], counted["mismatched"], counted["lost"], counted["unavailable"]) == (
            1,
            1,
            0,
            0,
        )
        assert counted["running"] + counted["replayed"] == 3

    async def test_a_repeated_request_gets_the_first_answer(self, client: httpx.AsyncClient, shop: Shop):
        first, second = await order(client), await order(client)
        assert (shop.runs, shop.bodies) == (1, [b"one book"])
        assert (first.status_code, first.content) == (second.status_code, second.content) == (201, b"order 1")
        assert not {"idempotency-replayed", "idempotent-replayed"} & set(first.headers)
        assert second.headers["idempotency-replayed"] == second.headers["idempotent-replayed"] == "true"
        assert second.headers["location"] == "/orders/1"
        assert "set-cookie" in first.headers
        assert "set-cookie" not in second.headers

    @pytest.mark.parametrize(
        "other",
        [
            {"content": b"two books"},
            {"params": {"gift": "1"}},
            {"headers": {**KEY, "content-type": "text/csv"}},
        ],
    )
    async def test_another_request_with_the_key_is_refused(
        self, client: httpx.AsyncClient, shop: Shop, other: dict[str, Any]
    ):
        await order(client)
        usual = {"content": b"one book", "headers": {**KEY, "content-type": "text/plain"}}
        answer = await client.post("/orders", **{**usual, **other})
        assert (answer.status_code, shop.runs) == (422, 1)
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["type"] == "urn:fuseboard:problem:idempotency-reused"

    async def test_another_caller_path_or_method_is_another_request(
        self, client: httpx.AsyncClient, shop: Shop
    ):
        await order(client)
        assert (await order(client, **{"x-caller": "globex"})).content == b"order 2"
        await client.post("/refunds", content=b"one book", headers=KEY)
        await client.patch("/orders", content=b"one book", headers=KEY)
        assert shop.runs == 4

    async def test_an_answer_in_parts_is_kept_as_a_whole(self, client: httpx.AsyncClient, shop: Shop):
        shop.parts = 3
        await order(client)
        assert (await order(client)).content == b"order 1" * 3
        assert shop.runs == 1

    async def test_an_answer_that_is_too_long_is_not_kept_and_never_run_again(
        self, client: httpx.AsyncClient, shop: Shop
    ):
        async def long(_: Any) -> tuple[int, bytes]:
            return 200, b"x" * (MAX_ANSWER + 1)

        shop.handler = long
        assert len((await order(client)).content) == MAX_ANSWER + 1
        again = await order(client)
        assert (again.status_code, shop.runs) == (409, 1)
        assert again.json()["type"] == "urn:fuseboard:problem:idempotency-done"
        assert "retry-after" not in again.headers

    async def test_a_full_redis_keeps_no_answers(
        self,
        client: httpx.AsyncClient,
        shop: Shop,
        limits: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        monkeypatch.setattr(records, "FULL", 0.0)
        limits.config_set("maxmemory", 10**12)
        try:
            await order(client)
        finally:
            limits.config_set("maxmemory", 0)
        assert (await order(client)).json()["type"] == "urn:fuseboard:problem:idempotency-done"
        assert shop.runs == 1
        assert "idempotency.full" in caplog.text

    async def test_a_redis_that_is_almost_full_begins_no_request_and_answers_those_that_are_done(
        self,
        client: httpx.AsyncClient,
        shop: Shop,
        agent: Agent,
        limits: redis.Redis,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ):
        await order(client)
        monkeypatch.setattr(records, "NO_MORE", 0.0)
        monkeypatch.setattr(records, "LOOK_S", 0.0)
        limits.config_set("maxmemory", 10**12)
        try:
            assert (await order(client)).content == b"order 1"
            refused = await order(client, **{"idempotency-key": "order-2"})
            assert (refused.status_code, refused.headers["retry-after"], shop.runs) == (503, "1", 1)
            async with client_of(shop, agent, fail_open=True) as careless:
                assert (await order(careless, **{"idempotency-key": "order-2"})).status_code == 201
        finally:
            limits.config_set("maxmemory", 0)
        assert limits.dbsize() == 1 or not limits.exists(RECORD.replace("order-1", "order-2"))
        assert "no new request begins" in caplog.text


class TestKeys:
    async def test_a_quoted_key_is_the_same_key(self, client: httpx.AsyncClient, shop: Shop):
        await order(client)
        await order(client, **{"idempotency-key": '"order-1"'})
        assert shop.runs == 1

    @pytest.mark.parametrize("key", ["", "x" * 256, "two words", "\xfc"])
    async def test_an_invalid_key_is_refused(self, client: httpx.AsyncClient, shop: Shop, key: str):
        answer = await client.post("/orders", headers=[(b"idempotency-key", key.encode("latin-1"))])
        assert (answer.status_code, shop.runs) == (400, 0)

    async def test_two_keys_are_refused(self, client: httpx.AsyncClient, shop: Shop):
        answer = await client.post("/orders", headers=[("idempotency-key", "a"), ("idempotency-key", "b")])
        assert (answer.status_code, shop.runs) == (400, 0)

    async def test_requests_without_need_of_a_key_pass(self, client: httpx.AsyncClient, shop: Shop):
        await client.post("/orders")
        await client.get("/orders", headers=KEY)
        await order(client, **{"x-caller": "unknown"})
        assert (shop.runs, shop.fences) == (3, [0, 0, 0])

    @pytest.mark.parametrize("wrong", [5, "", b"acme"])
    async def test_a_caller_that_is_not_a_text_is_an_error(self, shop: Shop, agent: Agent, wrong: Any):
        app = IdempotencyMiddleware(shop, agent, lambda scope: wrong)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
            with pytest.raises(Misconfigured, match="caller of a request"):
                await order(client)
        assert shop.runs == 0

    async def test_a_required_key_that_is_missing_is_400(self, shop: Shop, agent: Agent):
        async with client_of(shop, agent, required=True) as client:
            answer = await client.post("/orders")
            assert (answer.status_code, shop.runs) == (400, 0)
            assert (await client.get("/orders")).status_code == 201

    async def test_a_long_body_with_a_key_is_413(self, client: httpx.AsyncClient, shop: Shop):
        async def parts() -> AsyncIterator[bytes]:
            for _ in range(17):
                yield b"x" * (MAX_BODY // 16)

        assert (await order(client, b"x" * (MAX_BODY + 1))).status_code == 413
        assert (await client.post("/orders", content=parts(), headers=KEY)).status_code == 413
        assert shop.runs == 0

    @pytest.mark.parametrize(
        "wrong",
        [{"keep_s": 10**6}, {"lease_s": 0}, {"headers": ["Set-Cookie"]}, {"headers": ["Content-Length"]}],
    )
    def test_wrong_rules_raise_at_once(self, wrong: dict[str, Any]):
        with pytest.raises(Misconfigured):
            Rules(**wrong)


class TestAnswersInRedis:
    """Every pod of the environment can write to Redis, so an answer is checked like one from outside."""

    async def test_a_repeated_answer_is_stored_by_no_cache_without_a_rule_of_its_own(
        self, client: httpx.AsyncClient, shop: Shop
    ):
        await order(client)
        assert (await order(client)).headers["cache-control"] == "no-store"
        shop.headers += [(b"cache-control", b"private, max-age=60"), (b"vary", b"Accept, Cookie")]
        for _ in range(2):
            answer = await order(client, **{"idempotency-key": "order-2"})
            assert answer.headers["cache-control"] == "private, max-age=60"
            assert answer.headers["vary"] == "Accept, Cookie"

    async def test_a_planted_answer_has_only_the_headers_that_rules_permit(
        self, client: httpx.AsyncClient, shop: Shop, limits: redis.Redis
    ):
        await order(client)
        headers = [("Set-Cookie", "session=evil"), ("x-admin", "1"), ("content-length", "9"), ("etag", '"1"')]
        planted = Kept(201, headers, b"order 1")
        limits.hset(RECORD, "answer", msgspec.msgpack.encode(planted))
        answer = await order(client)
        assert (answer.status_code, answer.content) == (201, b"order 1")
        assert set(answer.headers) == {
            *("etag", "cache-control", "content-length", "idempotency-replayed", "idempotent-replayed")
        }
        assert answer.headers.get_list("content-length") == ["7"]

    @pytest.mark.parametrize(
        "planted",
        [
            b"\xc1",
            b"no answer",
            b"\x93" * 5_000,
            msgspec.msgpack.encode([201, [], "text"]),
            msgspec.msgpack.encode(["201", [], b""]),
            msgspec.msgpack.encode(Kept(101, [], b"")),
            msgspec.msgpack.encode(Kept(99_999, [], b"")),
            msgspec.msgpack.encode(Kept(201, [("location", "/\r\nset-cookie: session=evil")], b"")),
            msgspec.msgpack.encode(Kept(201, [("location", "/\x00")], b"")),
            msgspec.msgpack.encode(Kept(201, [("location", "/\u2028")], b"")),
            msgspec.msgpack.encode(Kept(201, [("etag\n", "1")], b"")),
            msgspec.msgpack.encode(Kept(201, [("etag: 1\r\nx", "1")], b"")),
            msgspec.msgpack.encode(Kept(201, [], b"x" * (MAX_ANSWER + 1))),
        ],
    )
    async def test_what_no_pod_stores_is_not_repeated_and_nothing_runs_again(
        self,
        client: httpx.AsyncClient,
        shop: Shop,
        limits: redis.Redis,
        planted: bytes,
        caplog: pytest.LogCaptureFixture,
    ):
        await order(client)
        limits.hset(RECORD, "answer", planted)
        answer = await order(client)
        assert (answer.status_code, shop.runs) == (409, 1)
        assert answer.json()["type"] == "urn:fuseboard:problem:idempotency-done"
        assert "the request is done, without" in caplog.text


class TestRuns:
    async def test_a_request_in_progress_is_409(self, client: httpx.AsyncClient, shop: Shop):
        go = asyncio.Event()

        async def slow(_: Any) -> tuple[int, bytes]:
            await go.wait()
            return 200, b"slow"

        shop.handler = slow
        first = asyncio.create_task(order(client))
        await eventually(lambda: shop.runs)
        second = await order(client)
        assert (second.status_code, second.headers["retry-after"]) == (409, "5")
        assert second.json()["type"] == "urn:fuseboard:problem:idempotency-in-progress"
        assert (await order(client, b"two books")).status_code == 422
        go.set()
        assert (await first).content == b"slow"
        assert (await order(client)).content == b"slow"
        assert shop.runs == 1

    async def test_a_failed_request_runs_again_with_a_higher_number(
        self, client: httpx.AsyncClient, shop: Shop
    ):
        async def fails(_: Any) -> tuple[int, bytes]:
            if shop.runs == 1:
                return 500, b"broken"
            raise LookupError

        shop.handler = fails
        assert (await order(client)).status_code == 500
        with pytest.raises(LookupError):
            await order(client)
        shop.handler = shop.created
        assert (await order(client, b"two books")).status_code == 201
        assert (await order(client, b"two books")).headers["idempotency-replayed"] == "true"
        assert shop.runs == 3
        assert 0 < shop.fences[0] < shop.fences[1] < shop.fences[2]

    async def test_keep_chooses_which_answers_end_a_request(self, shop: Shop, agent: Agent):
        async def declined(_: Any) -> tuple[int, bytes]:
            return 402, b"declined"

        shop.handler = declined
        async with client_of(shop, agent, keep=lambda status: status < 500) as client:
            await order(client)
            assert (await order(client)).status_code == 402
        assert shop.runs == 1

    async def test_a_handler_that_blocks_the_loop_keeps_its_lease(
        self, hasty: httpx.AsyncClient, shop: Shop, limits: redis.Redis
    ):
        async def blocks(_: Any) -> tuple[int, bytes]:
            time.sleep(2.5)  # noqa: ASYNC251 - longer than its lease
            assert int(limits.hget(RECORD, "til")) > time.time() * 1_000_000
            return 200, b"done"

        shop.handler = blocks
        assert (await order(hasty)).status_code == 200

    async def test_a_request_that_takes_longer_than_it_is_kept_is_not_forgotten(
        self, shop: Shop, agent: Agent, limits: redis.Redis
    ):
        async def slow(_: Any) -> tuple[int, bytes]:
            limits.pexpire(RECORD, 2_000)
            await eventually(lambda: limits.pttl(RECORD) > 2_000)  # type: ignore[operator] # synchronous
            return 200, b"done"

        async def long(_: Any) -> tuple[int, bytes]:
            assert limits.pttl(RECORD) > 60_000  # type: ignore[operator] # synchronous
            return 200, b"done"

        for handler, lease_s in ((slow, 1), (long, 120)):
            limits.delete(RECORD)
            shop.handler = handler
            async with client_of(shop, agent, keep_s=60, lease_s=lease_s) as client:
                assert (await order(client)).content == b"done"
                assert 0 < limits.pttl(RECORD) <= 60_000  # type: ignore[operator] # synchronous

    async def test_a_cancelled_request_stays_running_until_its_lease_ends(
        self, hasty: httpx.AsyncClient, shop: Shop
    ):
        async def never(_: Any) -> tuple[int, bytes]:
            await asyncio.Event().wait()
            return 200, b""

        shop.handler = never
        first = asyncio.create_task(order(hasty))
        await eventually(lambda: shop.runs)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert (await order(hasty)).status_code == 409
        shop.handler = shop.created
        await eventually(lambda: order(hasty), accept=lambda answer: answer.status_code == 201)
        assert shop.runs == 2


class TestWithoutRedis:
    async def test_a_request_is_refused_or_runs_by_choice(self, shop: Shop, valkey: Valkey):
        async with Agent(settings=AgentSettings(redis_url=valkey.url, server="shop-1")) as agent:
            valkey.stop()
            async with client_of(shop, agent) as careful:
                answer = await order(careful)
                assert (answer.status_code, answer.headers["retry-after"], shop.runs) == (503, "1", 0)
            async with client_of(shop, agent, fail_open=True) as careless:
                assert (await order(careless)).status_code == 201
            assert shop.fences == [0]

    @pytest.mark.usefixtures("usual_answers")
    async def test_an_end_that_redis_misses_is_repeated(self, shop: Shop, valkey: Valkey):
        async def redis_stops(_: Any) -> tuple[int, bytes]:
            assert valkey.process is not None
            valkey.process.send_signal(signal.SIGSTOP)
            return 201, b"order 1"

        shop.handler = redis_stops
        settings = AgentSettings(redis_url=valkey.url, server="shop-1")
        async with Agent(settings=settings) as agent, client_of(shop, agent, lease_s=20) as client:
            assert (await order(client)).status_code == 201
            assert valkey.process is not None
            valkey.process.send_signal(signal.SIGCONT)
            await eventually(lambda: order(client), accept=lambda answer: answer.status_code == 201)
        assert shop.runs == 1


async def test_the_code_of_the_page_works(shop: Shop, agent: Agent):
    page = (ROOT / "docs/primitives.md").read_text()
    code = next(code for code in re.findall(r"^```python\n(.*?)^```$", page, re.M | re.S) if "asgi" in code)
    names: dict[str, Any] = {"app": shop, "agent": agent}
    exec(compile(code, "docs/primitives.md", "exec"), names)  # noqa: S102 - our own page

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await names["app"](scope | {"state": {"customer": "acme"}}, receive, send)

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        assert [(await order(client)).content for _ in range(2)] == [b"order 1"] * 2
