"""The API for applications: blocks, decorators, costs and their settlement, and wrong use."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Misconfigured, Mode, Outcome, Reason, Refused, Subject
from fuseboard.calling.outcomes import judge, retry_after_ms
from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency, Limit, Tier
from fuseboard.contract.words import Algorithm, Dimension, Period
from tests.agents.published import publish
from tests.agents.servers import BREAKER, POLICY, TUNING
from tests.waiting import eventually

REQUESTS = Limit(name="requests", limit=3, window_ms=60_000, burst=3)
OPEN = Limit(name="open", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
TOKENS = Limit(
    name="tokens", limit=1000, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW, measure="tokens"
)
SPEND = Limit(
    name="spend",
    limit=500,
    window_ms=86_400_000,
    algorithm=Algorithm.FIXED_WINDOW,
    period=Period.DAY,
    measure="micro_usd",
    warn_percent=80,
)
PER_USER = Limit(name="per-user", limit=1, window_ms=60_000, per=(Dimension.USER,))
PER_IP = Limit(name="per-ip", limit=2, window_ms=60_000, burst=2, per=(Dimension.IP,))
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(
        Tier(name="free", quotas=(REQUESTS,)),
        Tier(name="slots", quotas=(OPEN,)),
        Tier(name="budget", quotas=(SPEND,)),
        Tier(name="users", quotas=(PER_USER,)),
    ),
    subject_limits=(PER_IP,),
    dependencies=(
        Dependency(name="payments", breaker=BREAKER),
        Dependency(name="llm", vendor_limits=(TOKENS,), breaker=BREAKER),
        Dependency(name="single", vendor_limits=(OPEN,), breaker=BREAKER),
    ),
    tuning=TUNING,
)


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    from fuseboard.contract.policy import TenantRecord

    tenants = {tier: TenantRecord(tier=tier) for tier in ("slots", "budget", "users")}
    publish(limits, RULES, revision=3, tenants=tenants)
    settings = AgentSettings(redis_url=redis_url, server="shop-1", state_dir=tmp_path)
    async with Agent(settings=settings) as agent:
        # Also where connecting takes longer than ``start`` waits for it.
        await eventually(lambda: agent.mode is Mode.SHARED)
        await eventually(lambda: agent.configuration.snapshot.head.revision == 3)
        yield agent


def left(decision: Any, name: str) -> int | None:
    return next(limit.remaining for limit in decision.limits if limit.name == name)


class TestRequests:
    async def test_a_block_frees_its_slot_however_it_ends(self, agent: Agent):
        for error in (None, LookupError, asyncio.CancelledError, None):
            try:
                async with agent.request("slots", wait_s=5):
                    assert (await agent.admit_request("slots")).reason is Reason.CONCURRENCY
                    if error is not None:
                        raise error
            except (LookupError, asyncio.CancelledError):
                pass

    async def test_a_refused_block_is_not_entered(self, agent: Agent):
        for _ in range(3):
            async with agent.request("acme"):
                pass
        with pytest.raises(Refused, match="refused \\(quota\\) by requests"):
            async with agent.request("acme"):
                pytest.fail("entered")

    async def test_a_decorated_function_is_a_request_of_the_tenant_its_arguments_name(self, agent: Agent):
        @agent.limit(lambda order: order["tenant"], cost=lambda order: order["items"])
        async def place(order: dict[str, Any]) -> str:
            """Place an order."""
            return "placed"

        assert place.__doc__ == "Place an order."
        assert await place({"tenant": "acme", "items": 3}) == "placed"
        with pytest.raises(Refused):
            await place({"tenant": "acme", "items": 1})
        assert await place({"tenant": "other", "items": 1}) == "placed"

    async def test_users_of_one_tenant_are_counted_apart(self, agent: Agent):
        decisions = [
            await agent.admit_request("users", subject=Subject(user=user)) for user in ("ada", "bob", "ada")
        ]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert decisions[2].rule == "per-user"

    async def test_a_caller_without_a_tenant_is_decided_by_its_address(self, agent: Agent):
        ip = Subject(ip="192.0.2.1")
        decisions = [await agent.admit_request(None, subject=ip) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert (decisions[2].rule, decisions[2].tenant) == ("per-ip", "")
        assert (await agent.admit_request(None, subject=Subject(ip="192.0.2.2"))).allowed

    @pytest.mark.parametrize("ip", ["x" * 300, "a\nb", "\ud800"])
    async def test_an_impossible_address_neither_fails_nor_escapes_the_limit(self, agent: Agent, ip: str):
        decisions = [await agent.admit_request(None, subject=Subject(ip=ip)) for _ in range(3)]
        assert [decision.allowed for decision in decisions] == [True, True, False]
        assert agent.defects == 0

    async def test_waiting_is_bounded_and_a_refusal_that_outlasts_it_comes_at_once(self, agent: Agent):
        await agent.admit_request("acme", 3)
        started = asyncio.get_running_loop().time()
        assert not (await agent.admit_request("acme", wait_s=10)).allowed
        assert asyncio.get_running_loop().time() - started < 10


class TestCosts:
    async def test_an_estimate_is_reserved_and_the_actual_cost_settled(self, agent: Agent):
        async with agent.call("llm", costs={"tokens": 900}) as permit:
            assert left(permit.decision, "tokens") == 100
            with pytest.raises(Refused) as refused:
                await agent.admit_call("llm", costs={"tokens": 200})
            assert refused.value.decision.reason is Reason.VENDOR_LIMIT
            permit.settle("tokens", 120)
            permit.settle("tokens", 1)  # each measure once

        async def settled() -> bool:
            probe = await agent.admit_call("llm", costs={"tokens": 1}, wait_s=1)
            agent.give_back(probe)
            return left(probe.decision, "tokens") == 1000 - 120 - 1

        await eventually(settled)

    async def test_a_budget_warns_and_then_refuses_with_its_own_word(self, agent: Agent):
        warned = await agent.admit_request("budget", costs={"micro_usd": 450})
        assert warned.limits[0].warning
        refused = await agent.admit_request("budget", costs={"micro_usd": 100})
        assert refused.reason is Reason.BUDGET_SPENT
        assert "limit 'spend' (fixed_window, 500 micro_usd per 1 d, 50 left)" in refused.explain()

    async def test_a_request_that_was_not_served_spent_nothing(self, agent: Agent):
        agent.give_back(await agent.admit_request("acme", 3))

        async def again() -> bool:
            return (await agent.admit_request("acme", 3)).allowed

        await eventually(again)

    async def test_a_call_that_was_not_made_frees_its_slot_and_says_nothing(self, agent: Agent):
        agent.give_back(await agent.admit_call("single"))
        async with agent.call("single", wait_s=5) as permit:
            assert permit.decision.allowed, "free again"


class TestCalls:
    async def test_a_decorated_function_is_a_call(self, agent: Agent):
        @agent.guard("payments", neutral=(LookupError,))
        async def charge(amount: int) -> int:
            if amount == 0:
                raise LookupError
            if amount < 0:
                raise TimeoutError
            return amount

        assert await charge(5) == 5
        with pytest.raises(LookupError):
            await charge(0)
        with pytest.raises(TimeoutError):
            await charge(-1)
        assert outcomes(agent) == {Outcome.OK: 1, Outcome.NEUTRAL: 1, Outcome.FAILURE: 1}

    async def test_one_exception_without_a_tuple_is_not_called_with_the_arguments(self, agent: Agent):
        @agent.guard("payments", neutral=LookupError)  # type: ignore[arg-type]
        async def charge(amount: int) -> int:
            raise LookupError(amount)

        with pytest.raises(LookupError):
            await charge(5)
        assert outcomes(agent) == {Outcome.NEUTRAL: 1}

    async def test_a_blocking_function_is_guarded_in_a_thread_and_refused_on_the_loop(self, agent: Agent):
        @agent.guard("payments")
        def charge(amount: int) -> int:
            return amount

        assert await asyncio.to_thread(charge, 7) == 7
        await eventually(lambda: outcomes(agent) == {Outcome.OK: 1})
        with pytest.raises(Misconfigured, match="thread"):
            charge(7)

    async def test_a_cooldown_applies_to_the_whole_fleet(self, agent: Agent, limits: redis.Redis):
        request = httpx.Request("GET", "http://vendor")
        response = httpx.Response(429, headers={"Retry-After": "60"}, request=request)
        with pytest.raises(httpx.HTTPStatusError):
            async with agent.call("payments"):
                response.raise_for_status()
        with pytest.raises(Refused) as refused:
            await agent.admit_call("payments")
        assert refused.value.decision.reason is Reason.COOLING_DOWN
        assert 55_000 < refused.value.decision.retry_after_ms <= 60_001
        await eventually(lambda: limits.exists(keys.cooldown("production", "payments")))
        assert outcomes(agent) == {Outcome.NEUTRAL: 1}

    async def test_a_permit_reports_and_settles_from_any_thread(self, agent: Agent):
        permit = await agent.admit_call("llm", costs={"tokens": 10})

        def elsewhere() -> None:
            permit.settle("tokens", 20)
            agent.report(permit, Outcome.OK)

        await asyncio.to_thread(elsewhere)
        await eventually(lambda: permit.reported)
        assert agent.defects == 0


class TestWrongUse:
    """Told at once, with the rule; never a refusal that says to try again."""

    @pytest.mark.parametrize("cost", [0, -1, 1.5, float("nan"), "2", None, True])
    async def test_a_cost_that_is_no_whole_number_of_at_least_one(self, agent: Agent, cost: Any):
        with pytest.raises(Misconfigured, match="whole number of at least 1"):
            await agent.admit_request("acme", cost)
        with pytest.raises(Misconfigured, match="whole number of at least 1"):
            await agent.admit_call("payments", cost=cost)

    @pytest.mark.parametrize(
        ("costs", "rule"),
        [
            ({"tokens": -1}, "at least 0"),
            ({"tokens": 1.5}, "at least 0"),
            ({"tokens": float("nan")}, "at least 0"),
            ({"a b": 1}, "1 to 64 letters"),
            ({"x" * 65: 1}, "1 to 64 letters"),
            ({7: 1}, "1 to 64 letters"),
            ({"calls": 0}, "cost="),
            ([("tokens", 1)], "must map"),
        ],
    )
    async def test_invalid_costs_raise(self, agent: Agent, costs: Any, rule: str):
        with pytest.raises(Misconfigured, match=rule):
            await agent.admit_request("acme", costs=costs)
        with pytest.raises(Misconfigured, match=rule):
            await agent.admit_call("llm", costs=costs)

    async def test_a_cost_no_limit_can_ever_admit_is_refused_without_a_time_to_come_back(self, agent: Agent):
        decision = await agent.admit_request("acme", 4)
        assert (decision.allowed, decision.retry_after_ms) == (False, 0)

    @pytest.mark.parametrize("wait_s", [-1, float("nan"), float("inf"), 3601, "1", True, False])
    async def test_a_wait_without_a_bound(self, agent: Agent, wait_s: Any):
        with pytest.raises(Misconfigured, match="wait_s must be"):
            await agent.admit_request("acme", wait_s=wait_s)

    @pytest.mark.parametrize("name", ["", "a b", "new\nline", "x" * 65, 7, None, ".", "\x00"])
    async def test_a_dependency_that_no_rule_can_name(self, agent: Agent, name: Any):
        with pytest.raises(Misconfigured, match="1 to 64 letters"):
            await agent.admit_call(name)
        with pytest.raises(Misconfigured, match="1 to 64 letters"):
            agent.guard(name)

    async def test_a_caller_without_tenant_and_subject_raises(self, agent: Agent):
        with pytest.raises(Misconfigured, match="pass a subject"):
            await agent.admit_request(None)
        with pytest.raises(Misconfigured, match=r"fuseboard\.Subject"):
            await agent.admit_request(None, subject="192.0.2.1")
        wrong: Any = 7
        with pytest.raises(Misconfigured, match="must be text"):
            await agent.admit_request("acme", subject=Subject(user=wrong))

    @pytest.mark.parametrize("actual", [-1, 1.5, float("nan"), None, True])
    async def test_an_invalid_actual_cost_raises(self, agent: Agent, actual: Any):
        async with agent.call("llm", costs={"tokens": 1}) as permit:
            with pytest.raises(Misconfigured, match="at least 0"):
                permit.settle("tokens", actual)

    async def test_a_generator_ends_when_its_reader_does(self, agent: Agent):
        with pytest.raises(Misconfigured, match="generator"):

            @agent.guard("payments")
            async def stream() -> AsyncIterator[int]:
                yield 1


async def test_cancelled_callers_give_back_what_they_took(agent: Agent):
    for _ in range(20):
        task = asyncio.create_task(agent.admit_request("acme", 3))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    async def whole() -> bool:
        return (await agent.admit_request("acme", 3)).allowed

    await eventually(whole)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("2", 2000),
        (" 120 ", 120_000),
        ("999999999999", 3_600_000),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3_600_000),
        ("Fri, 31 Dec 1999 23:59:59 GMT", 0),
        ("-5", 0),
        ("1.5", 1500),
        ("soon", 0),
        ("", 0),
        ("²", 0),
    ],
)
def test_retry_after_is_at_most_an_hour(text: str, milliseconds: int):
    assert retry_after_ms(text) == milliseconds


def test_a_503_with_retry_after_is_a_failure_too():
    class VendorError(Exception):
        status = 503
        headers = httpx.Headers({"Retry-After": "5"})

    assert judge(VendorError()) == (Outcome.FAILURE, 5000)


def outcomes(agent: Agent) -> dict[Outcome, int]:
    counted: dict[Outcome, int] = {}
    for dependency in agent.counters.wire().dependencies:
        for outcome in Outcome:
            if total := getattr(dependency, outcome.value):
                counted[outcome] = counted.get(outcome, 0) + total
    return counted
