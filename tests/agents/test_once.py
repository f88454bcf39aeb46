"""Work on events and tasks that are delivered again, against a real Redis."""

import asyncio
import copy
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import pytest
import redis

import fuseboard
from fuseboard import Agent, AlreadyDone, ClaimLost, InProgress, Misconfigured, StoreUnavailable, blocking
from fuseboard.integrations.idempotency import request_of
from fuseboard.settings import AgentSettings
from fuseboard.testing import FakeAgent
from tests.waiting import eventually, wait_until

ENVIRONMENT = "once"
KEYS = f"fb1:{ENVIRONMENT}:*:idempotency"


def settings(redis_url: str) -> AgentSettings:
    return AgentSettings(redis_url=redis_url, environment=ENVIRONMENT, server="shop-1")


@pytest.fixture(autouse=True)
def clean(limits: redis.Redis) -> None:
    limits.flushdb()


@pytest.fixture
async def agent(redis_url: str) -> AsyncIterator[Agent]:
    async with Agent(settings=settings(redis_url)) as started:
        yield started


def enters(agent: blocking.Agent) -> bool:
    try:
        with agent.once("order-paid", "evt-1"):
            return True
    except InProgress:
        return False


class TestDeliveries:
    async def test_a_second_delivery_gets_what_the_first_kept(self, agent: Agent) -> None:
        async with agent.once("order-paid", "evt-1") as first:
            first.keep({"charge": 17, "notes": [None, "ü"]})
        with pytest.raises(AlreadyDone, match="'order-paid' 'evt-1' is done") as done:
            async with agent.once("order-paid", "evt-1"):
                pytest.fail("entered")
        assert (done.value.result, done.value.kept) == ({"charge": 17, "notes": [None, "ü"]}, True)
        assert agent.resilience()["once"] == {
            "begun": 1,
            "replayed": 1,
            "running": 0,
            "mismatched": 0,
            "lost": 0,
            "unavailable": 0,
            "unsealed": 0,
        }

    async def test_nothing_that_was_kept_differs_from_none_that_was(self, agent: Agent) -> None:
        for number, kept in ((1, False), (2, True)):
            async with agent.once("order-paid", number) as run:
                if kept:
                    run.keep(None)
            with pytest.raises(AlreadyDone) as done:
                async with agent.once("order-paid", number):
                    pytest.fail("entered")
            assert (done.value.result, done.value.kept) == (None, kept)

    async def test_other_events_and_ids_are_other_work(self, agent: Agent) -> None:
        async with agent.once("a:b", "c"), agent.once("a", "b:c"), agent.once("a", "b"):
            assert agent.resilience()["once"]["begun"] == 3

    async def test_a_number_is_the_same_id_as_its_text(self, agent: Agent) -> None:
        async with agent.once("order-paid", 4711):
            pass
        with pytest.raises(AlreadyDone):
            async with agent.once("order-paid", "4711"):
                pytest.fail("entered")

    async def test_it_is_no_request_of_a_client(self, agent: Agent, limits: redis.Redis) -> None:
        """A caller of HTTP is never empty, so that no client can make an event done."""
        async with agent.once("order-paid", "evt-1"):
            [key] = limits.keys(KEYS)
        with pytest.raises(Misconfigured, match="not empty"):
            request_of(
                caller="", method="once", path="order-paid", key="evt-1", query=b"", content_type="", body=b""
            )
        assert limits.ttl(key) > 86_000, "a done mark expires"

    async def test_two_deliveries_at_once_do_the_work_once(self, agent: Agent) -> None:
        ran: list[int] = []
        began, ends = asyncio.Event(), asyncio.Event()

        async def deliver(number: int) -> str:
            try:
                async with agent.once("order-paid", "evt-1"):
                    ran.append(number)
                    began.set()
                    await ends.wait()
            except InProgress as busy:
                return f"busy: {busy.retry_after_s > 0}"
            return "done"

        first = asyncio.create_task(deliver(1))
        await began.wait()
        assert await asyncio.gather(deliver(2), deliver(3)) == ["busy: True", "busy: True"]
        ends.set()
        assert (await first, ran) == ("done", [1])
        assert agent.resilience()["once"]["running"] == 2


class TestEnds:
    async def test_a_block_that_raises_frees_its_claim_at_once(self, agent: Agent) -> None:
        with pytest.raises(ValueError, match="declined"):  # noqa: PT012 - one block
            async with agent.once("order-paid", "evt-1") as first:
                fence = first.fence
                raise ValueError("declined")
        async with agent.once("order-paid", "evt-1") as second:
            assert second.fence > fence

    async def test_a_cancelled_block_keeps_its_claim_until_the_lease_ends(self, agent: Agent) -> None:
        began = asyncio.Event()

        async def work() -> None:
            async with agent.once("order-paid", "evt-1", lease_s=4):
                began.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(InProgress):
            async with agent.once("order-paid", "evt-1"):
                pytest.fail("entered")

        async def again() -> bool:
            try:
                async with agent.once("order-paid", "evt-1"):
                    return True
            except InProgress:
                return False

        await eventually(again, "the end of the lease")

    async def test_a_lease_is_renewed_while_the_block_runs(self, agent: Agent, limits: redis.Redis) -> None:
        async with agent.once("order-paid", "evt-1", lease_s=6) as run:
            [key] = limits.keys(KEYS)
            before = limits.dump(key)
            # A busy event loop: only the thread renews.
            wait_until(lambda: limits.dump(key) != before, "a renewal")
            run.check()
            with pytest.raises(InProgress):
                async with agent.once("order-paid", "evt-1"):
                    pytest.fail("entered")

    async def test_a_lost_claim_is_an_error_of_the_block(self, agent: Agent, limits: redis.Redis) -> None:
        with pytest.raises(ClaimLost, match="check what the block has written"):
            async with agent.once("order-paid", "evt-1"):
                limits.flushdb()
        assert agent.resilience()["once"]["lost"] == 1

    async def test_check_notices_a_lost_claim_in_the_block(self, agent: Agent, limits: redis.Redis) -> None:
        with pytest.raises(ClaimLost):  # noqa: PT012 - one block
            async with agent.once("order-paid", "evt-1", lease_s=1) as run:
                run.check()
                limits.flushdb()
                await eventually(lambda: not run.valid)
                run.check()
                pytest.fail("written")

    async def test_an_error_of_the_block_is_not_hidden_by_a_lost_claim(
        self, agent: Agent, limits: redis.Redis
    ) -> None:
        with pytest.raises(ValueError, match="declined"):  # noqa: PT012 - one block
            async with agent.once("order-paid", "evt-1"):
                limits.flushdb()
                raise ValueError("declined")

    async def test_what_is_done_is_remembered_for_keep_s(self, agent: Agent, limits: redis.Redis) -> None:
        async with agent.once("order-paid", "evt-1", keep_s=60):
            pass
        [key] = limits.keys(KEYS)
        assert 50 < limits.ttl(key) <= 60


class TestOtherAgents:
    def test_it_works_in_threads_and_for_coroutines_of_other_loops(self, redis_url: str) -> None:
        with blocking.Agent(settings=settings(redis_url)) as agent:
            with agent.once("order-paid", "evt-1") as run:
                assert run.fence > 0
                run.keep("charged")

            async def deliver() -> Any:
                try:
                    async with agent.aonce("order-paid", "evt-1"):
                        return "entered"
                except AlreadyDone as done:
                    return done.result

            assert asyncio.run(deliver()) == "charged"
            with pytest.raises(InProgress), agent.once("other", 1), agent.once("other", 1):
                pytest.fail("entered")

    def test_a_killed_process_frees_its_claim_after_its_lease(self, redis_url: str) -> None:
        code = (
            "import time; from fuseboard import blocking; from fuseboard.settings import AgentSettings\n"
            f"settings = AgentSettings(redis_url={redis_url!r}, environment={ENVIRONMENT!r})\n"
            "with blocking.Agent(settings=settings).once('order-paid', 'evt-1', lease_s=4):\n"
            "    print('began', flush=True); time.sleep(60)\n"
        )
        with (
            subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as process,
            blocking.Agent(settings=settings(redis_url)) as agent,
        ):
            assert process.stdout is not None
            assert process.stdout.readline() == b"began\n"
            with pytest.raises(InProgress), agent.once("order-paid", "evt-1"):
                pytest.fail("entered")
            os.kill(process.pid, signal.SIGKILL)
            wait_until(lambda: enters(agent), "the lease ends")

    def test_without_redis_nothing_begins(self) -> None:
        agent = blocking.Agent(settings=AgentSettings(redis_url="redis://127.0.0.1:1", server="shop-1"))
        with agent, pytest.raises(StoreUnavailable), agent.once("order-paid", "evt-1"):
            pytest.fail("entered")


class TestArguments:
    @pytest.mark.parametrize("event_id", ["", True, 1.5, None, b"evt", ["evt"], "x" * 1001, "\ud800"])
    async def test_an_id_must_be_text_or_a_number(self, agent: Agent, event_id: Any) -> None:
        with pytest.raises(Misconfigured, match=r"fuseboard\.idempotency_key"):
            agent.once("order-paid", event_id)

    @pytest.mark.parametrize(
        ("event", "options"),
        [
            ("", {}),
            ("a\n", {}),
            (None, {}),
            ("a", {"keep_s": 59}),
            ("a", {"lease_s": 0.5}),
            ("a", {"keep_s": "1"}),
        ],
    )
    async def test_wrong_arguments_are_refused_at_once(
        self, agent: Agent, event: Any, options: dict[str, Any]
    ) -> None:
        with pytest.raises(Misconfigured):
            agent.once(event, "evt-1", **options)

    @pytest.mark.parametrize("result", [object(), {1, object()}, "x" * 300_000])
    async def test_a_result_that_cannot_be_kept_is_refused_in_the_block(
        self, agent: Agent, result: Any
    ) -> None:
        async with agent.once("order-paid", "evt-1") as run:
            with pytest.raises(Misconfigured):
                run.keep(result)

    async def test_a_block_is_for_one_delivery(self, agent: Agent) -> None:
        run = agent.once("order-paid", "evt-1")
        async with run:
            with pytest.raises(Misconfigured, match="one block"):
                async with run:
                    pytest.fail("entered")


@pytest.mark.parametrize(
    "error",
    [AlreadyDone("e", "1", {"a": 1}, True), InProgress("e", "1", 2.5), ClaimLost("e", "1")],
    ids=lambda error: type(error).__name__,
)
def test_the_errors_survive_another_process(error: Exception) -> None:
    for again in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):  # noqa: S301
        assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


class TestFake:
    async def test_it_does_the_work_once(self) -> None:
        agent = FakeAgent()
        async with agent.once("order-paid", 7) as run:
            run.keep("charged")
            with pytest.raises(InProgress), agent.once("order-paid", 7):
                pytest.fail("entered")
        with pytest.raises(AlreadyDone) as done, agent.once("order-paid", "7"):
            pytest.fail("entered")
        assert done.value.result == "charged"
        agent.clock.advance(86_401)
        with agent.once("order-paid", 7):
            pass

    async def test_a_test_plays_another_process(self) -> None:
        agent = FakeAgent()
        agent.claim_event("order-paid", 7, lease_s=30)
        with pytest.raises(InProgress) as busy, agent.once("order-paid", 7):
            pytest.fail("entered")
        assert busy.value.retry_after_s == 30
        agent.clock.advance(31)
        with pytest.raises(ClaimLost), agent.once("order-paid", 7) as run:  # noqa: PT012 - one block
            agent.claim_event("order-paid", 7)
            run.check()
        agent.finish_event("order-paid", 7, {"charge": 1})
        with pytest.raises(AlreadyDone) as done, agent.once("order-paid", 7):
            pytest.fail("entered")
        assert done.value.result == {"charge": 1}

    async def test_a_failed_block_can_run_again(self) -> None:
        agent = FakeAgent()
        with pytest.raises(ValueError), agent.once("order-paid", 7):  # noqa: PT011 - raised below
            raise ValueError
        with agent.once("order-paid", 7):
            pass


def test_names_are_exported() -> None:
    assert {"AlreadyDone", "InProgress", "ClaimLost", "idempotency_key"} <= set(fuseboard.__all__)
