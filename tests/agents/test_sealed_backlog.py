"""A sealed backlog: only pods with the keys of the service read or make its jobs and results."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import redis

from fuseboard import Agent, AgentSettings, Misconfigured, Reason, Refused
from fuseboard.backlog import Job
from fuseboard.backlog import workers as workers_module
from fuseboard.contract import keys
from fuseboard.contract.seal_keys import SealKey
from tests.agents.gateways import FakeGateway, Reply, gateway_running
from tests.agents.published import publish
from tests.agents.test_backlog import POLICY_HERE
from tests.waiting import eventually

ONE, TWO, EVIL = (SealKey(id=bytes([n]) * 4, key=bytes([n]) * 32) for n in (1, 2, 3))
BODY, RESULTS = (keys.backlog("production", "payments", part) for part in ("body", "results"))


@pytest.fixture
def gateway() -> Iterator[FakeGateway]:
    with gateway_running() as gateway:
        gateway.seal_keys = (ONE,)
        gateway.publish(POLICY_HERE, revision=1)
        yield gateway


@asynccontextmanager
async def pod(redis_url: str, url: str, name: str = "shop-1") -> AsyncIterator[Agent]:
    settings = AgentSettings(redis_url=redis_url, url=url, token="fb_test", service="shop", server=name)
    async with Agent(settings=settings) as agent:
        yield agent


async def echo(job: Job) -> bytes:
    return b"charged " + job.payload


@asynccontextmanager
async def working(agent: Agent) -> AsyncIterator[None]:
    backlog = agent.backlog("payments", sealed=True)
    work = asyncio.create_task(backlog.work(echo, workers=2))
    try:
        yield
    finally:
        backlog.stop()
        await work


@pytest.mark.parametrize("payload", [b"the card ends with 4242", b""])
async def test_payloads_and_results_are_sealed_in_redis(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, payload: bytes
) -> None:
    async with pod(redis_url, gateway.url) as client, pod(redis_url, gateway.url, "shop-2") as worker:
        backlog = client.backlog("payments", sealed=True)
        await backlog.submit(payload, job_id="order-17")
        assert limits.hget(BODY, "order-17")[:1] in (b"e", b"s")
        async with working(worker):
            result = await backlog.result("order-17", wait_s=20)
        assert (result.status, result.value) == ("done", b"charged " + payload)
        kept = limits.hget(RESULTS, "order-17").split(b" ", 2)[2]
        assert kept[:1] in (b"e", b"s")
        limits.hset(RESULTS, "order-17", limits.hget(RESULTS, "order-17")[: -len(kept)] + b"charged nothing")
        planted = await backlog.result("order-17")
        assert (planted.status, planted.value, planted.cause) == ("done", b"", workers_module.NOT_SEALED)


async def test_a_planted_job_is_never_handed_out_and_becomes_a_dead_letter(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "RETRY_S", (0.01, 0.01))
    ran: list[bytes] = []

    async def handler(job: Job) -> bytes:
        ran.append(job.payload)
        return b""

    async with pod(redis_url, gateway.url) as agent:
        backlog = agent.backlog("payments", sealed=True)
        for number in range(3):
            await backlog.submit(b"%d" % number, job_id=f"order-{number}")
        own = limits.hget(BODY, "order-0")
        # In clear; and the payload of another job.
        limits.hset(BODY, mapping={"order-1": b"evil", "order-2": own})
        work = asyncio.create_task(backlog.work(handler, workers=2))
        for number in (1, 2):
            dead = await backlog.result(f"order-{number}", wait_s=20)
            assert (dead.status, dead.cause) == ("dead", workers_module.NOT_SEALED)
        assert (await backlog.result("order-0", wait_s=20)).status == "done"
        backlog.stop()
        await work
    assert ran == [b"0"]


async def test_a_worker_with_the_next_key_opens_jobs_of_the_last_one(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway
) -> None:
    async with pod(redis_url, gateway.url) as client:
        backlog = client.backlog("payments", sealed=True)
        await backlog.submit(b"old", job_id="order-17")
        gateway.seal_keys = (TWO, ONE)
        async with pod(redis_url, gateway.url, "shop-2") as worker, working(worker):
            await eventually(lambda: limits.hexists(RESULTS, "order-17"))
            result = await worker.backlog("payments", sealed=True).result("order-17")
            assert result.value == b"charged old"


async def test_without_a_key_a_job_is_refused_and_a_worker_waits_for_the_key(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway
) -> None:
    publish(limits, POLICY_HERE, revision=1)
    async with pod(redis_url, gateway.url) as client:
        await client.backlog("payments", sealed=True).submit(b"old", job_id="order-17")
    attempts: list[int] = []

    async def handler(job: Job) -> bytes:
        attempts.append(job.attempt)
        return b""

    gateway.always = Reply(status=503)
    async with pod(redis_url, gateway.url, "shop-2") as agent:
        backlog = agent.backlog("payments", sealed=True)
        with pytest.raises(Refused) as refused:
            await backlog.submit(b"new")
        assert refused.value.decision.reason is Reason.STORE_UNAVAILABLE
        work = asyncio.create_task(backlog.work(handler, workers=2))
        beats = len(gateway.beats)
        await eventually(lambda: len(gateway.beats) > beats)
        assert (await backlog.depth()).taken == 0
        gateway.always = None
        assert (await backlog.result("order-17", wait_s=20)).status == "done"
        backlog.stop()
        await work
    assert attempts == [1], "waiting costs no try"


async def test_a_sealed_backlog_needs_a_gateway_that_gives_keys(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway
) -> None:
    gateway.seal_keys = ()
    async with pod(redis_url, gateway.url) as agent:
        with pytest.raises(Misconfigured, match="sealed, and no gateway gives keys"):
            await agent.backlog("payments", sealed=True).submit(b"new")
        assert (await agent.backlog("slow").submit(b"open")).new, (
            "a backlog is sealed only when it is asked for"
        )


async def test_a_pod_of_another_service_reads_no_job(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers_module, "RETRY_S", (0.01, 0.01))
    async with pod(redis_url, gateway.url) as client:
        await client.backlog("payments", sealed=True).submit(b"the card", job_id="order-17", max_tries=1)
        gateway.seal_keys = (EVIL,)
        async with pod(redis_url, gateway.url, "other-1") as other, working(other):
            found = await client.backlog("payments", sealed=True).result("order-17", wait_s=20)
            assert (found.status, found.value) == ("dead", b"")


async def test_a_sealed_worker_without_keys_runs_no_job_and_believes_no_result(
    limits: redis.Redis, redis_url: str, gateway: FakeGateway
) -> None:
    gateway.seal_keys = ()
    ran: list[bytes] = []

    async def handler(job: Job) -> bytes:
        ran.append(job.payload)
        return b""

    async with pod(redis_url, gateway.url) as other, pod(redis_url, gateway.url, "shop-2") as agent:
        # It looks as an opened job does.
        await other.backlog("payments").submit(b"\0evil", job_id="order-1")
        limits.hset(RESULTS, mapping={"order-2": b"done 99999999999999999 \0evil"})
        limits.hset(RESULTS, mapping={"order-3": b"cancelled 99999999999999999 evil"})
        backlog = agent.backlog("payments", sealed=True)
        work = asyncio.create_task(backlog.work(handler, workers=2))
        beats = len(gateway.beats)
        await eventually(lambda: len(gateway.beats) > beats + 1)
        assert (await backlog.depth()).taken == 0
        assert ran == []
        assert [(await backlog.result(f"order-{number}")).value for number in (2, 3)] == [b"", b""]
        backlog.stop()
        await work
