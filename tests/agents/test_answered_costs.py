"""What a failed call with an estimate is charged: nothing, if the vendor answered with an error."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import redis
from msgspec.structs import replace

from fuseboard import Agent, AgentSettings, blocking
from fuseboard.calling.classification import classify_answer
from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.policy import Dependency
from fuseboard.decision import Permit
from fuseboard.integrations.guarded_request import report_verdict
from tests.agents.limit_kinds import bucket
from tests.agents.published import decides_by, publish
from tests.agents.servers import PATIENT, POLICY, Server, configured, running
from tests.waiting import eventually, wait_until

MODEL = Dependency(
    name="llm",
    vendor_limits=(
        bucket(100, seconds=3600, name="tokens", measure="tokens"),
        bucket(9, seconds=3600, name="calls"),
    ),
)
POLICY_OF_MODEL = replace(POLICY, dependencies=(MODEL,), tuning=PATIENT)


async def admitted(server: Server) -> Permit:
    permit = await server.admission.admit_call("llm", costs={"tokens": 60})
    permit.settler = server.admission.settle
    return permit


async def left(server: Server) -> list[int]:
    """Tokens and calls."""
    server.admission.settlements.flush()  # answers come in the order of questions
    probe = await server.admission.admit_call("llm", costs={"tokens": 1})
    return [1 + (limit.remaining or 0) for limit in probe.decision.limits]


def answered(status: int) -> httpx.HTTPStatusError:
    request = httpx.Request("POST", "https://llm.example.com/v1/responses")
    return httpx.HTTPStatusError("no", request=request, response=httpx.Response(status, request=request))


def wrapped(error: Exception) -> Exception:
    outer = RuntimeError("the model failed")
    outer.__cause__ = error
    return outer


def from_openai(status: int, code: str) -> openai.APIStatusError:
    return openai.APIStatusError(code, response=answered(status).response, body={"code": code})


STREAM = httpx.Request("POST", "https://llm.example.com")
#: How a call of 60 tokens ends, and what it is charged then.
ENDS = [
    (answered(500), 0),
    (answered(503), 0),
    (answered(429), 0),
    (answered(400), 0),
    (answered(401), 0),
    (wrapped(answered(500)), 0),
    (from_openai(429, "insufficient_quota"), 0),
    (from_openai(400, "context_length_exceeded"), 0),
    (ExceptionGroup("tasks", [answered(429), answered(500)]), 0),
    # The vendor may have done the work.
    (answered(408), 60),
    (answered(502), 60),
    (answered(504), 60),
    (answered(524), 60),
    (TimeoutError(), 60),
    (httpx.ReadTimeout("late"), 60),
    (httpx.RemoteProtocolError("closed"), 60),
    (ExceptionGroup("tasks", [answered(429), httpx.ReadTimeout("late")]), 60),
    (openai.APIError("server_error", STREAM, body={"code": "server_error"}), 60),  # in a stream
    (asyncio.CancelledError(), 60),
    (GeneratorExit(), 60),
    (ValueError("the answer does not parse"), 60),
]


class TestAnswers:
    @pytest.mark.parametrize(("error", "tokens"), ENDS, ids=lambda value: repr(value)[:60])
    async def test_an_error_that_the_vendor_answered_with_costs_nothing_but_the_call(
        self, limits: redis.Redis, redis_url: str, error: BaseException, tokens: int
    ):
        async with running(redis_url, configuration=configured(POLICY_OF_MODEL)) as server:
            judge_permitted(await admitted(server), error)
            assert await left(server) == [100 - tokens, 8]

    @pytest.mark.parametrize(("status", "tokens"), [(500, 0), (429, 0), (400, 0), (504, 60)])
    async def test_transports_say_the_same(
        self, limits: redis.Redis, redis_url: str, status: int, tokens: int
    ):
        async with running(redis_url, configuration=configured(POLICY_OF_MODEL)) as server:
            agent: Any = SimpleNamespace(report=lambda *_, **__: None)
            report_verdict(agent, await admitted(server), classify_answer(status, {}))
            assert await left(server) == [100 - tokens, 8]

    async def test_what_the_block_has_settled_stays(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url, configuration=configured(POLICY_OF_MODEL)) as server:
            permit = await admitted(server)
            permit.settle("tokens", 20)
            judge_permitted(permit, answered(429))
            assert await left(server) == [80, 8]


class TestCounted:
    """An answer that comes in parts: the call costs what it used, however it ends."""

    @pytest.mark.parametrize(
        "error",
        [
            None,
            GeneratorExit(),
            asyncio.CancelledError(),
            httpx.ReadError("cut"),
            TimeoutError(),
            answered(500),
        ],
        ids=lambda value: repr(value)[:40],
    )
    async def test_the_call_costs_what_was_counted(
        self, limits: redis.Redis, redis_url: str, error: BaseException | None
    ):
        async with streaming(limits, redis_url) as agent:
            with contextlib.suppress(BaseException):
                async with agent.call("llm", costs={"tokens": 60}) as permit:
                    permit.count("tokens", 20)
                    for _ in range(3):
                        permit.count("tokens", 5)
                    if error is not None:
                        raise error
            await eventually(lambda: of(agent, 100 - 35))

    async def test_the_usage_that_the_answer_names_replaces_it(self, limits: redis.Redis, redis_url: str):
        async with streaming(limits, redis_url) as agent:
            async with agent.call("llm", costs={"tokens": 60}) as permit:
                permit.count("tokens", 35)
                permit.settle("tokens", 40)
            await eventually(lambda: of(agent, 60))

    async def test_more_than_the_estimate_is_charged_too(self, limits: redis.Redis, redis_url: str):
        async with streaming(limits, redis_url) as agent:
            async with agent.call("llm", costs={"tokens": 20}) as permit:
                permit.count("tokens", 50)
            await eventually(lambda: of(agent, 50))

    def test_a_thread_counts_too(self, limits: redis.Redis, redis_url: str, tmp_path: Path):
        publish(limits, POLICY_OF_MODEL, revision=1)
        settings = AgentSettings(redis_url=redis_url, state_dir=tmp_path)
        with blocking.Agent(settings=settings) as agent:
            wait_until(lambda: agent.configuration.snapshot.head.revision == 1)
            with contextlib.suppress(EOFError), agent.call("llm", costs={"tokens": 60}) as permit:
                permit.count("tokens", 35)
                raise EOFError

            def left_now() -> bool:
                probe = agent.admit_call("llm", costs={"tokens": 1})
                agent.give_back(probe)
                return probe.decision.limits[0].remaining == 64

            wait_until(left_now)

    @pytest.mark.parametrize("amount", [-1, 1.5, None, True, "3"])
    async def test_an_amount_that_is_no_number_is_refused(self, amount: Any):
        permit = Permit(made=None, dependency="llm", generation=0)
        with pytest.raises(ValueError, match="at least 0"):
            permit.count("tokens", amount)


@contextlib.asynccontextmanager
async def streaming(limits: redis.Redis, redis_url: str) -> AsyncIterator[Agent]:
    publish(limits, POLICY_OF_MODEL, revision=1)
    async with Agent(settings=AgentSettings(redis_url=redis_url)) as agent:
        await eventually(decides_by(agent, 1))
        yield agent


async def of(agent: Agent, tokens: int) -> bool:
    """Whether so many tokens are left."""
    probe = await agent.admit_call("llm", costs={"tokens": 1})
    agent.give_back(probe)
    return probe.decision.limits[0].remaining == tokens - 1
