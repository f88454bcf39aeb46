"""Agents with a bulkhead: blocks, threads, deadlines, and permits that are returned."""

import asyncio
import contextvars
import gc
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from time import monotonic
from typing import Any

import msgspec
import pytest

import fuseboard
from fuseboard import Agent, Permit, blocking
from fuseboard.admission.call_guard import CallGuard
from fuseboard.agent_api import threads
from fuseboard.contract.policy import BreakerPolicy, Dependency, Policy
from fuseboard.contract.protection import Bulkhead, CallProtection
from fuseboard.contract.words import CallTier, Outcome, Reason
from fuseboard.errors import Misconfigured, Refused
from fuseboard.settings import AgentSettings
from tests.agents.servers import POLICY
from tests.waiting import eventually, wait_until

#: One slot for each tier.
ONE = Bulkhead(max_concurrent=3, queues=(1, 1, 1), queue_timeout_ms=60_000)
GUARDED = Policy(
    environment=POLICY.environment,
    default_tier="free",
    tiers=(msgspec.structs.replace(POLICY.tiers[0], name="free", quotas=()),),
    dependencies=(
        Dependency(
            name="payments",
            timeout_ms=30_000,
            protection=CallProtection(tier=CallTier.CRITICAL, bulkhead=ONE),
        ),
        Dependency(name="plain", timeout_ms=30_000),
    ),
)


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    path = tmp_path / "bootstrap.json"
    path.write_text(json.dumps({"policy": json.loads(msgspec.json.encode(GUARDED))}))
    return AgentSettings(
        redis_url="redis://127.0.0.1:1/0",
        server="shop-1",
        service="shop",
        state_dir=tmp_path,
        bootstrap_file=path,
    )


def guard_of(agent: Agent) -> CallGuard:
    guard = agent._runtime.admission.guards.find("payments")
    assert guard is not None
    return guard


def refused(error: pytest.ExceptionInfo[Refused]) -> Reason | None:
    return error.value.decision.reason


class TestNesting:
    """A task that has a slot and wants a second one may wait for itself, so it is counted."""

    async def test_a_block_in_a_block_is_counted_when_no_slot_is_free(
        self, settings: AgentSettings, caplog: pytest.LogCaptureFixture
    ):
        async with Agent(settings=settings) as agent:
            guard = guard_of(agent)

            async def wants_another() -> Reason | None:
                with pytest.raises(Refused) as caught:
                    async with agent.call("payments", tier="standard"):
                        pytest.fail("there is no second slot")
                return refused(caught)

            async with agent.call("payments", tier="standard"):
                async with agent.call("payments", tier="critical"), agent.call("plain"):
                    pass
                assert guard.nested == 0  # each found a free slot
                assert await wants_another() is Reason.BULKHEAD_FULL
                assert guard.nested == 1
                # So does a task that it started, for which it may wait.
                await asyncio.create_task(wants_another())
                assert guard.nested == 2
                # Another task does not wait for itself.
                await asyncio.create_task(wants_another(), context=contextvars.Context())
                assert guard.nested == 2
                started_inside = asyncio.Event()

                async def later() -> None:
                    await started_inside.wait()
                    async with agent.call("payments", tier="standard"):
                        await wants_another()

                task = asyncio.create_task(later())
            # The block in which it was started has ended: only its own counts.
            started_inside.set()
            await task
            assert guard.nested == 3
            assert guard.load().nested == 3
            assert agent.resilience()["dependencies"]["payments"]["nested"] == 3
        assert len([one for one in caplog.records if one.getMessage().startswith("bulkhead.nested")]) == 1

    def test_a_blocking_block_in_a_block_is_counted(self, settings: AgentSettings):
        with blocking.Agent(settings=settings) as agent:
            inner = agent.call("payments", tier="standard")
            with agent.call("payments", tier="standard"), pytest.raises(Refused), inner:
                pytest.fail("there is no second slot")
            with agent.call("payments", tier="standard"):
                pass
            assert agent.resilience()["dependencies"]["payments"]["nested"] == 1

    async def test_a_block_that_ends_in_another_context_counts_no_longer(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            block = agent.call("payments", tier="standard")
            await block.__aenter__()
            await asyncio.create_task(block.__aexit__(None, None, None))
            permit = await agent.admit_call("payments", tier="standard")
            with pytest.raises(Refused):
                await agent.admit_call("payments", tier="standard")
            agent.report(permit, Outcome.OK)
            assert guard_of(agent).nested == 0


class TestBlocks:
    async def test_a_block_is_also_a_decorator_as_in_release_0_1(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:

            @agent.call("payments")
            async def pay(amount: int) -> int:
                assert guard_of(agent).in_flight == 1
                return amount

            assert [await pay(amount) for amount in (1, 2)] == [1, 2]
            assert guard_of(agent).in_flight == 0

    async def test_a_block_frees_its_slot_however_it_ends(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            async with agent.call("payments") as permit:
                assert guard_of(agent).in_flight == 1
                assert permit.timeout_s == 30.0
            with pytest.raises(ZeroDivisionError):
                async with agent.call("payments"):
                    raise ZeroDivisionError
            entered = asyncio.Event()

            async def hang() -> None:
                async with agent.call("payments"):
                    entered.set()
                    await asyncio.Event().wait()

            task = asyncio.create_task(hang())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert guard_of(agent).in_flight == 0

    async def test_a_block_is_for_one_call(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            block = agent.call("payments")
            async with block:
                with pytest.raises(RuntimeError, match=r"agent.call\(\) again"):
                    async with block:
                        """Never."""
            assert guard_of(agent).in_flight == 0

    async def test_a_deadline_shortens_the_timeout_and_the_wait(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            async with agent.call("payments", deadline_s=20) as permit:
                assert permit.timeout_s is not None
                assert permit.timeout_s <= 20
                with pytest.raises(Refused) as caught:
                    await agent.admit_call("payments", deadline_s=0.001)
                assert refused(caught) is Reason.QUEUE_TIMEOUT
            with fuseboard.deadline(10):
                async with agent.call("plain", deadline_s=20) as permit:
                    assert permit.timeout_s is not None
                    assert permit.timeout_s <= 10

    async def test_a_call_whose_deadline_is_over_is_refused_and_no_failure(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            with fuseboard.deadline(0.001):
                await asyncio.sleep(0.002)
                with pytest.raises(Refused) as caught:
                    await agent.admit_call("plain")
            assert refused(caught) is Reason.QUEUE_TIMEOUT

    async def test_a_call_that_is_admitted_after_its_deadline_is_given_back(
        self, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
    ):
        async with Agent(settings=settings) as agent:
            admission = agent._runtime.admission
            admit_in_time = admission.admit_call

            async def admit_late(*wanted: Any, until: float) -> Permit:
                permit = await admit_in_time(*wanted)
                await asyncio.sleep(until - monotonic() + 0.01)
                return permit

            monkeypatch.setattr(admission, "admit_call", admit_late)
            with pytest.raises(Refused) as caught:
                await agent.admit_call("payments", deadline_s=0.1)
            assert refused(caught) is Reason.QUEUE_TIMEOUT
            assert guard_of(agent).in_flight == 0

    @pytest.mark.parametrize(("slow_ms", "outcome"), [(5_000, "neutral"), (100, "failure")])
    async def test_a_deadline_that_gives_the_vendor_too_little_time_is_no_failure(
        self, settings: AgentSettings, slow_ms: int, outcome: str
    ):
        """Every call of an overloaded pod with little time left counted as a failure of the vendor."""
        breaker = BreakerPolicy(slow_ms=slow_ms)
        policy = msgspec.structs.replace(
            GUARDED, dependencies=(msgspec.structs.replace(GUARDED.dependencies[1], breaker=breaker),)
        )
        assert settings.bootstrap_file is not None
        settings.bootstrap_file.write_text(json.dumps({"policy": json.loads(msgspec.json.encode(policy))}))
        async with Agent(settings=settings) as agent:
            with pytest.raises(TimeoutError):
                async with agent.call("plain", deadline_s=1.0):
                    await asyncio.Event().wait()
            [counts] = agent.counters.wire().dependencies
            assert (counts.neutral, counts.failure) == ((1, 0) if outcome == "neutral" else (0, 1))

    async def test_a_call_that_is_given_back_frees_its_slot(self, settings: AgentSettings):
        async with Agent(settings=settings) as agent:
            agent.give_back(await agent.admit_call("payments"))
            assert guard_of(agent).in_flight == 0

    @pytest.mark.parametrize("wrong", ["urgent", "", 1])
    async def test_wrong_arguments(self, settings: AgentSettings, wrong: object):
        async with Agent(settings=settings) as agent:
            with pytest.raises(Misconfigured, match="tier must be one of critical, standard, optional"):
                await agent.admit_call("payments", tier=wrong)  # type: ignore[arg-type]
            with pytest.raises(Misconfigured, match="deadline_s"):
                await agent.admit_call("payments", deadline_s=0)
            with pytest.raises(Misconfigured, match="tier"):
                agent.guard("payments", tier="urgent")

    async def test_a_stop_lets_waiting_calls_pass(self, settings: AgentSettings):
        agent = Agent(settings=settings)
        await agent.start()
        permit = await agent.admit_call("payments")
        waiting = asyncio.create_task(agent.admit_call("payments"))
        await eventually(lambda: guard_of(agent).waiting == 1)
        await agent.stop()
        assert (await waiting).dependency == "payments"
        agent.report(permit, Outcome.OK)


class TestThreads:
    def test_a_queued_call_of_a_thread_gets_a_slot_and_is_not_let_through_without_one(
        self, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
    ):
        """A thread gave up after a second, and its call passed the bulkhead without a slot."""
        monkeypatch.setattr(threads, "LATE_S", 0.0)
        with blocking.Agent(settings=settings) as agent, ThreadPoolExecutor(1) as pool:
            permit = agent.admit_call("payments")
            queued = pool.submit(agent.admit_call, "payments")
            guard = guard_of(agent._started())
            wait_until(lambda: guard.waiting == 1)
            agent.report(permit, Outcome.OK)
            assert queued.result(30).slot is not None
            assert agent.late == 0

    def test_a_late_decision_refuses_where_a_bulkhead_is_and_allows_elsewhere(
        self, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
    ):
        with blocking.Agent(settings=settings) as agent:
            started = agent._started()
            monkeypatch.setattr(threads, "LATE_S", 0.0)
            monkeypatch.setattr(started, "longest_decision_s", lambda *_: 0.01)
            stuck, ends = threading.Event(), threading.Event()

            def stick() -> None:
                stuck.set()
                ends.wait(30)

            started.soon(stick)
            stuck.wait(30)
            try:
                with pytest.raises(Refused) as caught:
                    agent.admit_call("payments")
                assert refused(caught) is Reason.QUEUE_TIMEOUT
                with pytest.raises(Refused):
                    asyncio.run(agent.aadmit_call("payments"))
                assert agent.admit_call("plain").decision.allowed
                assert agent.late == 3
            finally:
                ends.set()
            guard = guard_of(started)
            wait_until(lambda: guard.in_flight == guard.waiting == 0)

    def test_permits_of_threads_are_reported_returned_or_forgotten(self, settings: AgentSettings):
        with blocking.Agent(settings=settings) as agent:
            guard = guard_of(agent._started())
            with agent.call("payments", tier="optional"):
                assert guard.in_flight == 1
            wait_until(lambda: guard.in_flight == 0)
            agent.give_back(agent.admit_call("payments"))
            wait_until(lambda: guard.in_flight == 0)
            agent.admit_call("payments")
            gc.collect()
            wait_until(lambda: guard.in_flight == 0)

    def test_coroutines_of_several_loops_share_the_slots(self, settings: AgentSettings):
        """deer-flow#4294: one semaphore per loop."""

        async def begin(agent: blocking.Agent) -> str | None:
            try:
                async with asyncio.timeout(30), agent.acall("payments", tier="standard"):
                    await asyncio.to_thread(barrier.wait, 30)
            except Refused as refused:
                barrier.wait(30)
                return refused.decision.reason
            return None

        barrier = threading.Barrier(2)
        with blocking.Agent(settings=settings) as agent, ThreadPoolExecutor(2) as pool:
            ended = list(pool.map(lambda _: asyncio.run(begin(agent)), range(2)))
        assert sorted(map(str, ended)) == ["None", "bulkhead_full"]
