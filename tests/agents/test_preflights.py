"""CORS preflights cost no quota, need no tenant, and can be shed; plain OPTIONS is a request."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from fuseboard import Agent, AgentSettings, Mode, blocking
from fuseboard.contract.words import Reason
from fuseboard.integrations import asgi, wsgi
from tests.agents.pressed import TENANTS, TIERED, pod_of, press
from tests.agents.published import publish
from tests.agents.test_integrations_asgi import FakeAgent, hello, refused
from tests.agents.test_integrations_wsgi import hello as wsgi_hello
from tests.waiting import eventually, wait_until

ORIGIN = {"Origin": "https://shop.example"}
ASKS = {"Access-Control-Request-Method": "POST"}
#: One of the two headers alone is no preflight, and neither is another method.
REQUESTS = [("OPTIONS", {}), ("OPTIONS", ORIGIN), ("OPTIONS", ASKS), ("POST", ORIGIN | ASKS)]


def tenant_of(scope: Any) -> str:
    return ""


async def ask(app: Any, method: str, headers: dict[str, str]) -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        return await client.request(method, "/orders", headers=headers)


class TestASGI:
    async def test_a_preflight_passes_without_a_question_and_without_its_tenant(self):
        def broken(scope: Any) -> str:
            raise LookupError("a preflight has no tenant")

        agent = FakeAgent(refused(Reason.QUOTA))
        app = asgi.FuseboardMiddleware(hello, agent, broken)
        assert (await ask(app, "OPTIONS", ORIGIN | ASKS)).status_code == 200
        assert (agent.asked, agent.finished) == ([], [])

    @pytest.mark.parametrize(("method", "headers"), REQUESTS)
    async def test_other_requests_are_limited(self, method: str, headers: dict[str, str]):
        app = asgi.FuseboardMiddleware(hello, FakeAgent(refused(Reason.QUOTA)), tenant_of)
        assert (await ask(app, method, headers)).status_code == 429

    async def test_an_overloaded_pod_sheds_it(self, limits: redis.Redis, redis_url: str, tmp_path: Path):
        publish(limits, TIERED, revision=1, tenants=TENANTS)
        async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
            await eventually(lambda: agent.mode is Mode.SHARED and agent._runtime.inbound.pod is not None)
            app = asgi.FuseboardMiddleware(hello, agent, tenant_of)
            assert (await ask(app, "OPTIONS", ORIGIN | ASKS)).status_code == 200
            press(agent, 1.0, seconds=10)
            assert (await ask(app, "OPTIONS", ORIGIN | ASKS)).status_code == 503


class TestFastAPI:
    """A route that answers OPTIONS itself, without the middleware for CORS."""

    def app(self, agent: Any) -> Any:
        fastapi = pytest.importorskip("fastapi")
        from fuseboard.integrations.fastapi import limited

        app = fastapi.FastAPI()
        limit = fastapi.Depends(limited(agent, tenant=lambda: "acme"))

        @app.api_route("/orders", methods=["OPTIONS", "POST"], dependencies=[limit])
        async def orders() -> str:
            return "ok"

        return app

    async def test_a_preflight_passes_without_a_question(self):
        agent = FakeAgent(refused(Reason.QUOTA))
        more = {"Access-Control-Request-Private-Network": "true"}
        for headers in (ORIGIN | ASKS, ORIGIN | ASKS | more):
            assert (await ask(self.app(agent), "OPTIONS", headers)).status_code == 200
        assert agent.asked == []

    @pytest.mark.parametrize(("method", "headers"), REQUESTS)
    async def test_other_requests_are_limited(self, method: str, headers: dict[str, str]):
        app = self.app(FakeAgent(refused(Reason.QUOTA)))
        assert (await ask(app, method, headers)).status_code == 429

    async def test_an_overloaded_pod_sheds_it(self, limits: redis.Redis, redis_url: str, tmp_path: Path):
        publish(limits, TIERED, revision=1, tenants=TENANTS)
        async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
            await eventually(lambda: agent.mode is Mode.SHARED and agent._runtime.inbound.pod is not None)
            assert (await ask(self.app(agent), "OPTIONS", ORIGIN | ASKS)).status_code == 200
            press(agent, 1.0, seconds=10)
            assert (await ask(self.app(agent), "OPTIONS", ORIGIN | ASKS)).status_code == 503
            assert pod_of(agent).requests.in_flight == 0


class TestWSGI:
    @pytest.fixture
    def agent(self, limits: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[blocking.Agent]:
        publish(limits, TIERED, revision=1, tenants=TENANTS)
        with blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
            wait_until(lambda: agent._agent is not None and agent._agent._runtime.inbound.pod is not None)
            yield agent

    def ask(self, agent: blocking.Agent, method: str, headers: dict[str, str]) -> tuple[int, bool]:
        asked: list[str] = []

        def tenant(environ: dict[str, Any]) -> str:
            asked.append("")
            return ""

        environ = {"REQUEST_METHOD": method, "PATH_INFO": "/orders", "REMOTE_ADDR": "192.0.2.1"}
        environ |= {f"HTTP_{name.upper().replace('-', '_')}": value for name, value in headers.items()}
        status: list[str] = []
        app = wsgi.FuseboardMiddleware(wsgi_hello, agent, tenant)
        body = app(environ, lambda line, headers, exc_info=None: status.append(line))
        b"".join(body)
        if hasattr(body, "close"):
            body.close()
        return int(status[0].split()[0]), bool(asked)

    def test_a_preflight_passes_without_its_tenant_and_can_be_shed(self, agent: blocking.Agent):
        assert self.ask(agent, "OPTIONS", ORIGIN | ASKS) == (200, False)
        press(agent, 1.0, seconds=10)
        assert self.ask(agent, "OPTIONS", ORIGIN | ASKS) == (503, False)

    @pytest.mark.parametrize(("method", "headers"), REQUESTS)
    def test_other_requests_have_a_tenant(self, agent: blocking.Agent, method: str, headers: dict[str, str]):
        assert self.ask(agent, method, headers) == (200, True)
