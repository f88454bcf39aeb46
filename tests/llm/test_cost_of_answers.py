"""An answer of a chain has the cost of all calls that were made for it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import redis
from msgspec.structs import replace

import fuseboard
from fuseboard import Agent, Alternative, Default, Permit
from fuseboard.calling.current_chain import noted_in
from fuseboard.testing import FakeAgent
from tests.agents.limit_kinds import daily
from tests.llm.pods import LIMIT, RULES, billed, gpt, pod, thread_pod
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ASKED: list[Any] = [{"role": "user", "content": "How good is this?"}]


def tokens(vendor: Vendor) -> dict[str, int]:
    bill = billed(*vendor.bill, counts_cached=True)
    return {measure: amount for measure, amount in bill.items() if measure != "calls"}


async def test_each_try_is_in_the_cost_and_asks_at_another_temperature(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    qualities = iter([0.5, 0.9])
    async with pod(limits, redis_url) as agent, gpt(agent, vendor) as client:
        chain = agent.fallback("llm", [], quality=lambda _: next(qualities))
        vendor.will(words=7)
        answer = await chain.run(
            lambda attempt: client.chat.completions.create(
                model="m", messages=ASKED, temperature=attempt.temperature()
            )
        )
    assert (answer.tries, len(answer.permits)) == (2, 2)
    assert [one.body["temperature"] for one in vendor.bill] == [0.7, 0.5]
    assert answer.cost == tokens(vendor)


async def test_a_failed_call_and_an_alternative_are_in_the_cost_and_those_of_others_are_not(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent, gpt(agent, vendor) as client:

        async def ask(name: str) -> Any:
            async with agent.call(name, costs={"tokens": 500}) as permit:
                if name == "llm":
                    raise ConnectionResetError
                permit.settle_all({"tokens": 30})
                return "answer"

        chain = agent.fallback("llm", [Alternative("other", call=lambda: ask("gpt-own"))])
        answer, _ = await asyncio.gather(
            chain.run(lambda: ask("llm")), client.chat.completions.create(model="m", messages=ASKED)
        )
        assert (answer.source, answer.cost) == ("other", {"tokens": 530})
        await ask("gpt-own")
        assert answer.cost == {"tokens": 530}


async def test_the_cost_of_a_stream_is_known_when_it_was_read(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent, gpt(agent, vendor) as client:
        chain = agent.fallback("llm", [Default("sorry")])
        answer = await chain.run(
            lambda: client.chat.completions.create(model="m", messages=ASKED, stream=True, max_tokens=900)
        )
        assert answer.cost["output_tokens"] >= 900
        async for _ in answer.value:
            """Read."""
        assert answer.cost == tokens(vendor)


def test_threads_have_the_cost_too(limits: redis.Redis, redis_url: str, tmp_path: Path):
    with thread_pod(limits, redis_url, tmp_path) as agent:

        def ask() -> str:
            with agent.call("llm", costs={"tokens": 500}) as permit:
                permit.settle_all({"tokens": 40})
            return "answer"

        assert agent.fallback("llm", [Default("sorry")]).run(ask).cost == {"tokens": 40}


async def test_an_inner_chain_is_a_part_of_the_cost(limits: redis.Redis, redis_url: str):
    async with pod(limits, redis_url) as agent:

        async def ask() -> Any:
            async with agent.call("llm", costs={"tokens": 7}):
                """Not settled: the estimate is the cost."""

        inner = agent.fallback("gpt-own", [Default("sorry")])
        outer = agent.fallback("llm", [Default("sorry")])
        answer = await outer.run(lambda: inner.run(ask))
        assert (answer.cost, answer.value.cost) == ({"tokens": 7}, {"tokens": 7})


async def test_a_task_that_goes_on_after_the_answer_is_noted_no_more():
    agent, answered = FakeAgent(), asyncio.Event()

    async def work() -> None:
        await answered.wait()
        await agent.admit_call("llm")

    async def ask() -> asyncio.Task[None]:
        await agent.admit_call("llm")
        return asyncio.create_task(work())

    permits: list[Permit] = []
    with noted_in(permits):
        task = await ask()
    answered.set()
    await task
    assert (len(permits), len(agent.calls)) == (1, 2)


@pytest.mark.parametrize(("spent", "tries"), [(0, 3), (85, 1)])
async def test_no_further_try_is_made_while_a_budget_warns(
    limits: redis.Redis, redis_url: str, spent: int, tries: int
):
    budget = daily(100, measure="micro_usd", warn_percent=80)
    rules = replace(RULES, dependencies=(replace(RULES.dependencies[0], vendor_limits=(budget,)),))
    async with pod(limits, redis_url, rules) as agent:
        if spent:
            agent.charge("llm", {"micro_usd": spent})
            await eventually(lambda: left(agent), accept=lambda found: found <= 100 - spent)

        async def ask(attempt: fuseboard.Try) -> float:
            async with agent.call("llm", costs={"micro_usd": 1}):
                return 0.5

        chain = agent.fallback("llm", [], quality=lambda answer: answer)
        # The budget of retries allows few.
        agent.retries.floor_per_s = lambda *_: 1e6  # type: ignore[method-assign]
        answer = await chain.run(ask)
        assert (answer.tries, answer.is_degraded) == (tries, True)


async def left(agent: Agent) -> int:
    permit = await agent.admit_call("llm", costs={"micro_usd": 1})
    agent.give_back(permit)
    (limit,) = permit.decision.limits
    return LIMIT if limit.remaining is None else limit.remaining + 1
