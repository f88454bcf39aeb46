"""Decisions that begin without a task: at once from memory, else when what they wait for is there."""

import asyncio
import io
import tokenize
from collections.abc import Coroutine
from contextvars import ContextVar
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
from tests.agents.servers import POLICY, configured, running
from tests.begun import Begun
from tests.waiting import eventually

#: The parts that a decision can be in before it has waited twice.
PARTS = ("admission", "batching", "breaker", "calling", "envoy", "protection", "serving", "without_redis")
#: A module that only tasks call: workers hand reports on, and their supervisor gathers figures.
IN_TASKS = "serving/unix_client.py"
#: Names of asyncio that need the task of the decision.
NEED_A_TASK = {"current_task", "timeout", "timeout_at", "wait_for", "TaskGroup", "Runner", "to_thread"}

PLENTY = Limit(
    name="requests", limit=1_000, window_ms=1_000, burst=1_000, failure_policy=FailurePolicy.LOCAL_SHARE
)
PLENTIFUL = msgspec.structs.replace(
    POLICY, tiers=(msgspec.structs.replace(POLICY.tiers[0], quotas=(PLENTY,)), POLICY.tiers[1])
)


async def at_once(decision: Coroutine[Any, Any, Any]) -> Any:
    begun = Begun(decision)
    assert not begun.waits
    return await begun.result()


async def later(decision: Coroutine[Any, Any, Any]) -> Any:
    begun = waiting(decision)
    return await begun.result()


def waiting(decision: Coroutine[Any, Any, Any]) -> Begun[Any]:
    begun = Begun(decision)
    assert begun.waits
    return begun


async def either(decision: Coroutine[Any, Any, Any]) -> Any:
    return await Begun(decision).result()


async def test_what_a_pod_knows_is_decided_without_a_task(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        admit = server.admission.admit_request
        assert (await at_once(admit("big"))).allowed  # it has no quotas
        assert (await at_once(admit("late-payer"))).reason is Reason.SUSPENDED
        assert (await at_once(admit("acme", 21))).rule == "requests"  # it never fits


async def test_what_redis_decides_gets_a_task_and_a_lease_needs_none(limits: redis.Redis, redis_url: str):
    async with running(redis_url, configuration=configured(PLENTIFUL)) as server:
        assert (await later(server.admission.admit_request("acme"))).mode is Mode.SHARED

        async def leased() -> Decision | None:
            begun = Begun(server.admission.admit_request("acme"))
            decision = await begun.result()
            return None if begun.waits else decision

        decision: Decision | None = await eventually(leased, "a decision from a lease", every_s=0.001)
        assert decision is not None
        assert (decision.allowed, decision.leased) == (True, True)


async def test_a_pod_without_redis_needs_no_task(redis_url: str):
    async with running("redis://127.0.0.1:1", connected=False) as server:
        assert (await at_once(server.admission.admit_request("acme"))).mode is Mode.LOCAL
        permit = await at_once(server.admission.admit_call("payments"))
        server.admission.report(permit, Outcome.OK)


async def test_all_that_begin_in_one_tick_share_a_question_with_usual_tasks(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url) as server:
        before = server.counters.store_answers
        admit = server.admission.admit_request
        asked: list[Coroutine[Any, Any, Decision]] = []
        for _ in range(20):
            asked += (waiting(admit("acme")).result(), admit("acme"))
        decisions = await asyncio.gather(*asked)
        assert sum(decision.allowed for decision in decisions) == 20  # the burst
        assert server.counters.store_answers <= before + 2  # one question, and maybe one for a lease


async def test_an_unknown_tenant_waits_for_its_record_in_a_task(limits: redis.Redis, redis_url: str):
    async with running(redis_url) as server:
        arriving = asyncio.get_running_loop().create_future()
        server.configuration.fetch = lambda: arriving
        admit = server.admission.admit_request
        first, second = waiting(admit("new")), waiting(admit("new"))
        arriving.set_result(None)
        assert [(await first.result()).allowed, (await second.result()).allowed] == [True, True]


async def test_a_request_that_waits_for_the_end_of_a_refusal_does_so_in_a_task(
    limits: redis.Redis, redis_url: str
):
    async with running(redis_url) as server:
        for _ in range(20):
            assert (await later(server.admission.admit_request("acme"))).allowed
        refused = await later(server.admission.admit_request("acme"))
        assert not refused.allowed
        # Refused from memory, so it sleeps.
        assert (await later(server.admission.admit_request("acme", wait_s=10.0))).allowed


async def test_a_call_that_waits_for_a_slot_does_so_in_a_task(limits: redis.Redis, redis_url: str):
    payments = msgspec.structs.replace(
        POLICY.dependencies[0],
        vendor_limits=(),
        protection=CallProtection(bulkhead=Bulkhead(max_concurrent=1, queue_timeout_ms=10_000)),
    )
    policy = msgspec.structs.replace(POLICY, dependencies=(payments,))
    async with running(redis_url, configuration=configured(policy)) as server:
        first = await either(server.admission.admit_call("payments", tier="critical"))
        second = waiting(server.admission.admit_call("payments", tier="critical"))
        third = waiting(server.admission.admit_call("payments", tier="critical"))
        third.cancel()
        with pytest.raises(asyncio.CancelledError):
            await third.result()
        server.admission.report(first, Outcome.OK)
        server.admission.report(await second.result(), Outcome.OK)
        server.admission.report(
            await either(server.admission.admit_call("payments", tier="critical")), Outcome.OK
        )


@pytest.mark.parametrize("waits", [0, 1, 2])
async def test_a_refusal_is_raised_at_once_or_with_the_answer(waits: int) -> None:
    async def refuse() -> None:
        for _ in range(waits):
            await asyncio.sleep(0.001)
        raise Refused(Decision(allowed=False))

    with pytest.raises(Refused):
        await either(refuse())


@pytest.mark.parametrize("tenant", ["acme", "new"])
async def test_one_who_no_longer_waits_has_spent_nothing(
    tenant: str, limits: redis.Redis, redis_url: str
) -> None:
    async with running(redis_url) as server:
        admit = server.admission.admit_request
        for ticks in range(40):
            begun = Begun(admit(tenant, 20))
            for _ in range(ticks % 4):
                await asyncio.sleep(0)
            if begun.waits:
                begun.cancel()
            (decided,) = await asyncio.gather(begun.result(), return_exceptions=True)
            if isinstance(decided, Decision):
                server.admission.give_back(decided)

            async def whole() -> Decision:
                decision: Decision = await either(admit(tenant, 20))
                return decision

            server.admission.give_back(await eventually(whole, accept=lambda decision: decision.allowed))


class Steps:
    """A decision that waits for several futures, and notes what happens to it."""

    def __init__(self, waits: int) -> None:
        self.futures = [asyncio.get_running_loop().create_future() for _ in range(waits)]
        self.log: list[str] = []

    async def decide(self) -> str:
        try:
            for future in self.futures:
                self.log.append("waits")
                self.log.append(await future)
        except asyncio.CancelledError:
            self.log.append("cancelled")
            raise
        finally:
            self.log.append("ends")
        return "answer"


async def _few_ticks() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_decision_goes_on_with_each_thing_that_it_waits_for() -> None:
    steps = Steps(3)
    begun = waiting(steps.decide())
    for number, future in enumerate(steps.futures):
        assert steps.log == ["waits", *["done", "waits"] * number]
        future.set_result("done")
        await _few_ticks()
    assert await begun.result() == "answer"


@pytest.mark.parametrize("done_before", [0, 1, 2])
async def test_a_decision_that_is_cancelled_is_cancelled_where_it_waits(done_before: int) -> None:
    steps = Steps(3)
    begun = waiting(steps.decide())
    for future in steps.futures[:done_before]:
        future.set_result("done")
        await _few_ticks()
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun.result()
    assert steps.log == [*["waits", "done"] * done_before, "waits", "cancelled", "ends"]
    assert steps.futures[done_before].cancelled()


@pytest.mark.parametrize("done_before", [0, 1])
async def test_one_who_leaves_as_the_wait_ends_is_cancelled_at_the_next_one(done_before: int) -> None:
    steps = Steps(3)
    begun = waiting(steps.decide())
    for future in steps.futures[:done_before]:
        future.set_result("done")
        await _few_ticks()
    steps.futures[done_before].set_result("done")
    begun.cancel()
    with pytest.raises(asyncio.CancelledError):
        await begun.result()
    assert steps.log[-2:] == ["cancelled", "ends"]


async def test_one_who_leaves_as_the_last_wait_ends_gets_the_answer() -> None:
    """So that who began it can give it back."""
    steps = Steps(1)
    begun = waiting(steps.decide())
    steps.futures[0].set_result("done")
    begun.cancel()
    assert await begun.result() == "answer"


async def test_a_decision_that_only_lets_others_go_first_goes_on() -> None:
    async def decide() -> str:
        await asyncio.sleep(0)
        return "answer"

    assert await later(decide()) == "answer"


async def test_what_a_decision_sets_for_itself_is_not_seen_by_others() -> None:
    name: ContextVar[str] = ContextVar("name", default="")
    future = asyncio.get_running_loop().create_future()

    async def decide() -> str:
        await future
        name.set("mine")
        await asyncio.sleep(0.001)
        return name.get()

    begun = waiting(decide())
    future.set_result(None)
    assert await begun.result() == "mine"
    assert name.get() == ""


def test_no_part_of_a_decision_needs_a_task():
    """Or ``begin`` would fail where it runs outside of one."""
    package = Path(fuseboard.__file__).parent
    found = [
        f"{path.relative_to(package)}: {name}"
        for part in PARTS
        for path in sorted((package / part).rglob("*.py"))
        for name in of_asyncio(path.read_text())
        if name in NEED_A_TASK and path != package / IN_TASKS
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
