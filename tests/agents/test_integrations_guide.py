"""Runs the code in docs/integration.md as it is: a real server, a real vendor, a real Redis."""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from fuseboard.configuration.disk import read_bootstrap
from fuseboard.contract.policy import Dependency, Limit, TenantRecord, Tier
from fuseboard.contract.words import Dimension, Mode
from fuseboard.settings import AgentSettings
from fuseboard.testing import FakeAgent, fuseboard_agent
from tests.agents.published import publish
from tests.agents.servers import BREAKER, POLICY
from tests.waiting import eventually

__all__ = ["fuseboard_agent"]

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

REPOSITORY = Path(__file__).resolve().parents[2]
GUIDE = (REPOSITORY / "docs" / "integration.md").read_text()
REQUESTS = Limit(name="requests", limit=10, window_ms=600_000, burst=6)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)


class Vendor:
    """Answers every request with ``status``."""

    def __init__(self) -> None:
        self.status = 200
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.requests += 1
        writer.write(f"HTTP/1.1 {self.status} X\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()


@pytest.fixture
async def vendor(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Vendor]:
    vendor = Vendor()
    server = await asyncio.start_server(vendor.serve, "127.0.0.1", 0)
    monkeypatch.setenv("PAYMENTS_URL", f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    yield vendor
    server.close()
    await server.wait_closed()


@pytest.fixture
async def guide(
    vendor: Vendor, limits: redis.Redis, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[dict[str, Any]]:
    """The names of the guide's Python blocks, its application served on ``url``."""
    policy = msgspec.structs.replace(
        POLICY,
        tiers=(Tier(name="free", quotas=(REQUESTS,)),),
        subject_limits=(Limit(name="per-ip", limit=2, window_ms=60_000, burst=2, per=(Dimension.IP,)),),
        dependencies=(Dependency(name="payments-api", breaker=BREAKER),),
    )
    publish(limits, policy, revision=1, tenants={"late-payer": TenantRecord(tier="free", suspended=True)})
    monkeypatch.setenv("FUSEBOARD_REDIS_URL", redis_url)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", str(tmp_path))
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"FUSEBOARD_{name}", raising=False)
    names: dict[str, Any] = {}
    for code in blocks("python"):
        exec(compile(code, "docs/integration.md", "exec"), names)  # noqa: S102 - our own page
    config = uvicorn.Config(names["app"], host="127.0.0.1", port=0, log_level="error", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    names["url"] = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    yield names
    server.should_exit = True
    await serving
    await names["payments"].aclose()
    names["vendor"].close()
    await asyncio.to_thread(names["worker"].stop)


async def test_the_guide_does_what_it_says(guide: dict[str, Any], vendor: Vendor):
    async with httpx.AsyncClient(base_url=guide["url"], headers={"X-Tenant": "acme"}) as client:
        assert (await client.get("/healthz", headers={"X-Tenant": ""})).json() == {"mode": Mode.SHARED}
        assert (await client.post("/orders")).json() == {"charged": True}

        answers = [await client.post("/orders") for _ in range(6)]
        assert answers[-1].status_code == 429
        assert "Retry-After" in answers[-1].headers
        assert answers[-1].headers["RateLimit-Policy"] == '"requests";q=10;w=600'
        assert answers[-1].json()["violated-policies"] == ["requests"]
        suspended = await client.post("/orders", headers={"X-Tenant": "late-payer"})
        assert suspended.status_code == 403


async def test_a_vendor_that_fails_is_no_longer_called_and_the_answer_is_a_503(
    guide: dict[str, Any], vendor: Vendor
):
    vendor.status = 500
    async with httpx.AsyncClient(base_url=guide["url"]) as client:

        async def quote(number: int) -> dict[str, str]:
            return (await client.get("/quote", headers={"X-Tenant": f"tenant-{number}"})).json()

        for number in range(BREAKER.consecutive_failures):
            assert await quote(number) == {"rate": "yesterday's"}
        await eventually(lambda: any(view.state == "open" for view in guide["agent"].views()))
        received = vendor.requests
        assert await quote(100) == {"rate": "yesterday's"}
        refused = await client.post("/orders", headers={"X-Tenant": "tenant-101"})
        assert (refused.status_code, refused.json()["reason"]) == (503, "breaker_open")
        assert int(refused.headers["Retry-After"]) >= 1
        assert vendor.requests == received

        async def send() -> str:
            return "sent"

        with pytest.raises(guide["fuseboard"].Refused):
            await guide["charge_by_another_client"](send)


async def test_requests_outside_of_the_middleware_and_single_routes_are_limited_too(
    guide: dict[str, Any], vendor: Vendor
):
    refused = guide["fuseboard"].Refused

    async def store(rows: list[int]) -> int:
        return len(rows)

    assert await guide["import_file"]("importer", [1, 2, 3], store) == 3
    with pytest.raises(refused):
        await guide["import_file"]("importer", [1, 2, 3, 4, 5, 6], store)
    for _ in range(6):
        assert await guide["export"]("exporter") == "everything of exporter"
    with pytest.raises(refused):
        await guide["export"]("exporter")

    async with httpx.AsyncClient(base_url=guide["url"]) as client:
        headers = [{"X-Tenant": f"tenant-{number}", "X-Key": "reporter"} for number in range(7)]
        answers = [await client.get("/reports/2026", headers=each) for each in headers]
    assert [answer.status_code for answer in answers] == [200] * 6 + [429]
    assert answers[-1].headers["Content-Type"] == "application/problem+json"


async def test_callers_without_a_tenant_and_code_without_a_loop(guide: dict[str, Any], vendor: Vendor):
    transport = httpx.ASGITransport(guide["public"])
    async with httpx.AsyncClient(transport=transport, base_url="http://public") as client:
        answers = [await client.get("/") for _ in range(3)]
    assert [answer.status_code for answer in answers] == [404, 404, 429]

    def in_a_thread() -> str:
        assert guide["vendor"].get("/").status_code == 200
        return guide["monthly_invoice"]("acme")

    assert await asyncio.to_thread(in_a_thread) == "invoice of acme"
    assert vendor.requests == 1


def test_the_bootstrap_file_of_the_guide_is_one(tmp_path: Path):
    (document,) = blocks("json")
    path = tmp_path / "bootstrap.json"
    path.write_text(document)
    offer = read_bootstrap(path, environment="production")
    assert offer.policy is not None
    assert offer.policy.tiers[0].quotas[0].limit == 600
    assert offer.tenants["acme"] == TenantRecord(tier="free")


def test_the_guide_names_every_variable_the_agent_reads():
    from fuseboard.settings import _OURS

    named = set(re.findall(r"`FUSEBOARD_([A-Z_]+)`", GUIDE))
    assert named == _OURS


def test_no_variable_of_the_control_plane_is_taken_for_a_misspelled_one_of_the_agents():
    sources = (path.read_text() for path in (REPOSITORY / "controlplane").rglob("*.py"))
    variables = {name for source in sources for name in re.findall(r"FUSEBOARD_[A-Z_]+[A-Z]", source)}
    theirs = {name: "" for name in variables if not name.endswith(("_URL", "_TOKEN"))}
    assert len(theirs) > 5
    AgentSettings.from_env(theirs | {"FUSEBOARD_REDIS_URL": "redis://limits"})


async def test_the_adapters_for_requests_wsgi_and_django_do_what_the_guide_says(
    guide: dict[str, Any], vendor: Vendor, monkeypatch: pytest.MonkeyPatch
):
    from django.conf import settings

    monkeypatch.setattr(settings, "FUSEBOARD", {"AGENT": guide["worker"]}, raising=False)
    statuses: list[str] = []

    def in_a_thread() -> None:
        assert guide["session"].get(f"{os.environ['PAYMENTS_URL']}/rates").status_code == 200
        environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/"}
        for tenant in ("acme", "late-payer"):
            body = guide["wsgi_app"](
                environ | {"HTTP_X_TENANT": tenant}, lambda *given: statuses.append(given[0])
            )
            b"".join(body)
        assert guide["view"](None, lambda request: "charged") == "charged"

    async def charge(request: object) -> str:
        return "charged"

    await asyncio.to_thread(in_a_thread)
    assert [status[:3] for status in statuses] == ["200", "403"]
    assert vendor.requests == 1
    assert await guide["asynchronous_view"](None, charge) == "charged"


def test_the_application_of_the_guide_runs_with_the_fake_agent(
    fuseboard_agent: FakeAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both pages as they are: the application of the guide, and the test that protection.md shows for it."""
    (application,) = (code for code in blocks("python") if "app = FastAPI()" in code)
    page = (REPOSITORY / "docs" / "protection.md").read_text()
    (example,) = re.findall(r"^```python\n(import importlib\n.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    (tmp_path / "shop.py").write_text(application)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PAYMENTS_URL", "http://127.0.0.1:1")
    monkeypatch.delenv("FUSEBOARD_REDIS_URL", raising=False)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/protection.md", "exec"), names)  # noqa: S102 - our own page
    shop = names["shop"].__wrapped__(fuseboard_agent, monkeypatch)
    names["test_an_open_breaker_is_503"](shop, fuseboard_agent)
    assert [str(decision.reason) for decision in fuseboard_agent.refusals] == ["breaker_open"]
