"""A vendor behind a real socket, and every client that has a transport of ours."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests

from fuseboard import Agent, blocking
from fuseboard.contract.policy import Dependency, Policy
from fuseboard.contract.protection import CallProtection, Retry
from fuseboard.contract.words import Jitter
from fuseboard.integrations import httpx as for_httpx
from fuseboard.integrations import httpx2 as for_httpx2
from fuseboard.integrations.aiohttp import GuardedMiddleware
from fuseboard.integrations.requests import GuardedAdapter
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY

RETRY = Retry(base_ms=1, cap_ms=1, jitter=Jitter.NONE, budget_percent=100)
RULES = Policy(
    environment=POLICY.environment,
    default_tier=POLICY.default_tier,
    tiers=POLICY.tiers,
    dependencies=(Dependency(name="api", protection=CallProtection(retry=RETRY)),),
)


class Vendor:
    """``script``: status, headers and body of each answer in turn; then 200."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, str], bytes]] = []
        #: Method and body of each request.
        self.seen: list[tuple[str, bytes]] = []
        self.held = threading.Event()
        self.held.set()
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                vendor.seen.append((self.command, body))
                status, headers, answer = vendor.script.pop(0) if vendor.script else (200, {}, b"fine")
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                # "X-Cut": the body breaks off; "X-Held": it comes when ``held`` is set.
                cut = 10 if "x-cut" in headers else 0
                self.close_connection = self.close_connection or bool(cut)
                self.send_header("Content-Length", str(len(answer) + cut))
                self.end_headers()
                if "x-held" in headers:
                    self.wfile.flush()
                    vendor.held.wait(60)
                self.wfile.write(answer)

            do_GET = do_POST = answer  # noqa: N815 - names of the library

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def fails(self, status: int, times: int = 1, body: object = "no", **headers: str) -> None:
        text = {name.replace("_", "-"): value for name, value in headers.items()}
        if body != "no":
            text["Content-Type"] = "application/json"
        self.script += [(status, text, json.dumps(body).encode())] * times


LIMITED = {"error": {"code": "rate_limit_exceeded"}}
NO_MONEY = {"error": {"code": "insufficient_quota"}}


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    vendor = Vendor()
    thread = threading.Thread(target=vendor.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield vendor
    vendor.server.shutdown()
    thread.join()
    vendor.server.server_close()


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_with(tmp_path, RULES)


def rich(agent: Agent | blocking.Agent) -> None:
    """Many calls have allowed many retries."""
    budget, now = agent.retries.part("api").budget, agent.retries.clock()
    for _ in range(50_000):
        budget.first_call(now)


async def _one_by_one(parts: Iterator[bytes]) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


Send = Callable[..., tuple[int, str]]
ASYNC = {"httpx": (httpx, for_httpx), "httpx2": (httpx2, for_httpx2)}


@pytest.fixture(params=["httpx", "httpx2", "requests", "async httpx", "async httpx2", "aiohttp"])
def send(request: pytest.FixtureRequest, settings: AgentSettings, vendor: Vendor) -> Send:
    """Send one request as this library does, and return status and body of the answer."""
    kind = request.param

    def blocking_httpx(library: Any, ours: Any, method: str, options: dict[str, Any], **more: Any) -> Any:
        with blocking.Agent(settings=settings) as agent:
            rich(agent)
            transport = ours.BlockingGuardedTransport(agent, dependency="api", retry=True, **options)
            with library.Client(transport=transport) as client:
                answer = client.request(method, vendor.url, **more)
                return answer.status_code, answer.text

    def of_requests(method: str, options: dict[str, Any], **more: Any) -> Any:
        if "content" in more:
            more["data"] = more.pop("content")
        with blocking.Agent(settings=settings) as agent, requests.Session() as session:
            rich(agent)
            session.mount("http://", GuardedAdapter(agent, dependency="api", retry=True, **options))
            answer = session.request(method, vendor.url, **more)
            return answer.status_code, answer.text

    async def async_httpx(library: Any, ours: Any, method: str, options: dict[str, Any], **more: Any) -> Any:
        async with Agent(settings=settings) as agent:
            rich(agent)
            transport = ours.GuardedTransport(agent, dependency="api", retry=True, **options)
            async with library.AsyncClient(transport=transport) as client:
                answer = await client.request(method, vendor.url, **more)
                return answer.status_code, answer.text

    async def of_aiohttp(method: str, options: dict[str, Any], **more: Any) -> Any:
        if "content" in more:
            content = more.pop("content")
            more["data"] = content if isinstance(content, bytes) else _one_by_one(content)
        async with Agent(settings=settings) as agent:
            rich(agent)
            guarded = GuardedMiddleware(agent, dependency="api", retry=True, **options)
            async with (
                aiohttp.ClientSession(middlewares=(guarded,)) as session,
                session.request(method, vendor.url, **more) as answer,
            ):
                return answer.status, await answer.text()

    def send(method: str, options: dict[str, Any] | None = None, **more: Any) -> tuple[int, str]:
        if kind == "requests":
            return of_requests(method, options or {}, **more)
        if kind == "aiohttp":
            return asyncio.run(of_aiohttp(method, options or {}, **more))
        name = kind.removeprefix("async ")
        if name == kind:
            return blocking_httpx(*ASYNC[name], method, options or {}, **more)
        return asyncio.run(async_httpx(*ASYNC[name], method, options or {}, **more))

    return send
