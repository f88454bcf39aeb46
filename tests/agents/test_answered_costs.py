"""What a failed call with an estimate is charged: nothing, if the vendor answered with an error."""

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest
import redis
from msgspec.structs import replace

from fuseboard.calling.outcomes import judge_permitted
from fuseboard.contract.policy import Dependency
from fuseboard.decision import Permit
from fuseboard.integrations.guarded_request import reported
from tests.agents.limit_kinds import bucket
from tests.agents.servers import PATIENT, POLICY, Server, configured, running

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
    server.admission._settlements.flush()  # answers come in the order of questions
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
            reported(agent, await admitted(server), answered(status).response, "")
            assert await left(server) == [100 - tokens, 8]

    async def test_what_the_block_has_settled_stays(self, limits: redis.Redis, redis_url: str):
        async with running(redis_url, configuration=configured(POLICY_OF_MODEL)) as server:
            permit = await admitted(server)
            permit.settle("tokens", 20)
            judge_permitted(permit, answered(429))
            assert await left(server) == [80, 8]
