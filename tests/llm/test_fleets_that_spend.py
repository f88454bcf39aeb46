"""Twenty pods with real clients spend the tokens of a vendor, and the money of a tenant, at once."""

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from random import Random
from time import time
from typing import Any

import openai
import pytest
import redis

import fuseboard
from fuseboard import Mode, Reason, Refused
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Policy
from fuseboard.contract.words import Period
from fuseboard.llm.model_call import ModelCall
from tests.agents.limit_kinds import window
from tests.llm.money import GPT, NEVER_OPENS, charge, monthly, of_tenant, priced
from tests.llm.pods import MONTH_S, gpt, pod
from tests.llm.vendor import Vendor
from tests.waiting import eventually
from tools.demo.model_formats import Scenario

PODS = 20
ASKED: list[Any] = [{"role": "user", "content": "Who of us all may still ask?"}]


@asynccontextmanager
async def fleet(
    limits: redis.Redis, redis_url: str, vendor: Vendor, rules: Policy
) -> AsyncIterator[list[openai.AsyncOpenAI]]:
    async with AsyncExitStack() as stack:
        clients = []
        for number in range(PODS):
            agent = await stack.enter_async_context(pod(limits, redis_url, rules, server=f"web-{number}"))
            clients.append(await stack.enter_async_context(gpt(agent, vendor, "")))
        yield clients


async def ask(client: openai.AsyncOpenAI, most: int) -> Refused | None:
    try:
        await client.chat.completions.create(model=GPT, messages=ASKED, max_completion_tokens=most)
    except Refused as refused:
        return refused
    return None


async def at_once(clients: list[openai.AsyncOpenAI], calls: int, most: int) -> list[Refused]:
    """Those that were refused."""
    ended = await asyncio.gather(*[ask(clients[number % PODS], most) for number in range(calls)])
    return [one for one in ended if one is not None]


def answers(vendor: Vendor, draw: Any) -> None:
    """Every answer is as long as ``draw`` says; the vendor takes the next one from here."""

    class Script:
        def __bool__(self) -> bool:
            return True

        def popleft(self) -> Scenario:
            return Scenario(words=draw())

    vendor.script = Script()  # type: ignore[assignment]


@pytest.mark.timeout(600)
async def test_three_thousand_calls_at_once_leave_the_vendor_its_limit(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    """Case L5: 3,000 at once of 20 pods, 300,000 tokens, mean 400, max 4,096: at most 105 % are used.

    Nothing leaves the window, so that all of the test is one minute of the vendor, however long it takes.
    """
    per_minute = window(300_000, MONTH_S, name="output_tokens", measure="output_tokens")
    random = Random(5)
    answers(vendor, lambda: min(4_096, max(1, int(random.lognormvariate(math.log(400) - 0.9**2 / 2, 0.9)))))
    rules = priced(limits=(per_minute,), breaker=NEVER_OPENS, protection=None)
    async with fleet(limits, redis_url, vendor, rules) as clients:
        refused = await at_once(clients, 3_000, 4_096)
        assert {one.decision.rule for one in refused} == {"output_tokens"}
        # A vendor that gets all of them, and counts afterwards, has used four minutes here.
        assert 20 < vendor.requests < 200
        # Refused callers come back, until no call has room.
        while len(refused) < 200 or vendor.requests < 300:
            before = vendor.requests
            refused = await at_once(clients, 200, 4_096)
            if vendor.requests == before:
                break
        used = sum(one.output for one in vendor.bill)
        assert 0.80 * 300_000 <= used <= 1.05 * 300_000


def zone() -> str:
    """One in which the present day does not end during the test."""
    return "UTC" if 1 <= datetime.now(UTC).hour < 22 else "Asia/Tokyo"


@pytest.mark.timeout(600)
async def test_twenty_pods_spend_the_money_of_a_tenant_and_no_more(
    limits: redis.Redis,
    redis_url: str,
    vendor: Vendor,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    """Case L6: 0.90 USD a day, 20 pods, 200 at once: over it by at most one wrong estimate."""
    caplog.set_level(logging.WARNING, "fuseboard.budgets")
    too_low: list[int] = []
    #: The costs of calls that a pod decided alone, because the machine paused for longer than a pod waits.
    alone: list[int] = []
    settle = ModelCall.settle

    def settled(self: ModelCall, permit: Any, usage: Any, **more: Any) -> None:
        settle(self, permit, usage, **more)
        assert self.price is not None
        cost = usage.cost(self.price)
        too_low.append(cost - self.options["costs"]["micro_usd"])
        if permit.decision.mode is Mode.LOCAL:
            alone.append(cost)

    monkeypatch.setattr(ModelCall, "settle", settled)
    random = Random(6)
    # Few are far longer than the others.
    answers(vendor, lambda: random.randrange(100, 400) if random.random() < 0.97 else 700)
    amount, of_day = 900_000, zone()
    day = monthly(amount, period=Period.DAY, time_zone=of_day)
    rules = priced(of_tenants=day, limits=(), breaker=NEVER_OPENS, protection=None)
    async with fleet(limits, redis_url, vendor, rules) as clients:
        with fuseboard.tenant("acme"):
            refused: list[Refused] = []
            while True:
                before, began = vendor.requests, time()
                refused = await at_once(clients, 200, 2_000)
                if vendor.requests == before:
                    break
        ended = time()
        bill = charge(*vendor.bill)
        await eventually(lambda: of_tenant(limits), accept=lambda found: found == bill)
        assert max(too_low) > 0, "some were estimated too low"
        assert 0.95 * amount < bill <= amount + max(too_low) + sum(alone)
        _, ends_us = period_around(int(ended * 1_000_000), Period.DAY, of_day)
        for one in refused:
            decision = one.decision
            assert (decision.reason, decision.rule) == (Reason.BUDGET_SPENT, "budget:money")
            # The end of the day; Redis counts in seconds.
            assert ends_us / 1e6 - ended - 2 <= decision.retry_after_ms / 1000 <= ends_us / 1e6 - began + 2
        # Others have their own.
        with fuseboard.tenant("other"):
            assert await ask(clients[0], 2_000) is None
    warned = [one.getMessage() for one in caplog.records if one.message.startswith("budget.warn")]
    assert warned
    assert all(f"of {amount} micro_usd" in line for line in warned)
    assert len(warned) <= PODS, "each pod says it once"
