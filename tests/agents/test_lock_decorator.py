"""``agent.locked`` and ``agent.lock_all``, with both kinds of agent and the fake one."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis

from fuseboard import Agent, LockLost, LockTaken, Misconfigured, blocking
from fuseboard.settings import AgentSettings
from fuseboard.testing import FakeAgent

ENVIRONMENT = "locked"


def settings(redis_url: str) -> AgentSettings:
    return AgentSettings(redis_url=redis_url, environment=ENVIRONMENT, server="shop-1")


@pytest.fixture(autouse=True)
def clean(limits: redis.Redis) -> None:
    limits.flushdb()


@pytest.fixture
async def agent(redis_url: str) -> AsyncIterator[Agent]:
    async with Agent(settings=settings(redis_url)) as started:
        yield started


@pytest.fixture
def blocked(redis_url: str) -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=settings(redis_url)) as started:
        yield started


class TestLocked:
    async def test_calls_of_one_name_exclude_each_other(self, agent: Agent) -> None:
        at_once, most = 0, 0

        @agent.locked("report")
        async def report(rows: int) -> int:
            nonlocal at_once, most
            at_once += 1
            most = max(most, at_once)
            await asyncio.sleep(0.02)
            at_once -= 1
            return rows

        assert await asyncio.gather(*(report(number) for number in range(5))) == [0, 1, 2, 3, 4]
        assert (most, agent.locks.figures.acquired) == (1, 5)

    async def test_the_name_can_depend_on_the_call(self, agent: Agent) -> None:
        @agent.locked(lambda order_id, **_: f"order-{order_id}", wait_s=0)
        async def charge(order_id: int, *, inner: int = 0) -> str:
            return await charge(inner) if inner else f"charged {order_id}"

        assert await charge(1, inner=2) == "charged 2"
        with pytest.raises(LockTaken, match="'order-1'"):
            await charge(1, inner=1)

    def test_a_blocking_function_has_the_lock_in_its_thread(self, blocked: blocking.Agent) -> None:
        @blocked.locked("report", ttl_s=5, wait_s=0)
        def report() -> int:
            with pytest.raises(LockTaken), blocked.lock("report", wait_s=0):
                pytest.fail("entered")
            return 1

        assert report() == 1
        assert report.__name__ == "report"

    def test_an_async_function_can_be_locked_by_a_blocking_agent(self, blocked: blocking.Agent) -> None:
        @blocked.locked("report")
        async def report() -> int:
            return 1

        assert asyncio.run(report()) == 1

    async def test_a_blocking_function_can_be_locked_by_an_agent_on_a_loop(self, agent: Agent) -> None:
        @agent.locked("report")
        def report() -> int:
            return 1

        assert await asyncio.to_thread(report) == 1
        with pytest.raises(Misconfigured):
            report()  # it would block the event loop

    async def test_wrong_use_is_refused_at_the_decoration(self, agent: Agent) -> None:
        def rows() -> Iterator[int]:
            yield 1

        async def pages() -> AsyncIterator[int]:
            yield 1

        for generator in (rows, pages):
            with pytest.raises(Misconfigured, match="a generator runs when it is read"):
                agent.locked("report")(generator)
        wrong: list[tuple[Any, dict[str, Any]]] = [
            ("", {}),
            (None, {}),
            ("a", {"ttl_s": 0}),
            ("a", {"wait_s": 11}),
        ]
        for name, options in wrong:
            with pytest.raises(Misconfigured):
                agent.locked(name, **options)

    async def test_a_name_that_is_no_name_is_refused_at_the_call(self, agent: Agent) -> None:
        @agent.locked(lambda order_id: order_id)
        async def charge(order_id: Any) -> None:
            pytest.fail("entered")

        with pytest.raises(Misconfigured, match="the name of a lock"):
            await charge(4711)

    async def test_the_fake_excludes_too(self) -> None:
        fake = FakeAgent()

        @fake.locked("report", wait_s=0)
        async def report() -> int:
            return 1

        assert await report() == 1
        fake.take_lock("report")
        with pytest.raises(LockTaken):
            await report()


class TestSeveral:
    async def test_blocks_that_name_them_in_other_orders_never_wait_for_each_other(
        self, agent: Agent
    ) -> None:
        async def move(*accounts: str) -> None:
            for _ in range(5):
                async with agent.lock_all(accounts, wait_s=10) as locks:
                    assert list(locks.locks) == sorted(accounts)
                    locks.check()
                    await asyncio.sleep(0)

        await asyncio.wait_for(
            asyncio.gather(move("a", "b", "c"), move("c", "b", "a"), move("b", "a", "c")), 30
        )

    async def test_one_that_is_taken_leaves_none(self, agent: Agent) -> None:
        async with agent.lock("b"):
            with pytest.raises(LockTaken, match="'b'"):
                async with agent.lock_all(["c", "b", "a"], wait_s=0.05):
                    pytest.fail("entered")
            async with agent.lock("a", wait_s=0), agent.lock("c", wait_s=0):
                pass

    async def test_a_name_that_is_given_twice_is_one_lock(self, agent: Agent) -> None:
        async with agent.lock_all(["a", "a"], wait_s=0) as locks:
            assert set(locks.locks) == {"a"}
        assert not locks.valid

    async def test_the_wait_is_for_all_of_them(self, agent: Agent) -> None:
        loop = asyncio.get_running_loop()
        async with agent.lock("a"), agent.lock("b"):
            began = loop.time()
            with pytest.raises(LockTaken):
                async with agent.lock_all(["a", "b"], wait_s=0.2):
                    pytest.fail("entered")
            assert loop.time() - began < 2

    def test_it_works_in_threads(self, blocked: blocking.Agent, limits: redis.Redis) -> None:
        with blocked.lock_all({"b", "a"}) as locks:
            assert (locks.names, locks.valid) == (("a", "b"), True)
            assert locks.locks["a"].fence > 0
        with pytest.raises(LockLost), blocked.lock_all(["a", "b"]):
            limits.flushdb()

    @pytest.mark.parametrize("names", ["report", [], ["a", ""], ["a", 1], [f"lock-{n}" for n in range(51)]])
    async def test_wrong_names_are_refused_at_once(self, agent: Agent, names: Any) -> None:
        for every in (agent, FakeAgent()):
            with pytest.raises(Misconfigured):
                every.lock_all(names)

    async def test_the_fake_has_them(self) -> None:
        fake = FakeAgent()
        async with fake.lock_all(["b", "a"]) as locks:
            assert (locks.valid, set(fake.taken)) == (True, {"a", "b"})
        assert not fake.taken
        fake.take_lock("b")
        with pytest.raises(LockTaken), fake.lock_all(["b", "a"], wait_s=0):
            pytest.fail("entered")
        assert set(fake.taken) == {"b"}
