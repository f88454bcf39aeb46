"""What a backlog keeps in order when a question to Redis has no answer: quotas, slots, probes and leases."""

import asyncio
from time import monotonic
from typing import Any

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Reason, Refused, StoreUnavailable
from fuseboard.backlog import Job
from fuseboard.contract.policy import TenantRecord, Tier
from tests.agents.published import publish
from tests.agents.test_backlog import POLICY_HERE, QUOTA, SLOTS, TENANTS, agent, echo, returned
from tests.waiting import eventually

__all__ = ["agent"]


async def unavailable(*_: object, **__: object) -> Any:
    raise StoreUnavailable("a test")


async def test_a_submit_without_an_answer_frees_the_slots_of_its_tenant(
    limits: redis.Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
):
    tiers = (*POLICY_HERE.tiers, Tier(name="slots", quotas=(QUOTA, SLOTS)))
    policy = msgspec.structs.replace(POLICY_HERE, tiers=tiers)
    publish(limits, policy, revision=1, tenants={"acme": TenantRecord(tier="slots")})
    async with Agent(settings=AgentSettings(redis_url=redis_url, server="shop-1")) as agent:
        backlog = agent.backlog("payments")
        monkeypatch.setattr(backlog.scripts, "submit", unavailable)
        # The tenant has 2 slots.
        for _ in range(4):
            with pytest.raises(Refused) as refused:
                await backlog.submit(b"", tenant="acme")
            assert refused.value.decision.reason is Reason.STORE_UNAVAILABLE
            await returned(agent)


async def test_a_caller_that_leaves_pays_for_the_job_that_may_be_queued(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    backlog, queued = agent.backlog("payments"), []
    submit = backlog.scripts.submit

    async def no_answer(asked: list[object], payload: bytes) -> list[int]:
        queued.append(await submit(asked, payload))
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(backlog.scripts, "submit", no_answer)
    for number in range(5):
        submitting = asyncio.create_task(backlog.submit(b"", tenant="acme"))
        await eventually(lambda number=number: len(queued) > number)
        submitting.cancel()
        await asyncio.wait({submitting})
        await returned(agent)
    with pytest.raises(Refused) as refused:
        await backlog.submit(b"", tenant="acme")
    assert refused.value.decision.reason is Reason.QUOTA


@pytest.mark.parametrize("question", ["cancel", "revive", "depth"])
async def test_an_answer_of_another_kind_is_an_error_and_changes_nothing(
    question: str, agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    backlog = agent.backlog("payments")

    async def garbage(*_: object, **__: object) -> bytes:
        return b"garbage"

    monkeypatch.setattr("fuseboard.backlog.scripts.BacklogScripts._ask", garbage)
    with pytest.raises(StoreUnavailable, match="garbage"):
        await getattr(backlog, question)(*([] if question == "depth" else ["job-1"]))


async def test_a_question_without_an_answer_frees_the_local_probe(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    backlog = agent.backlog("payments")
    breaker = backlog.scripts.calls.breakers["payments"]
    breaker._change_local(lambda: breaker.local.take_over(monotonic(), breaker.dependency.breaker), "a test")
    breaker.local.until = 0.0
    assert breaker.wait_locally() == 0.0
    assert breaker.wait_locally() > 0.0
    monkeypatch.setattr(backlog.scripts, "_ask", unavailable)
    with pytest.raises(StoreUnavailable):
        await backlog.scripts.take(1)
    assert breaker.wait_locally() == 0.0


async def test_an_unexpected_error_does_not_end_the_renewal_of_leases(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
):
    backlog, attempts = agent.backlog("payments", lease_s=0.6), []
    slots, failed = backlog.scripts.slots, []

    def fails_once() -> tuple[tuple[str, ...], list[str | int]]:
        if not failed:
            failed.append(True)
            raise KeyError("a bug")
        return slots()

    monkeypatch.setattr(backlog.renewal, "_slots", fails_once)

    async def run(job: Job) -> None:
        attempts.append(job.attempt)
        first = job.lease_until
        await eventually(lambda: job.lease_until > first)

    await backlog.submit(b"", job_id="a")
    working = asyncio.create_task(backlog.work(run))
    assert (await backlog.result("a", wait_s=20)).status == "done"
    assert (attempts, failed) == ([1], [True])
    working.cancel()


async def test_results_can_be_asked_for_after_a_restart(limits: redis.Redis, redis_url: str):
    publish(limits, POLICY_HERE, revision=1, tenants=TENANTS)
    agent = Agent(settings=AgentSettings(redis_url=redis_url, server="shop-1"))
    async with agent:
        backlog = agent.backlog("payments")
        await backlog.depth()
        backlog._asked["lost with its loop"] = asyncio.get_running_loop().create_future()
    async with agent:
        working = asyncio.create_task(backlog.work(echo))
        await backlog.submit(b"", job_id="a")
        assert (await asyncio.wait_for(backlog.result("a", wait_s=20), 20)).status == "done"
        working.cancel()
