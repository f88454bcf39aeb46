"""Usage that is settled at once, and usage that no permit was asked for."""

import asyncio
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent, Misconfigured, Mode, Outcome, Refused
from fuseboard.contract.budgets import Account, Budget
from fuseboard.contract.models import Model, Price
from fuseboard.contract.policy import Dependency, Tier
from fuseboard.contract.sync import Drill
from fuseboard.contract.words import DrillKind, Period
from fuseboard.llm import Usage
from fuseboard.testing import FakeAgent
from tests.agents.limit_kinds import daily, slots, window
from tests.llm.pods import LIMIT, RULES, billed, pod, pod_alone, spent, thread_pod
from tests.waiting import eventually, wait_until

USAGE = Usage(fresh=100, cached=20, written=3, output=7)
NOTHING = dict.fromkeys(billed(counts_cached=True), 0)
USED = {
    "calls": 0,
    "tokens": 130,
    "input_tokens": 123,
    "output_tokens": 7,
    "fresh_tokens": 100,
    "cached_tokens": 20,
    "written_tokens": 3,
}
#: A rate of the vendor, a budget and slots.
LIMITS = (
    window(LIMIT, 3600, name="rate", measure="tokens"),
    daily(LIMIT, measure="micro_usd"),
    slots(5),
)
BUDGETED = replace(RULES, dependencies=(replace(RULES.dependencies[0], vendor_limits=LIMITS),))


async def left(agent: Agent) -> tuple[int | None, int | None]:
    """What is left of the rate and of the budget."""
    agent._runtime.admission.settlements.flush()  # answers come in the order of questions
    permit = await agent.admit_call("llm", costs={"tokens": 1, "micro_usd": 1})
    agent.give_back(permit)
    agent._runtime.admission.settlements.flush()
    found = {limit.name: limit.remaining for limit in permit.decision.limits}
    return found["rate"], found["daily"]


# Settle all measures of a permit


async def test_one_call_settles_each_measure_that_a_limit_counts(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url) as agent:
        permit = await agent.admit_call("llm", costs=dict.fromkeys(NOTHING.keys() - {"calls"}, 5_000))
        permit.settle_all(USAGE)
        agent.report(permit, Outcome.OK)
        await eventually(lambda: spent(agent), accept=lambda found: found == {**USED, "calls": 1})


async def test_amounts_by_measure_settle_those_measures_and_no_other(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url) as agent:
        permit = await agent.admit_call("llm", costs={"tokens": 500, "output_tokens": 400})
        permit.settle_all({"tokens": 3, "images": 8})
        permit.settle_all({"tokens": 9})
        agent.report(permit, Outcome.OK)
        expected = {**NOTHING, "calls": 1, "tokens": 3, "output_tokens": 400}
        await eventually(lambda: spent(agent), accept=lambda found: found == expected)
        with pytest.raises(Misconfigured, match="whole number of at least 0"):
            permit.settle_all({"tokens": -1})


@pytest.mark.parametrize("wrong", [-1, 1.5, True, "7", None, 10**13])
async def test_a_wrong_amount_settles_no_measure(limits: redis.Redis, redis_url: str, wrong: Any):
    async with pod(limits, redis_url) as agent:
        measures = [name for name in NOTHING if name != "calls"]
        for named in measures[0], measures[-1], "images":
            permit = await agent.admit_call("llm", costs=dict.fromkeys(measures, 50))
            with pytest.raises(Misconfigured, match="whole number of at least 0"):
                permit.settle_all(dict.fromkeys(measures, 3) | {named: wrong})
            assert permit.cost() == dict.fromkeys(measures, 50)
            permit.settle_all(dict.fromkeys(measures, 3))
            assert permit.cost() == dict.fromkeys(measures, 3)
            agent.report(permit, Outcome.OK)
        expected = {**dict.fromkeys(measures, 9), "calls": 3}
        await eventually(lambda: spent(agent), accept=lambda found: found == expected)


async def test_a_call_that_was_given_back_cost_nothing(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url) as agent:
        permit = await agent.admit_call("llm", costs={"tokens": 500, "output_tokens": 400})
        permit.settle("tokens", 30)
        agent.give_back(permit)
        assert permit.cost() == {"tokens": 0, "output_tokens": 0}
        await eventually(lambda: spent(agent), accept=lambda found: found == NOTHING)


def test_limits_of_anthropic_do_not_count_what_was_read_from_its_cache():
    assert USAGE.amounts() == {name: amount for name, amount in USED.items() if name != "calls"}
    counted = replace(USAGE, counts_cached=False).amounts()
    assert (counted["tokens"], counted["input_tokens"], counted["cached_tokens"]) == (110, 103, 20)


# Charge without a permit


async def test_a_charge_counts_for_the_dependency_and_for_its_tenant(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url) as agent:
        agent.charge("llm", USAGE, tenant="acme")
        agent.charge("llm", {"tokens": 0})
        quotas = {"all-calls": 0, "all-tokens": 130, "llm-output_tokens": 7}
        await eventually(
            lambda: spent(agent, tenant="acme"), accept=lambda found: found == {**USED, **quotas}
        )
        assert agent.defects == 0


async def test_a_batch_spends_budgets_and_no_rate_of_the_vendor(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url, BUDGETED) as agent:
        agent.charge("llm", {"tokens": 900, "micro_usd": 40}, tenant="acme", batch=True)
        await eventually(lambda: left(agent), accept=lambda found: found == (LIMIT - 1, LIMIT - 41))
        found = await eventually(lambda: agent.admit_request("acme", costs={"tokens": 1}))
        assert {limit.name: limit.remaining for limit in found.limits}["all-tokens"] == LIMIT - 901
        agent.charge("llm", {"tokens": 900, "micro_usd": 40})
        await eventually(lambda: left(agent), accept=lambda found: found == (LIMIT - 901, LIMIT - 81))


async def test_a_charge_spends_the_budgets_of_the_dependency_its_account_and_the_tenant(
    limits: redis.Redis, redis_url: str
):
    budget = Budget(name="monthly", amount=100, period=Period.MONTH)
    rules = replace(
        RULES,
        tiers=(Tier(name="free", budgets=(budget,)),),
        dependencies=(Dependency(name="llm", budgets=(budget,)), Dependency(name="mini")),
        accounts=(Account(name="vendor", pools=("llm", "mini"), budgets=(budget,)),),
    )
    async with pod(limits, redis_url, rules) as agent:

        async def left_of(name: str) -> list[int | None]:
            permit = await agent.admit_call(name, costs={"micro_usd": 1}, tenant="acme", spend_costs=True)
            agent.give_back(permit)
            return [limit.remaining for limit in permit.decision.limits]

        agent.charge("llm", {"micro_usd": 30}, tenant="acme", batch=True)
        await eventually(lambda: left_of("llm"), accept=lambda found: found == [69, 69, 69])
        # The other pool has no budget of its own.
        await eventually(lambda: left_of("mini"), accept=lambda found: found == [69, 69])


async def test_the_name_of_a_model_charges_its_pool_at_the_price_of_a_batch(
    limits: redis.Redis, redis_url: str
):
    million = 1_000_000
    price = Price(
        starts_at_s=0,
        input=3 * million,
        cached=1 * million,
        written=4 * million,
        output=15 * million,
        batch_percent=50,
    )
    rules = replace(
        BUDGETED, models=(Model(name="big", aliases=("vendor/big",), pool="llm", prices=(price,)),)
    )
    async with pod(limits, redis_url, rules) as agent:
        # A call of these tokens costs 300, 20, 12 and 105 micro-USD.
        agent.charge("vendor/big", USAGE, batch=True)
        await eventually(lambda: left(agent), accept=lambda found: found == (LIMIT - 1, LIMIT - 1 - 219))
        agent.charge("big", USAGE)
        expected = (LIMIT - 1 - 130, LIMIT - 1 - 219 - 437)
        await eventually(lambda: left(agent), accept=lambda found: found == expected)
        agent.charge("big", {"micro_usd": 4})
        expected = (LIMIT - 1 - 130, LIMIT - 1 - 219 - 441)
        await eventually(lambda: left(agent), accept=lambda found: found == expected)


async def test_a_name_of_a_model_and_a_dependency_is_the_model_unless_said(
    limits: redis.Redis, redis_url: str
):
    models = Model(name="gpt-own", pool="llm"), Model(name="hosted")
    async with pod(limits, redis_url, replace(RULES, models=models)) as agent:
        agent.charge("gpt-own", {"tokens": 5})
        agent.charge("gpt-own", {"tokens": 7}, as_dependency=True)
        agent.charge("hosted", {"tokens": 3}, as_dependency=True)
        [part] = agent.counters.usage.next(leaving=True)
        found = {(row.model, row.dependency) for row in part.rows}
        assert found == {("gpt-own", "llm"), ("", "gpt-own"), ("", "hosted")}
        await eventually(lambda: spent(agent), accept=lambda found: found["tokens"] == 5)
        await eventually(lambda: spent(agent, "gpt-own"), accept=lambda found: found["tokens"] == 7)


async def test_a_charge_is_in_the_ledger_at_the_price_of_a_batch(limits: redis.Redis, redis_url: str):
    price = Price(
        starts_at_s=0, input=3_000_000, cached=0, written=3_000_000, output=15_000_000, batch_percent=50
    )
    rules = replace(
        BUDGETED, models=(Model(name="big", aliases=("vendor/big",), pool="llm", prices=(price,)),)
    )
    async with pod(limits, redis_url, rules) as agent:
        batch = Usage(fresh=100, cached=20, written=3, output=7, calls=5)
        agent.charge("vendor/big", batch, tenant="acme", batch=True)
        agent.charge("vendor/big", batch, tenant="acme", batch=True)
        agent.charge("llm", {"tokens": 30, "output_tokens": 10})
        agent.charge("llm", {"micro_usd": 4})
        agent.charge("llm", {"images": 4})
        [part] = agent.counters.usage.next(leaving=True)
    rows = {(row.model, row.tenant): row for row in part.rows}
    assert set(rows) == {("big", "acme"), ("", "")}
    big, plain = rows["big", "acme"], rows["", ""]
    assert (big.dependency, big.calls, big.unpriced) == ("llm", 10, 0)
    assert (big.fresh, big.cached, big.written, big.output) == (200, 40, 6, 14)
    # These tokens cost 309 and 105 micro-USD, and 60 more without the cache; half of it in a batch.
    assert (big.micro_usd, big.saved_micro_usd) == (2 * 207, 2 * 30)
    assert (plain.dependency, plain.calls, plain.unpriced) == ("llm", 2, 1)
    assert (plain.fresh, plain.output, plain.micro_usd) == (20, 10, 4)


async def test_a_charge_does_not_report_that_a_call_stated_no_cost(
    limits: redis.Redis, redis_url: str, caplog: pytest.LogCaptureFixture
):
    async with pod(limits, redis_url) as agent:
        agent.charge("llm", {"output_tokens": 900}, tenant="acme")
        expected = {**NOTHING, "output_tokens": 900}
        await eventually(lambda: spent(agent), accept=lambda found: found == expected)
        assert "stated no cost" not in caplog.text


async def test_a_charge_is_more_than_a_limit_has_and_refuses_the_next_call(
    limits: redis.Redis, redis_url: str
):
    async with pod(limits, redis_url, BUDGETED) as agent:
        agent.charge("llm", {"micro_usd": 3 * LIMIT})

        async def refused() -> bool:
            try:
                agent.give_back(await agent.admit_call("llm", costs={"micro_usd": 1}))
            except Refused as error:
                return error.decision.rule == "daily"
            return False

        await eventually(refused)


async def test_a_pod_without_redis_charges_its_share(tmp_path: Path):
    async with pod_alone(tmp_path) as agent:
        agent.charge("llm", {"tokens": LIMIT - 10})
        with pytest.raises(Refused, match="tokens"):
            await agent.admit_call("llm", costs={"tokens": 11})
        await agent.admit_call("llm", costs={"tokens": 10})


async def test_redis_counts_what_was_charged_without_it_when_it_is_back(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url, BUDGETED) as agent:
        assert await left(agent) == (LIMIT - 1, LIMIT - 1)
        store = agent._runtime.admission.store
        store.pretend(Drill(id=1, kind=DrillKind.GONE, remaining_ms=60_000), asked=monotonic())
        await eventually(lambda: agent.mode is Mode.DRILL)
        agent.charge("llm", {"tokens": 70, "micro_usd": 30})
        store.pretend(None, asked=monotonic())
        await eventually(lambda: agent.mode is Mode.SHARED)
        await eventually(lambda: left(agent), accept=lambda found: found == (LIMIT - 71, LIMIT - 31))


async def test_any_thread_may_charge(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url) as agent:
        await asyncio.to_thread(agent.charge, "llm", USAGE)
        await eventually(lambda: spent(agent), accept=lambda found: found == USED)


def test_an_agent_for_threads_charges_too(limits: redis.Redis, redis_url: str, tmp_path: Path):
    with thread_pod(limits, redis_url, tmp_path) as agent:
        agent.charge("llm", USAGE, tenant="acme", batch=False)
        started = agent._started()

        def now() -> dict[str, int]:
            return asyncio.run_coroutine_threadsafe(spent(started), started.loop).result(60)

        wait_until(now, accept=lambda found: found == USED)


@pytest.mark.parametrize(
    ("usage", "rule"),
    [
        ({"tokens": -1}, "whole number of at least 0"),
        ({"tokens": 1.5}, "whole number of at least 0"),
        ({"a b": 1}, "1 to 64 letters"),
        ({"calls": 1}, "counts no calls"),
    ],
)
async def test_a_charge_that_is_wrong_raises(tmp_path: Path, usage: Any, rule: str):
    fake = FakeAgent()
    async with pod_alone(tmp_path) as agent:
        for each in (agent, fake):
            with pytest.raises(Misconfigured, match=rule):
                each.charge("llm", usage)
            with pytest.raises(Misconfigured, match="the name of a dependency"):
                each.charge("not/a name", {"tokens": 1})
    assert fake.charges == []


def test_an_application_tests_what_it_charges():
    agent = FakeAgent()
    agent.charge("llm", Usage(output=7), tenant="acme", batch=True)
    agent.charge("llm", {"micro_usd": 12})
    assert agent.charges[0][1]["output_tokens"] == 7
    assert agent.charges[1] == ("llm", {"micro_usd": 12})
