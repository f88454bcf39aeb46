"""Sidecars with a real agent and a real Redis."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from fuseboard import AgentSettings
from fuseboard.contract.policy import Policy
from fuseboard.sidecar.app import Options, Running, running
from tests.agents.published import decides_by, publish
from tests.agents.servers import TENANTS
from tests.waiting import PATIENCE_S, eventually


class Client:
    """An application beside its sidecar."""

    def __init__(self, running: Running, http: httpx.AsyncClient) -> None:
        self.running, self.sidecar, self.agent = running, running.sidecar, running.agent
        self.http = http

    async def post(self, path: str, content: Any, **options: Any) -> Any:
        """The JSON of an answer with 200."""
        answer = await self.http.post(path, json=content, **options)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def call(self, dependency: str = "payments", **members: Any) -> Any:
        return await self.post("/v1/calls", {"dependency": dependency, **members})

    async def report(self, *reports: dict[str, Any]) -> Any:
        return await self.post("/v1/reports", list(reports))

    async def request(self, tenant: str | None = "acme", **members: Any) -> Any:
        return await self.post("/v1/requests", {"tenant": tenant, **members})


Beside = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def beside(limits: redis.Redis, redis_url: str, tmp_path: Path) -> Beside:
    """Publishes a policy, and starts a sidecar that has it."""

    @asynccontextmanager
    async def start(policy: Policy, options: Options | None = None) -> AsyncIterator[Client]:
        publish(limits, policy, revision=7, tenants=dict(TENANTS))
        settings = AgentSettings(redis_url=redis_url, server="shop-1", state_dir=tmp_path / "state")
        async with running(settings, options or Options(listen=("127.0.0.1", 0))) as started:
            await eventually(decides_by(started.agent, 7))
            base = f"http://127.0.0.1:{started.port}"
            # One connection, and no proxy of the environment.
            async with httpx.AsyncClient(base_url=base, timeout=PATIENCE_S, trust_env=False) as http:
                yield Client(started, http)

    return start
