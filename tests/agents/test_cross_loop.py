"""Coroutines that use the agent of another thread: its stop, a loop that hangs, and cancellations."""

import asyncio
import gc
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import NoReturn

import pytest
import redis

from fuseboard import AgentSettings, Decision, Mode, Permit, Refused, blocking
from fuseboard.agent_api import threads
from fuseboard.agent_api.threads import received
from tests.agents.published import decides_by, publish
from tests.agents.test_blocking import RULES
from tests.waiting import eventually, wait_until


@pytest.fixture
def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[blocking.Agent]:
    publish(limits, RULES, revision=3)
    with blocking.Agent(
        settings=AgentSettings(redis_url=redis_url, server="shop-1", state_dir=tmp_path)
    ) as agent:
        wait_until(decides_by(agent, 3))
        yield agent


async def cancelled(task: asyncio.Task[object]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_2_calls_that_wait_when_the_agent_stops_are_allowed(agent: blocking.Agent):
    inner, asked = agent._started(), threading.Semaphore(0)

    async def wait(*given: object, **named: object) -> NoReturn:
        asked.release()
        await asyncio.Event().wait()
        raise AssertionError

    inner.admit_call = inner.admit_request = wait  # type: ignore[method-assign, assignment]
    waiting = [
        asyncio.create_task(agent.aadmit_call("payments")),
        asyncio.create_task(agent.aadmit_request("acme")),
        asyncio.create_task(block(agent)),
    ]
    await asyncio.sleep(0)
    for _ in waiting:
        await asyncio.to_thread(asked.acquire)
    await asyncio.to_thread(agent.stop)
    permit, decision, made = await asyncio.gather(*waiting)
    assert isinstance(permit, Permit)
    assert isinstance(decision, Decision)
    assert (permit.decision.mode, decision.mode, made) == (Mode.LOCAL, Mode.LOCAL, "made")


async def block(agent: blocking.Agent) -> str:
    async with agent.acall("payments"):
        return "made"


@pytest.mark.parametrize("kind", ["request", "call"])
async def test_3_a_loop_that_hangs_delays_no_coroutine(
    agent: blocking.Agent, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr(threads, "LATE_S", 0.05)
    hanging = threading.Event()
    loop = agent._started().loop
    loop.call_soon_threadsafe(hanging.wait, 60)
    try:
        if kind == "request":
            decision = await agent.aadmit_request("acme", 50)
        else:
            decision = (await agent.aadmit_call("single")).decision
        assert not hanging.is_set()
        assert (decision.allowed, decision.mode, agent.late) == (True, Mode.LOCAL, 1)
    finally:
        hanging.set()
    # What the loop decides afterwards is undone.
    monkeypatch.setattr(threads, "LATE_S", 30.0)
    assert await eventually(lambda: allowed(agent, 50) if kind == "request" else granted(agent))


async def allowed(agent: blocking.Agent, cost: int) -> bool:
    return (await agent.aadmit_request("acme", cost)).allowed


async def test_4_a_call_that_is_granted_as_its_caller_is_cancelled_frees_its_slot(agent: blocking.Agent):
    inner = agent._started()
    answered = threading.Event()
    admit_call = inner.admit_call

    async def observed(*given: object, **named: object) -> object:
        permit = await admit_call(*given, **named)  # type: ignore[arg-type]
        asyncio.get_running_loop().call_soon(answered.set)
        return permit

    inner.admit_call = observed  # type: ignore[method-assign, assignment]
    task = asyncio.create_task(agent.aadmit_call("single"))
    await asyncio.sleep(0)
    # This loop is busy while the answer arrives.
    wait_until(answered.is_set)
    await cancelled(task)
    inner.admit_call = admit_call  # type: ignore[method-assign]
    assert await eventually(lambda: granted(agent))


async def granted(agent: blocking.Agent) -> bool:
    try:
        await agent.aadmit_call("single")
    except Refused:
        return False
    return True


def never() -> None:
    raise AssertionError("the answer was not late")


class TestReceived:
    async def begin(self, undo: Callable[[str], None]) -> tuple[Future[str], asyncio.Task[object]]:
        answer: Future[str] = Future()
        task: asyncio.Task[object] = asyncio.create_task(received(answer, undo, never, timeout_s=60))
        await asyncio.sleep(0)
        return answer, task

    async def test_4_an_answer_on_its_way_to_a_cancelled_caller_is_undone(self):
        undone: list[str] = []
        answer, task = await self.begin(undone.append)
        answer.set_running_or_notify_cancel()
        answer.set_result("granted")
        await cancelled(task)
        assert undone == ["granted"]

    @pytest.mark.parametrize("caller", ["waits", "is cancelled"])
    async def test_a_refusal_is_never_logged_as_not_read(self, caplog: pytest.LogCaptureFixture, caller: str):
        answer, task = await self.begin(lambda _: None)
        answer.set_running_or_notify_cancel()
        answer.set_exception(LookupError("refused"))
        with caplog.at_level(logging.ERROR, "asyncio"):
            if caller == "waits":
                with pytest.raises(LookupError):
                    await task
            else:
                await cancelled(task)
            del answer, task
            for _ in range(3):
                await asyncio.sleep(0)
                gc.collect()
        assert not caplog.records

    async def test_a_cancelled_caller_cancels_the_question(self):
        answer, task = await self.begin(lambda _: None)
        await cancelled(task)
        assert answer.cancelled()


async def test_16_async_functions_can_be_decorated(agent: blocking.Agent):
    @agent.guard("single")
    async def charge(amount: int) -> int:
        with pytest.raises(Refused):
            await agent.aadmit_call("single")
        return amount

    @agent.limit(lambda tenant: tenant, cost=50)
    async def report(tenant: str) -> str:
        return tenant

    assert await charge(5) == 5
    assert await report("acme") == "acme"
    with pytest.raises(Refused, match="requests"):
        await report("acme")
