"""Names of release 0.1 still work, and each warns once."""

import asyncio
import warnings
from pathlib import Path

import pytest
import redis

from fuseboard import Agent, AgentSettings, blocking
from fuseboard.agent_api import deprecation
from tests.agents.published import publish
from tests.agents.servers import POLICY


@pytest.fixture(autouse=True)
def first_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deprecation, "_warned", set())


@pytest.fixture
def settings(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AgentSettings:
    publish(limits, POLICY, revision=3)
    return AgentSettings(redis_url=redis_url, server="shop-1", state_dir=tmp_path)


async def test_check_is_admit_request(settings: AgentSettings):
    async with Agent(settings=settings) as agent:
        with pytest.warns(DeprecationWarning, match=r"Agent\.check .*: use Agent\.admit_request") as warned:
            decision = await agent.check("acme", 1)
        assert warned[0].filename == __file__
        assert (decision.allowed, decision.tenant, decision.revision) == (True, "acme", 3)
        with warnings.catch_warnings(record=True) as again:
            assert (await agent.check("acme")).allowed
        assert again == []


def test_check_and_acheck_of_the_blocking_agent(settings: AgentSettings):
    with blocking.Agent(settings=settings) as agent:
        with pytest.warns(DeprecationWarning, match=r"use blocking\.Agent\.admit_request") as warned:
            assert agent.check("acme").revision == 3
        assert warned[0].filename == __file__
        with pytest.warns(DeprecationWarning, match=r"use blocking\.Agent\.aadmit_request"):
            assert asyncio.run(agent.acheck("acme")).revision == 3
