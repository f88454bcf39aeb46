"""An account that its vendor does not serve: clients of all pods stop, and another account answers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import monotonic
from typing import Any

import anthropic
import openai
import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent, Alternative, Reason, Refused
from fuseboard.contract import keys
from fuseboard.contract.budgets import Account
from fuseboard.contract.models import Model
from fuseboard.contract.policy import Dependency
from tests.llm.money import CLAUDE, GPT
from tests.llm.pods import RULES, claude, gpt, pod
from tests.llm.vendor import Vendor
from tests.waiting import eventually

MINI = "gpt-5.2-mini"
ASKED: list[Any] = [{"role": "user", "content": "Who pays the bill of this account?"}]
POOLS = {GPT: "gpt", MINI: "mini", CLAUDE: "claude"}
ACCOUNTS = replace(
    RULES,
    tiers=(replace(RULES.tiers[0], quotas=()),),
    dependencies=tuple([Dependency(name=pool) for pool in POOLS.values()]),
    models=tuple([Model(name=model, pool=pool) for model, pool in POOLS.items()]),
    accounts=(Account(name="openai", pools=("gpt", "mini")), Account(name="anthropic", pools=("claude",))),
)
NO_QUOTA = {"code": "insufficient_quota", "type": "insufficient_quota", "message": "You exceeded your quota."}
NO_CREDIT = {"type": "invalid_request_error", "message": "Your credit balance is too low to access the API."}
WRONG_KEY = {"code": "invalid_api_key", "message": "Incorrect API key provided."}
STOP = keys.account_stop(RULES.environment, "openai")


@dataclass
class Pod:
    agent: Agent
    gpt: openai.AsyncOpenAI
    claude: anthropic.AsyncAnthropic

    async def ask(self, model: str) -> Any:
        if model == CLAUDE:
            return await self.claude.messages.create(model=model, messages=ASKED, max_tokens=50)
        return await self.gpt.chat.completions.create(model=model, messages=ASKED, max_tokens=50)

    async def refused(self, model: str) -> Refused | None:
        """Why the call is not made; ``None`` if the vendor gets it, whatever it answers."""
        try:
            await self.ask(model)
        except Refused as refused:
            return refused
        except (openai.APIStatusError, anthropic.APIStatusError):
            """The vendor has answered."""
        return None


@asynccontextmanager
async def fleet(limits: redis.Redis, redis_url: str, vendor: Vendor) -> AsyncIterator[list[Pod]]:
    async with AsyncExitStack() as stack:
        pods = []
        for number in range(3):
            agent = await stack.enter_async_context(pod(limits, redis_url, ACCOUNTS, server=f"web-{number}"))
            agent.configuration.live_servers = 3
            of_openai = await stack.enter_async_context(gpt(agent, vendor, ""))
            of_anthropic = await stack.enter_async_context(claude(agent, vendor, ""))
            pods.append(Pod(agent, of_openai, of_anthropic))
        yield pods


async def all_refused(pods: list[Pod]) -> bool:
    return all([await one.refused(model) is not None for one in pods for model in (GPT, MINI)])


async def test_an_account_without_quota_stops_all_its_pools_and_the_other_account_answers(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    """Case L18: ``insufficient_quota`` in two pods stops all pools in all pods; one probe a minute."""
    async with fleet(limits, redis_url, vendor) as pods:
        for one, model in ((pods[0], GPT), (pods[1], MINI)):
            vendor.will(status=429, error=NO_QUOTA)
            with pytest.raises(openai.RateLimitError):
                await one.ask(model)
        # Until the third pod knows, the vendor would serve it.
        began = monotonic()
        await eventually(lambda: all_refused(pods))
        took_s = monotonic() - began
        served = vendor.requests
        for one in pods:
            for model in (GPT, MINI):
                refused = await one.refused(model)
                assert refused is not None
                assert isinstance(refused, openai.APIConnectionError)
                assert (refused.decision.reason, refused.decision.rule) == (Reason.COOLING_DOWN, "openai")
                assert 0 < refused.decision.retry_after_ms <= 60_001
        assert vendor.requests == served, f"stopped after {took_s:.3f} s"
        for one in pods:
            chain = one.agent.fallback("gpt", [Alternative("claude", call=lambda one=one: one.ask(CLAUDE))])
            answer = await chain.run(lambda one=one: one.ask(GPT))
            assert (answer.source, answer.is_fallback) == ("claude", True)
            assert answer.value.content[0].text
        assert [one.body["model"] for one in vendor.bill[served:]] == [CLAUDE] * 3
        # A minute later, one call of the fleet tries the account, which has no quota still.
        vendor.script.clear()
        for _ in range(2):
            end_the_stop(limits, pods)
            vendor.usual.status, vendor.usual.error = 429, NO_QUOTA
            before = vendor.requests
            tries = [one.refused(model) for one in pods for model in (GPT, MINI) * 3]
            assert [one is None for one in await asyncio.gather(*tries)].count(True) == 1
            assert vendor.requests == before + 1
            await eventually(lambda: int(limits.hget(STOP, "until") or 0) > 1)
            assert await all_refused(pods)
            assert vendor.requests == before + 1
        # It is paid.
        end_the_stop(limits, pods)
        vendor.usual.status = 200
        assert await pods[2].refused(MINI) is None
        await eventually(lambda: none_refused(pods))


async def none_refused(pods: list[Pod]) -> bool:
    return all([await one.refused(model) is None for one in pods for model in POOLS])


def end_the_stop(limits: redis.Redis, pods: list[Pod]) -> None:
    """As if the minute had passed."""
    for one in pods:
        for stop in one.agent._runtime.admission.calls.stops.stopped.values():
            stop.until = stop.trying_until = 0.0
    limits.hset(STOP, mapping={"until": 1, "probe": 1})


async def test_the_words_of_the_other_vendor_stop_its_account(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    """Case L18: a credit balance that is too low, in two pods, stops the account at Anthropic alone."""
    async with fleet(limits, redis_url, vendor) as pods:
        for one in pods[:2]:
            vendor.will(status=400, error=NO_CREDIT)
            with pytest.raises(anthropic.BadRequestError):
                await one.ask(CLAUDE)
        await eventually(lambda: pods[2].refused(CLAUDE))
        assert [await one.refused(GPT) for one in pods] == [None] * 3


async def test_a_wrong_key_stops_its_pod_alone(limits: redis.Redis, redis_url: str, vendor: Vendor):
    """Case L18: ``invalid_api_key`` at one pod: only that pod stops."""
    async with fleet(limits, redis_url, vendor) as pods:
        vendor.will(status=401, error=WRONG_KEY)
        with pytest.raises(openai.AuthenticationError):
            await pods[0].ask(GPT)
        assert await pods[0].refused(GPT) is not None
        assert [await one.refused(GPT) for one in pods[1:]] == [None, None]
        assert [await one.refused(MINI) for one in pods] == [None] * 3
        # The stop of another account comes by the same channel, and none of this one came before it.
        for one in pods[:2]:
            vendor.will(status=400, error=NO_CREDIT)
            with pytest.raises(anthropic.BadRequestError):
                await one.ask(CLAUDE)
        for one in pods:
            await eventually(lambda one=one: one.refused(CLAUDE))
        assert [await one.refused(GPT) for one in pods[1:]] == [None, None]
        assert [await one.refused(MINI) for one in pods] == [None] * 3
        assert not limits.exists(STOP)
