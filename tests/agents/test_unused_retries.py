"""The agent says once which calls do not use the retries that the policy allows."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from fuseboard import Agent, AgentSettings, blocking
from fuseboard.contract.policy import Dependency, Policy
from fuseboard.contract.protection import CallProtection, Retry
from fuseboard.integrations.httpx import BlockingGuardedTransport, GuardedTransport
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY

POLICIES = {
    "often": Retry(attempts=3),
    "harmless": Retry(attempts=3, idempotent=True),
    "once": Retry(attempts=1),
}


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    dependencies = tuple(
        Dependency(name=name, protection=CallProtection(retry=retry)) for name, retry in POLICIES.items()
    )
    rules = Policy(
        environment=POLICY.environment,
        default_tier=POLICY.default_tier,
        tiers=POLICY.tiers,
        dependencies=(*dependencies, Dependency(name="off")),
    )
    return settings_with(tmp_path, rules)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "retry.unused" in each.getMessage()]


@pytest.mark.parametrize(("name", "named"), [("often", 1), ("harmless", 1), ("once", 0), ("off", 0)])
async def test_a_transport_without_retry_is_named_once(
    settings: AgentSettings, caplog: pytest.LogCaptureFixture, name: str, named: int
):
    inner = httpx.MockTransport(lambda _: httpx.Response(200))
    async with Agent(settings=settings) as agent:
        transport = GuardedTransport(agent, dependency=name, transport=inner)
        async with httpx.AsyncClient(transport=transport) as client:
            for _ in range(3):
                await client.get("http://vendor")
        assert list(agent.resilience().get("unused_retries", {})) == [name] * named
    assert len(lines(caplog)) == named
    assert all("retry=True" in line for line in lines(caplog))


def test_a_transport_with_retry_is_not_named(settings: AgentSettings, caplog: pytest.LogCaptureFixture):
    inner = httpx.MockTransport(lambda _: httpx.Response(200))
    with blocking.Agent(settings=settings) as agent:
        transport = BlockingGuardedTransport(agent, dependency="often", retry=True, transport=inner)
        with httpx.Client(transport=transport) as client:
            client.get("http://vendor")
        assert "unused_retries" not in agent.resilience()
    assert lines(caplog) == []


@pytest.mark.parametrize(
    ("name", "options", "named"),
    [
        ("often", {}, 1),
        ("often", {"idempotent": True}, 0),
        ("often", {"idempotent": False}, 0),
        ("often", {"on": (LookupError,)}, 0),
        ("harmless", {}, 0),
        ("once", {}, 0),
    ],
)
async def test_a_decorated_function_that_is_not_idempotent_is_named_once(
    settings: AgentSettings, caplog: pytest.LogCaptureFixture, name: str, options: Any, named: int
):
    async with Agent(settings=settings) as agent:

        @agent.retry(name, **options)
        async def charge() -> str:
            return "charged"

        for _ in range(3):
            assert await charge() == "charged"
    assert len(lines(caplog)) == named
    assert all("idempotent=True" in line for line in lines(caplog))
