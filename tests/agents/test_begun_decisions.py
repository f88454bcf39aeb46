"""Decisions that begin without a task: at once from memory, else in a task that knows nothing of it."""

import asyncio
import io
import tokenize
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis

import fuseboard
from fuseboard.contract.policy import Limit
from fuseboard.contract.protection import Bulkhead, CallProtection
from fuseboard.contract.words import FailurePolicy, Mode, Outcome, Reason
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.serving.call import begin
from tests.agents.servers import POLICY, configured, running
from tests.waiting import eventually

#: The parts that a decision can be in before it has waited.
PARTS = ("admission", "batching", "breaker", "calling", "protection", "serving", "without_redis")
#: Names of asyncio that need the task of the decision.
NEED_A_TASK = {"current_task", "timeout", "timeout_at", "wait_for", "TaskGroup", "Runner", "to_thread"}

PLENTY = Limit(
    name="requests", limit=1_000, window_ms=1_000, burst=1_000, failure_policy=FailurePolicy.LOCAL_SHARE
)
PLENTIFUL = msgspec.structs.replace(
    POLICY, tiers=(msgspec.structs.replace(POLICY.tiers[0], quotas=(PLENTY,)), POLICY.tiers[1])
)


def at_once(decision: Coroutine[Any, Any, Any]) -> Any:
    answer = begin(decision)
    assert not isinstance(answer, asyncio.Task), "it waited"
    return answer


async def later(decision: Coroutine[Any, Any, Any]) -> Any:
    answer = begin(decision)
    assert isinstance(answer, asyncio.Task), "it did not wait"
    return await answer


async def either(decision: Coroutine[Any, Any, Any]) -> Any:
    answer = begin(decision)
    return await answer if isinstance(answer, asyncio.Task) else answer


async def test_what_a_pod_knows_is_decided_without_a_task(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        admit = server.admission.admit_request
        assert at_once(admit("big")).allowed  # it has no quotas
        assert at_once(admit("late-payer")).reason is Reason.SUSPENDED
        assert at_once(admit("acme", 21)).rule == "requests"  # it never fits


async def test_what_redis_decides_gets_a_task_and_a_lease_needs_none(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(PLENTIFUL)) as server:
        assert (await later(server.admission.admit_request("acme"))).mode is Mode.SHARED

        async def leased() -> Decision | None:
            answer = begin(server.admission.admit_request("acme"))
            if isinstance(answer, asyncio.Task):
                await answer
                return None
            return answer

        decision: Decision | None = await eventually(leased, "a decision from a lease", every_s=0.001)
        assert decision is not None
        assert (decision.allowed, decision.leased) == (True, True)


async def test_a_pod_without_redis_needs_no_task(redis_url: str):
    async with running("redis://127.0.0.1:1", connected=False) as server:
        assert at_once(server.admission.admit_request("acme")).mode is Mode.LOCAL
        permit = at_once(server.admission.admit_call("payments"))
        server.admission.report(permit, Outcome.OK)


async def test_all_that_begin_in_one_tick_share_a_question_with_usual_tasks(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url) as server:
        before = server.counters.store_answers
        waiting: list[asyncio.Task[Decision]] = []
        for _ in range(20):
            begun = begin(server.admission.admit_request("acme"))
            assert isinstance(begun, asyncio.Task)
            waiting += (begun, asyncio.create_task(server.admission.admit_request("acme")))
        decisions = await asyncio.gather(*waiting)
        assert sum(decision.allowed for decision in decisions) == 20  # the burst
        assert server.counters.store_answers <= before + 2  # one question, and maybe one for a lease


async def test_an_unknown_tenant_waits_for_its_record_in_a_task(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        arriving = asyncio.get_running_loop().create_future()
        server.configuration.fetch = lambda: arriving
        first, second = (
            begin(server.admission.admit_request("new")),
            begin(server.admission.admit_request("new")),
        )
        assert isinstance(first, asyncio.Task)
        assert isinstance(second, asyncio.Task)
        arriving.set_result(None)
        assert [(await first).allowed, (await second).allowed] == [True, True]


async def test_a_request_that_waits_for_the_end_of_a_refusal_does_so_in_a_task(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url) as server:
        for _ in range(20):
            assert (await later(server.admission.admit_request("acme"))).allowed
        refused = await later(server.admission.admit_request("acme"))
        assert not refused.allowed
        patient = begin(
            server.admission.admit_request("acme", wait_s=10.0)
        )  # refused from memory, so it sleeps
        assert isinstance(patient, asyncio.Task)
        assert (await patient).allowed


async def test_a_call_that_waits_for_a_slot_does_so_in_a_task(limits: redis.Redis, redis_url: str):
    payments = msgspec.structs.replace(
        POLICY.dependencies[0],
        vendor_limits=(),
        protection=CallProtection(bulkhead=Bulkhead(max_concurrent=1, queue_timeout_ms=10_000)),
    )
    policy = msgspec.structs.replace(POLICY, dependencies=(payments,))
    async with running(redis_url, configuration=configured(policy)) as server:
        first = await either(server.admission.admit_call("payments", tier="critical"))
        second = begin(server.admission.admit_call("payments", tier="critical"))
        third = begin(server.admission.admit_call("payments", tier="critical"))
        assert isinstance(second, asyncio.Task)
        assert isinstance(third, asyncio.Task)
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third
        server.admission.report(first, Outcome.OK)
        server.admission.report(await second, Outcome.OK)
        server.admission.report(
            await either(server.admission.admit_call("payments", tier="critical")), Outcome.OK
        )


async def test_a_refusal_is_raised_at_once_or_by_the_task(limits: redis.Redis, redis_url: str):
    async def refuse(*, waits: bool) -> None:
        if waits:
            await asyncio.sleep(0)
        raise Refused(Decision(allowed=False))

    with pytest.raises(Refused):
        begin(refuse(waits=False))
    task = begin(refuse(waits=True))
    assert isinstance(task, asyncio.Task)
    with pytest.raises(Refused):
        await task


async def test_one_who_no_longer_waits_has_spent_nothing(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        for ticks in range(40):
            task = begin(server.admission.admit_request("acme", 20))
            assert isinstance(task, asyncio.Task)
            for _ in range(ticks % 4):
                await asyncio.sleep(0)
            task.cancel()
            (decided,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(decided, Decision):
                server.admission.give_back(decided)

            async def whole() -> Decision:
                decision: Decision = await either(server.admission.admit_request("acme", 20))
                return decision

            server.admission.give_back(await eventually(whole, accept=lambda decision: decision.allowed))


async def test_a_task_that_is_closed_closes_the_decision():
    closed: list[bool] = []

    async def decide() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            closed.append(True)

    task = begin(decide())
    assert isinstance(task, asyncio.Task)
    await asyncio.sleep(0)
    coroutine = task.get_coro()
    assert coroutine is not None
    coroutine.close()
    assert closed == [True]
    task.cancel()
    await asyncio.wait({task})


def test_no_part_of_a_decision_needs_a_task():
    """Or ``begin`` would fail where it runs outside of one."""
    package = Path(fuseboard.__file__).parent
    found = [
        f"{path.relative_to(package)}: {name}"
        for part in PARTS
        for path in sorted((package / part).rglob("*.py"))
        for name in of_asyncio(path.read_text())
        if name in NEED_A_TASK
    ]
    assert found == []


def of_asyncio(text: str) -> list[str]:
    """The names that a module takes from asyncio. Comments and texts name some, too."""
    words = [
        token.string
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type in (tokenize.NAME, tokenize.OP, tokenize.NEWLINE)
    ]
    assert ("import", "asyncio", "as") not in zip(words, words[1:], words[2:], strict=False)
    found, imports = [], False
    for place, word in enumerate(words):
        imports = word != "\n" and (imports or words[place - 1 : place + 1] == ["from", "asyncio"])
        if imports or words[max(0, place - 2) : place] == ["asyncio", "."]:
            found.append(word)
    return found


def test_the_search_finds_what_needs_a_task():
    imports = "import asyncio\nfrom asyncio import (\n    Future,\n    timeout as bound,\n)\n"
    text = f"{imports}\nasyncio.current_task()\n"
    assert NEED_A_TASK.intersection(of_asyncio(text)) == {"timeout", "current_task"}
    assert of_asyncio("import asyncio  # not asyncio.timeout\n\ntimeout = 'asyncio.timeout'\n") == []
