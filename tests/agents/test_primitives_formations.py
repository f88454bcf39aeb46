"""``agent.lock`` and ``Idempotency-Key`` on a Cluster and behind Sentinels, through moves and failovers."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from statistics import median
from time import monotonic
from typing import Any

import httpx
import pytest
import redis

from fuseboard import Agent, AgentSettings, LockLost, LockTaken, StoreUnavailable
from fuseboard.contract import keys
from fuseboard.primitives import idempotency as records
from fuseboard.primitives.store_thread import ANSWER_S
from tests.agents.redis_topologies import DOWN_AFTER_MS, PAUSED_S, Cluster, Member, Watched
from tests.agents.shop import KEY, Shop, client_of, order
from tests.agents.test_cluster import Migration
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(300)
#: Noticed, agreed on, and carried out, on a machine that is busy meanwhile. Locks and leases last longer.
FAILOVER_S = DOWN_AFTER_MS / 1000 + PAUSED_S
LONG_S = 4 * FAILOVER_S
NAMES = tuple(f"report-{number}" for number in range(12))
#: What a caller gets while no server can be asked.
UNAVAILABLE = 503


@asynccontextmanager
async def pod(url: str, name: str = "shop-1") -> AsyncIterator[Agent]:
    async with Agent(settings=AgentSettings(redis_url=url, server=name)) as agent:
        yield agent


async def fence_of(agent: Agent, name: str = NAMES[0]) -> int:
    """Acquire and release the lock once Redis can be asked; return its number.

    Its last owner may have ended in the failover. It releases the lock long before ``ttl_s`` is over.
    """

    async def acquire() -> int:
        with contextlib.suppress(StoreUnavailable, LockTaken):
            async with agent.lock(name, wait_s=0) as lock:
                return lock.fence
        return 0

    return await eventually(acquire, "the lock", within_s=FAILOVER_S)


async def answered(client: httpx.AsyncClient, **headers: str) -> httpx.Response:
    """The answer to the order once Redis can be asked."""
    return await eventually(
        lambda: order(client, **headers),
        "the order",
        within_s=FAILOVER_S,
        accept=lambda answer: answer.status_code != UNAVAILABLE,
    )


def _record(caller: str = "acme") -> str:
    """The key of the order of a caller."""
    return keys.idempotency("production", caller, "POST", "/orders", KEY["idempotency-key"])


def replicated(member: Member) -> None:
    """Wait until the replica has all that was written before."""
    member.client.set(f"{_record()}:replicated", 1)  # in a slot that it has
    assert member.client.execute_command("WAIT", 1, 10_000) == 1


class Gate:
    """A handler that waits in the middle of an order."""

    def __init__(self, shop: Shop) -> None:
        self.entered, self.leave = asyncio.Event(), asyncio.Event()
        self._shop = shop
        shop.handler = self

    async def __call__(self, scope: Any) -> tuple[int, bytes]:
        self.entered.set()
        await self.leave.wait()
        return 201, b"order %d" % self._shop.runs


class TestCluster:
    @pytest.fixture(autouse=True)
    def settled(self, cluster: Cluster) -> None:
        cluster.settle()
        cluster.flush()

    async def test_locks_of_every_shard_have_one_owner_and_rising_numbers(self, cluster: Cluster):
        assert len({cluster.primary_of(keys.lock("production", name)) for name in NAMES}) == 3
        owners = dict.fromkeys(NAMES, 0)
        fences: dict[str, list[int]] = {name: [] for name in NAMES}

        async def own(agent: Agent, name: str) -> None:
            async with agent.lock(name) as lock:
                owners[name] += 1
                assert owners[name] == 1
                fences[name].append(lock.fence)
                await asyncio.sleep(0.01)
                lock.check()
                owners[name] -= 1

        async with pod(cluster.url) as one, pod(cluster.url, "shop-2") as two:
            for agent, name in product((one, two), NAMES):
                await fence_of(agent, name)  # a connection to each shard: a busy machine opens them late
            await asyncio.gather(*(own(agent, name) for agent in (one, two) for name in NAMES * 2))
        for numbers in fences.values():
            assert numbers == sorted(set(numbers))
            assert len(numbers) == 4

    @pytest.mark.usefixtures("usual_answers")
    async def test_a_frozen_primary_delays_no_lock_of_another_shard(self, cluster: Cluster):
        victim = cluster.primary_of(keys.lock("production", NAMES[0]))
        other = next(
            name for name in NAMES if cluster.primary_of(keys.lock("production", name)) is not victim
        )

        async def unavailable() -> None:
            with pytest.raises(StoreUnavailable):
                async with agent.lock(NAMES[0], wait_s=0):
                    pytest.fail("entered")

        async with pod(cluster.url) as agent:
            await fence_of(agent, other)
            victim.send(signal.SIGSTOP)
            try:
                asking = asyncio.gather(*(unavailable() for _ in range(4)))
                took_s, until = [], monotonic() + 2 * ANSWER_S
                while monotonic() < until or len(took_s) < 5:
                    began = monotonic()
                    async with agent.lock(other, wait_s=0):
                        took_s.append(monotonic() - began)
                    await asyncio.sleep(0.01)
                await asking
            finally:
                victim.send(signal.SIGCONT)
            await fence_of(agent)
        # Not the longest: a busy machine makes one of them slow.
        assert median(took_s) < ANSWER_S / 3

    @pytest.mark.usefixtures("usual_answers")
    async def test_a_frozen_primary_whose_memory_counts_delays_one_request_of_another_shard(
        self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(records, "LOOK_S", 0.0)  # each request looks
        victim = cluster.primary_of("memory")
        callers = [f"caller-{number}" for number in range(40)]
        others = [one for one in callers if cluster.primary_of(_record(one)) is not victim][:12]
        took_s = []
        async with pod(cluster.url) as agent, client_of(Shop(), agent) as client:
            assert (await order(client, **{"x-caller": others[0]})).status_code == 201
            victim.send(signal.SIGSTOP)
            try:
                for caller in others[1:]:
                    began = monotonic()
                    assert (await order(client, **{"x-caller": caller})).status_code == 201
                    took_s.append(monotonic() - began)
            finally:
                victim.send(signal.SIGCONT)
        assert median(took_s[1:]) < ANSWER_S / 3

    async def test_a_lock_and_a_request_move_with_their_slot(self, cluster: Cluster):
        shop = Shop()
        async with pod(cluster.url) as agent, client_of(shop, agent) as client:
            await order(client)
            async with agent.lock(NAMES[0], ttl_s=6) as lock:
                moved = (keys.lock("production", NAMES[0]), _record())
                moves = [Migration(cluster, key) for key in moved]
                for step in (Migration.begin, Migration.move_keys, Migration.end):
                    for move in moves:
                        await asyncio.to_thread(step, move)
                    until = lock._valid_until
                    await eventually(lambda: lock._valid_until > until, "a renewal")  # noqa: B023
                    lock.check()
            assert await fence_of(agent) > lock.fence
            again = await answered(client)
            assert (again.content, again.headers["idempotency-replayed"], shop.runs) == (
                b"order 1",
                "true",
                1,
            )

    async def test_a_replica_takes_over_with_locks_and_requests(self, cluster: Cluster):
        victim = cluster.primary_of(_record())
        name = next(one for one in NAMES if cluster.primary_of(keys.lock("production", one)) is victim)
        shop = Shop()
        async with pod(cluster.url) as agent, client_of(shop, agent) as client:
            await order(client)
            async with agent.lock(name, ttl_s=LONG_S) as lock:
                await asyncio.to_thread(replicated, victim)
                victim.kill()
                try:
                    again = await answered(client)
                    lock.check()
                finally:
                    victim.start()
                assert (again.content, again.headers["idempotency-replayed"]) == (b"order 1", "true")
                assert cluster.primary_of(_record()) is not victim
            assert await fence_of(agent, name) > lock.fence
        assert shop.runs == 1


class TestSentinels:
    @pytest.fixture(autouse=True)
    def settled(self, watched: Watched) -> None:
        watched.settle()
        watched.primary().client.flushall()

    async def demote(self, watched: Watched) -> None:
        """Another primary; nothing is lost."""
        before = watched.primary()

        def demoted() -> bool:
            if watched.primary() is not before:
                return True
            with contextlib.suppress(redis.ResponseError):  # under way, or too recent
                watched.sentinels[0].client.execute_command(
                    "SENTINEL", "FAILOVER", watched.NAME, "COORDINATED"
                )
            return False

        await eventually(demoted, "another primary", within_s=2 * FAILOVER_S, every_s=0.1)

    async def test_a_lock_is_kept_over_a_failover(self, watched: Watched):
        async with pod(watched.url) as agent:
            async with agent.lock(NAMES[0], ttl_s=LONG_S) as lock:
                await self.demote(watched)
                lock.check()
                await eventually(lambda: _owned(watched.primary(), NAMES[0]) == lock.fence)
            assert await fence_of(agent) > lock.fence

    async def test_a_request_that_runs_through_a_failover_is_done_once(self, watched: Watched):
        shop = Shop()
        gate = Gate(shop)
        async with pod(watched.url) as agent, client_of(shop, agent, lease_s=LONG_S) as client:
            running = asyncio.create_task(order(client))
            await gate.entered.wait()
            await self.demote(watched)
            assert (await answered(client)).status_code == 409
            gate.leave.set()
            assert (await running).status_code == 201
            again = await eventually(lambda: order(client), accept=lambda one: one.status_code == 201)
        assert (again.content, again.headers["idempotency-replayed"], shop.runs) == (b"order 1", "true", 1)

    async def test_a_primary_that_crashes_leaves_locks_and_answers_on_its_replica(self, watched: Watched):
        shop, victim = Shop(), watched.primary()
        async with pod(watched.url) as agent, client_of(shop, agent) as client:
            await order(client)
            async with agent.lock(NAMES[1], ttl_s=LONG_S) as kept:
                lost = agent.lock(NAMES[0], ttl_s=1)
                await lost.__aenter__()
                await asyncio.to_thread(replicated, victim)
                victim.kill()
                await eventually(lambda: not lost.valid)
                with pytest.raises(LockLost, match="not renewed within 1 s"):
                    await lost.__aexit__(None, None, None)
                again = await answered(client)
                assert await fence_of(agent) > lost.fence
                kept.check()
            assert (again.content, again.headers["idempotency-replayed"], shop.runs) == (
                b"order 1",
                "true",
                1,
            )
            assert await fence_of(agent, NAMES[1]) > kept.fence
        assert watched.primary() is not victim


def _owned(member: Member, name: str) -> int:
    """The number of the lock on this server; 0 when it has none."""
    text = member.client.get(keys.lock("production", name))
    return int(text.split()[1]) if isinstance(text, bytes) else 0
