"""A timeout for each tier of calls: in permits, blocks, threads, attempts and transports."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
import requests
from requests.adapters import BaseAdapter

from fuseboard import Agent, AgentSettings, blocking
from fuseboard.contract.policy import Dependency, Policy
from fuseboard.contract.protection import Bulkhead, CallProtection
from fuseboard.contract.words import CallTier, Outcome
from fuseboard.integrations.httpx import BlockingGuardedTransport, GuardedTransport
from fuseboard.integrations.requests import GuardedAdapter
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY
from tests.waiting import wait_until

#: Critical calls take 200 s, standard ones what the dependency says, optional ones 50 ms.
TIMEOUTS = (200_000, 0, 50)
EXPECTED = [("critical", 200.0), ("standard", 30.0), ("optional", 0.05), (None, 200.0)]


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    protection = CallProtection(tier=CallTier.CRITICAL, timeouts_ms=TIMEOUTS, bulkhead=Bulkhead())
    rules = Policy(
        environment=POLICY.environment,
        default_tier=POLICY.default_tier,
        tiers=POLICY.tiers,
        dependencies=(Dependency(name="api", protection=protection), Dependency(name="plain")),
    )
    return settings_with(tmp_path, rules)


@pytest.mark.parametrize(("tier", "timeout_s"), EXPECTED)
async def test_a_permit_has_the_timeout_of_its_tier(
    settings: AgentSettings, tier: str | None, timeout_s: float
):
    async with Agent(settings=settings) as agent:
        assert agent.timeout_s("api", tier) == timeout_s
        permit = await agent.admit_call("api", tier=tier)
        assert permit.timeout_s == timeout_s
        agent.give_back(permit)
        plain = await agent.admit_call("plain", tier=tier)
        assert plain.timeout_s == 30.0
        agent.give_back(plain)
        assert agent.timeout_s("unregistered", tier) is None


async def test_a_block_and_an_attempt_end_with_the_timeout_of_their_tier(settings: AgentSettings):
    async with Agent(settings=settings) as agent:
        with pytest.raises(TimeoutError):
            async with agent.call("api", tier="optional"):
                await asyncio.sleep(60)
        slow = agent.retry("api", tier="optional")(asyncio.sleep)
        with pytest.raises(TimeoutError):
            await slow(60)


def test_a_call_in_a_thread_that_outlives_its_tier_is_slow(settings: AgentSettings):
    with blocking.Agent(settings=settings) as agent:
        for tier in ("optional", "standard"):
            permit = agent.admit_call("api", tier=tier)
            agent.report(permit, Outcome.OK, 0.2)
        started = agent._started()
        wait_until(lambda: [(d.ok, d.slow) for d in started.counters.wire().dependencies] == [(1, 1)])


@pytest.mark.parametrize(("tier", "timeout_s"), EXPECTED)
async def test_a_request_of_a_transport_has_the_timeout_of_its_tier(
    settings: AgentSettings, tier: str | None, timeout_s: float
):
    seen: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        return httpx.Response(200)

    inner = httpx.MockTransport(answer)
    async with Agent(settings=settings) as agent:
        transport = GuardedTransport(agent, dependency="api", tier=tier, transport=inner)
        async with httpx.AsyncClient(transport=transport, timeout=None) as client:  # noqa: S113 - its own
            await client.get("http://vendor")
    assert set(seen[0].values()) == {timeout_s}


class Adapter(BaseAdapter):
    """Keeps the timeouts that it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.timeouts: list[Any] = []

    def send(self, request: requests.PreparedRequest, *_: Any, **options: Any) -> requests.Response:
        self.timeouts.append(options["timeout"])
        response = requests.Response()
        response.status_code, response.request = 200, request
        response._content = b""
        return response

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.parametrize(("tier", "timeout_s"), EXPECTED)
def test_requests_and_threads_have_it_too(settings: AgentSettings, tier: str | None, timeout_s: float):
    adapter, seen = Adapter(), list[dict[str, Any]]()

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request.extensions["timeout"])
        return httpx.Response(200)

    with blocking.Agent(settings=settings) as agent, requests.Session() as session:
        session.mount("http://", GuardedAdapter(agent, dependency="api", tier=tier, adapter=adapter))
        session.get("http://vendor")
        transport = BlockingGuardedTransport(
            agent, dependency="api", tier=tier, transport=httpx.MockTransport(answer)
        )
        with httpx.Client(transport=transport, timeout=None) as client:  # noqa: S113 - its own
            client.get("http://vendor")
    assert adapter.timeouts == [timeout_s]
    assert set(seen[0].values()) == {timeout_s}
