"""What the tests of applications use: it behaves as the agent does."""

import asyncio
import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import fuseboard
from fuseboard import Agent, Default, Outcome, Reason, Refused
from fuseboard.testing import FakeAgent, ManualClock, attempts, fuseboard_agent, no_sleep

__all__ = ["fuseboard_agent"]

#: What an application calls.
SURFACE = (
    "admit_request", "admit_together", "admit_call", "request", "call", "limit", "guard", "retrying", "retry",
    "fallback", "gather_tiers", "report", "report_error", "settle", "charge_after", "charge_again", "finish",
    "give_back",
)  # fmt: skip


#: What the agent knows of its environment, and a deprecated name. docs/protection.md lists them.
EXCEPTIONS = {
    "check", "configuration", "counters", "idempotency", "metrics_text", "note_left", "observer",
    "sidecar_figures",
}  # fmt: skip


@pytest.mark.parametrize("name", SURFACE)
def test_the_fake_has_the_signature_of_the_agent(name: str):
    assert inspect.signature(getattr(FakeAgent, name)) == inspect.signature(getattr(Agent, name))


async def ask(agent: FakeAgent) -> str:
    async for attempt in agent.retrying("api"):
        async with attempt:
            pass
    return "answer"


async def test_a_call_is_admitted_counted_and_reported(fuseboard_agent: FakeAgent):
    assert await ask(fuseboard_agent) == "answer"
    assert fuseboard_agent.calls == ["api"]
    assert fuseboard_agent.outcomes == [("api", Outcome.OK)]
    assert fuseboard_agent.held("api") == 0
    permit = await fuseboard_agent.admit_call("api")
    assert fuseboard_agent.held("api") == 1
    fuseboard_agent.give_back(permit)
    assert fuseboard_agent.outcomes[-1] == ("api", Outcome.NEUTRAL)


async def test_it_refuses_on_demand(fuseboard_agent: FakeAgent):
    fuseboard_agent.open("api")
    with pytest.raises(Refused) as caught:
        await ask(fuseboard_agent)
    assert (caught.value.decision.reason, caught.value.decision.retry_after_ms) == (
        Reason.BREAKER_OPEN,
        30_000,
    )
    fuseboard_agent.full("api", times=1)
    with pytest.raises(Refused) as full:
        await ask(fuseboard_agent)
    assert full.value.decision.retry_after_ms == 1000  # the least that a pod says
    fuseboard_agent.full("api", retry_after_s=7, times=1)
    with pytest.raises(Refused) as full:
        await ask(fuseboard_agent)
    assert full.value.decision.retry_after_ms == 7000
    assert await ask(fuseboard_agent) == "answer"
    fuseboard_agent.open("api")
    fuseboard_agent.admit("api")
    assert await ask(fuseboard_agent) == "answer"
    assert [one.reason for one in fuseboard_agent.refusals] == [
        Reason.BREAKER_OPEN,
        Reason.BULKHEAD_FULL,
        Reason.BULKHEAD_FULL,
    ]
    fuseboard_agent.shed("acme")
    assert (await fuseboard_agent.admit_request("acme")).reason is Reason.SHED
    assert (await fuseboard_agent.admit_request("other")).allowed


async def test_it_fails_and_retries_without_waiting(fuseboard_agent: FakeAgent):
    began = fuseboard_agent.clock()
    fuseboard_agent.next("api", Outcome.FAILURE, after_s=2)
    fuseboard_agent.timeout("api", after_s=30)
    assert await ask(fuseboard_agent) == "answer"
    assert fuseboard_agent.retried == 2
    assert len(fuseboard_agent.waits) == 2
    assert fuseboard_agent.clock() - began == pytest.approx(32 + sum(fuseboard_agent.waits))
    assert [outcome for _, outcome in fuseboard_agent.outcomes] == [Outcome.FAILURE] * 2 + [Outcome.OK]


async def test_the_budget_is_what_the_test_says(fuseboard_agent: FakeAgent):
    fuseboard_agent.budget(0)
    fuseboard_agent.next("api", Outcome.FAILURE)
    with pytest.raises(ConnectionError) as caught:
        await ask(fuseboard_agent)
    assert "budget" in caught.value.__notes__[0]
    fuseboard_agent.budget(5)
    fuseboard_agent.next("api", Outcome.FAILURE)
    with attempts(1), pytest.raises(ConnectionError):
        await ask(fuseboard_agent)
    assert fuseboard_agent.retried == 0


async def test_a_wait_for_a_slot_and_a_fallback(fuseboard_agent: FakeAgent):
    began = fuseboard_agent.clock()
    fuseboard_agent.queue("api", wait_s=3)
    fuseboard_agent.timeout("api")
    chain = fuseboard_agent.fallback("api", [Default("sorry")])
    with attempts(1):
        answer = await chain.run(lambda: ask(fuseboard_agent))
    assert (answer.value, answer.reason) == ("sorry", "TimeoutError")
    assert fuseboard_agent.clock() - began == 3


async def test_a_deadline_passes_by_the_clock(fuseboard_agent: FakeAgent):
    fuseboard_agent.next("api", Outcome.FAILURE, after_s=60)
    with fuseboard.deadline(20), pytest.raises(ConnectionError) as caught:
        await ask(fuseboard_agent)
    assert "deadline" in caught.value.__notes__[0]


async def test_a_deadline_that_has_passed_refuses_the_call(fuseboard_agent: FakeAgent):
    """A test of what happens then was green, and production refused."""
    for wrong in (-1, 0.0, "x"):
        with pytest.raises(fuseboard.Misconfigured, match="deadline_s"):
            await fuseboard_agent.admit_call("api", deadline_s=wrong)  # type: ignore[arg-type]
    fuseboard_agent.queue("api", wait_s=3)
    began = fuseboard_agent.clock()
    with pytest.raises(Refused) as caught:
        await fuseboard_agent.admit_call("api", deadline_s=2)
    assert caught.value.decision.reason is Reason.QUEUE_TIMEOUT
    assert fuseboard_agent.clock() - began == pytest.approx(2)
    fuseboard_agent.admit("api")
    permit = await fuseboard_agent.admit_call("api", deadline_s=60)
    assert permit.timeout_s == pytest.approx(60)
    fuseboard_agent.give_back(permit)
    fuseboard_agent.clock.advance(100)
    with fuseboard.deadline(60), pytest.raises(Refused):
        await ask(fuseboard_agent)


async def test_each_outcome_is_reported_as_the_test_says(fuseboard_agent: FakeAgent):
    """Both outcomes were ok."""
    for outcome in (Outcome.SLOW, Outcome.NEUTRAL):
        fuseboard_agent.next("api", outcome)
        assert await ask(fuseboard_agent) == "answer"
    assert [outcome for _, outcome in fuseboard_agent.outcomes] == [Outcome.SLOW, Outcome.NEUTRAL]


async def test_functions_in_threads_are_guarded_and_retried(fuseboard_agent: FakeAgent):
    """The threads had no running loop."""

    @fuseboard_agent.guard("api")
    def guarded() -> str:
        return "answer"

    @fuseboard_agent.retry("api")
    def retried() -> str:
        return "answer"

    assert await asyncio.to_thread(guarded) == "answer"
    fuseboard_agent.timeout("api")
    assert await asyncio.to_thread(retried) == "answer"
    assert [outcome for _, outcome in fuseboard_agent.outcomes] == [Outcome.OK, Outcome.FAILURE, Outcome.OK]
    fuseboard_agent.open("api")
    with pytest.raises(Refused):
        await asyncio.to_thread(guarded)
    with pytest.raises(fuseboard.Misconfigured, match="block the event loop"):
        guarded()


async def test_it_refuses_what_the_agent_refuses(fuseboard_agent: FakeAgent):
    """M7."""
    with pytest.raises(fuseboard.Misconfigured, match="subject"):
        await fuseboard_agent.admit_request(None)
    decision = await fuseboard_agent.admit_request("acme")
    with pytest.raises(fuseboard.Misconfigured):
        fuseboard_agent.settle(decision, "tokens", -5)
    fuseboard_agent.shed("acme")
    entered = fuseboard_agent.enter_request("acme")
    assert isinstance(entered, fuseboard.Decision)
    assert fuseboard_agent.enter_request("other") is None


def test_each_public_name_of_the_agent_is_in_the_fake_or_here():
    missing = {name for name in dir(Agent) if not name.startswith("_")} - set(dir(FakeAgent))
    assert missing == EXCEPTIONS


def test_the_fixture_fails_a_test_that_keeps_a_slot():
    fixture: Iterator[FakeAgent] = inspect.unwrap(fuseboard_agent.__wrapped__)()  # type: ignore[attr-defined]
    agent = next(fixture)
    asyncio.run(agent.admit_call("api"))
    with pytest.raises(pytest.fail.Exception, match=r"still held: \{'api': 1\}"):
        next(fixture)


async def test_no_sleep_records_what_would_be_waited():
    clock = ManualClock()
    agent = FakeAgent(clock=clock)
    agent.next("api", Outcome.FAILURE)
    began = clock()
    with no_sleep(clock) as waits:
        await ask(agent)
    assert len(waits) == 1
    assert clock() == began + waits[0]


@pytest.mark.parametrize("wrong", [{"name": ""}, {"name": "report", "ttl_s": 0}, {"name": "r", "wait_s": 11}])
def test_a_lock_of_the_fake_refuses_what_a_real_one_refuses(wrong: dict[str, Any]):
    with pytest.raises(fuseboard.Misconfigured):
        FakeAgent().lock(**wrong)


async def test_a_lock_of_the_fake_is_taken_and_lost_when_the_test_says_so():
    agent = FakeAgent()
    async with agent.lock("report") as first:
        with pytest.raises(fuseboard.LockTaken), agent.lock("report"):
            pytest.fail("entered")
    with agent.lock("report") as second:
        assert second.fence > first.fence
        assert second.valid
        second.check()
    agent.take_lock("report")
    began = agent.clock()
    with pytest.raises(fuseboard.LockTaken):
        await agent.lock("report", wait_s=3).__aenter__()
    assert agent.clock() == began + 3
    agent.free_lock("report")
    lock = agent.lock("report").__enter__()
    agent.take_lock("report")
    with pytest.raises(fuseboard.LockLost):
        lock.check()
    with pytest.raises(fuseboard.LockLost):
        lock.__exit__(None, None, None)
