"""The integrations behind real servers, on sockets: uvicorn (ASGI), wsgiref (WSGI), Django behind both."""

import asyncio
import http.client
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

import msgspec
import pytest
import redis
import uvicorn
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.urls import path
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Route

from fuseboard import Agent, AgentSettings, blocking
from fuseboard.contract.load import PodLoad
from fuseboard.contract.policy import Limit, TenantRecord, Tier
from fuseboard.contract.sync import SyncRequest, encode
from fuseboard.contract.words import Algorithm
from fuseboard.integrations import asgi, django, wsgi
from tests.agents.gateways import FakeGateway, Reply, gateway_running
from tests.agents.pressed import ALMOST_ALL, NONE, TENANTS, TIERED, press
from tests.agents.published import publish
from tests.waiting import wait_until

REQUESTS = Limit(name="requests", limit=2, window_ms=600_000, algorithm=Algorithm.SLIDING_WINDOW)
OPEN = Limit(name="open", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
RULES = msgspec.structs.replace(
    TIERED,
    tiers=(
        *TIERED.tiers,
        Tier(name="two", priority=90, quotas=(REQUESTS,)),
        Tier(name="slots", priority=90, quotas=(OPEN,)),
    ),
)
RECORDS = TENANTS | {tier: TenantRecord(tier=tier) for tier in ("two", "slots")}
#: A stream sends this again and again, so that its server notices when the client leaves.
PART = b"part\n" * 1000

#: Open streams end when it is set.
released = threading.Event()


class Granting(FakeGateway):
    """Every pod that asks for it may be unready."""

    def answer(self, beat: SyncRequest) -> Reply:
        asks = (beat.load or PodLoad()).asks_unready
        answer = msgspec.structs.replace(self.response(beat), unready_ms=60_000 if asks else 0)
        return Reply(body=encode(answer))


@dataclass(frozen=True)
class Served:
    agent: Agent | blocking.Agent
    port: int
    #: The address of a stream that suits the server.
    stream: str = "/stream"

    def get(self, address: str, tenant: str = "") -> tuple[http.client.HTTPResponse, bytes]:
        with closing(self.open(address, tenant)) as connection:
            response = connection.getresponse()
            return response, response.read()

    def open(self, address: str, tenant: str = "") -> http.client.HTTPConnection:
        """A connection on which the request was sent."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request("GET", address, headers={"X-Tenant": tenant} if tenant else {})
        return connection

    def started(self, address: str, tenant: str) -> tuple[Any, http.client.HTTPResponse] | None:
        """A request whose body is not read; ``None`` for a refused one."""
        connection = self.open(address, tenant)
        response = connection.getresponse()
        if response.status == 200:
            return connection, response
        response.close()
        connection.close()
        return None

    def resilience(self) -> dict[str, Any]:
        response, body = self.get("/resilience")
        assert (response.status, response.headers["Content-Type"]) == (200, "application/json")
        found: dict[str, Any] = json.loads(body)
        return found

    def in_flight(self) -> int:
        """Requests that the pod works on. One for ``/resilience`` has no tenant, and is none of them."""
        found: int = self.resilience()["requests"]["in_flight"]
        return found


# The application: the same addresses in three frameworks.


async def _parts() -> AsyncIterator[bytes]:
    while not released.is_set():
        yield PART
        await asyncio.sleep(0.01)


def _blocking_parts() -> Iterator[bytes]:
    while not released.is_set():
        yield PART
        released.wait(0.01)


def asgi_application(agent: Agent) -> Any:
    async def hello(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    async def stream(request: Request) -> StreamingResponse:
        return StreamingResponse(_parts())

    app = Starlette(
        routes=[
            Route("/", hello),
            Route("/stream", stream),
            Route("/readyz", asgi.readiness(agent)),
            Route("/resilience", asgi.resilience(agent)),
        ]
    )

    def tenant(scope: Any) -> str | None:
        return dict(scope["headers"]).get(b"x-tenant", b"").decode() or None

    return asgi.FuseboardMiddleware(app, agent, tenant)


def wsgi_application(agent: blocking.Agent) -> Any:
    probes = {"/readyz": wsgi.readiness(agent), "/resilience": wsgi.resilience(agent)}

    def pages(environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        if (probe := probes.get(environ["PATH_INFO"])) is not None:
            return probe(environ, start_response)
        start_response("200 OK", [("Content-Type", "text/plain")])
        return _blocking_parts() if environ["PATH_INFO"] == "/stream" else [b"hello"]

    return wsgi.FuseboardMiddleware(pages, agent, lambda environ: environ.get("HTTP_X_TENANT"))


def hello(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


def stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(_blocking_parts())


async def async_stream(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(_parts())


urlpatterns = [
    path("", hello),
    path("stream", stream),
    path("async-stream", async_stream),
    path("readyz", django.readiness()),
    path("resilience", django.resilience()),
]


def tenant_of(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tenant")


# The servers.


@contextmanager
def uvicorn_running(application: Any) -> Iterator[int]:
    server = uvicorn.Server(
        uvicorn.Config(application, port=0, log_level="error", lifespan="auto", ws="none")
    )
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), "the server starts")
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        released.set()
        server.should_exit = True
        thread.join(30)
        assert not thread.is_alive()


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        return

    def log_exception(self, exc_info: object) -> None:
        return


class _Threaded(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """A client went away."""


@contextmanager
def wsgiref_running(application: Any) -> Iterator[int]:
    with _Threaded(("127.0.0.1", 0), _Quiet) as server:
        server.set_app(application)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server.server_port
        finally:
            released.set()
            server.shutdown()
            thread.join(30)


@pytest.fixture(params=["asgi", "wsgi", "django-asgi", "django-wsgi"])
def served(
    request: pytest.FixtureRequest, limits: redis.Redis, redis_url: str, tmp_path: Path, settings: Any
) -> Iterator[Served]:
    released.clear()
    publish(limits, RULES, revision=7, tenants=RECORDS)
    with ExitStack() as stack:
        gateway = stack.enter_context(gateway_running(Granting()))
        gateway.publish(RULES, revision=7)
        gateway.tenants, gateway.next_ms = dict(RECORDS), 50
        own = AgentSettings(
            redis_url=redis_url, url=gateway.url, token="t", state_dir=tmp_path, server="shop-1"
        )
        agent: Agent | blocking.Agent
        if request.param == "asgi":
            agent = Agent(settings=own)
            port = stack.enter_context(uvicorn_running(asgi_application(agent)))
        else:
            agent = stack.enter_context(blocking.Agent(settings=own))
            settings.ROOT_URLCONF = __name__
            settings.MIDDLEWARE = ["fuseboard.integrations.django.FuseboardMiddleware"]
            settings.FUSEBOARD = {"TENANT": tenant_of, "AGENT": agent}
            settings.ALLOWED_HOSTS = ["127.0.0.1"]
            if request.param == "wsgi":
                port = stack.enter_context(wsgiref_running(wsgi_application(agent)))
            elif request.param == "django-wsgi":
                port = stack.enter_context(wsgiref_running(WSGIHandler()))
            else:
                port = stack.enter_context(uvicorn_running(ASGIHandler()))
        pod = Served(agent, port, "/async-stream" if request.param == "django-asgi" else "/stream")
        wait_until(lambda: is_protected(agent), "the agent has its policy")
        for tenant in RECORDS:
            pod.get("/", tenant)  # From now on, the agent knows its tier.
        yield pod


def is_protected(agent: Agent | blocking.Agent) -> bool:
    running = agent._agent if isinstance(agent, blocking.Agent) else agent
    return running is not None and running._runtime.inbound.pod is not None


def test_a_request_over_its_quota_is_answered_in_full(served: Served):
    allowed, body = served.get("/", "two")
    assert (allowed.status, body) == (200, b"hello")
    assert allowed.headers["RateLimit-Policy"] == '"requests";q=2;w=600'
    refused, body = served.get("/", "two")
    assert (refused.status, refused.headers["Content-Type"]) == (429, "application/problem+json")
    # Spread, so that refused callers do not come back together.
    assert 1 <= int(refused.headers["Retry-After"]) <= 1200
    assert json.loads(body)["violated-policies"] == ["requests"]
    assert len(body) == int(refused.headers["Content-Length"])


def test_under_pressure_the_lowest_tiers_are_shed_and_the_pod_is_unready(served: Served):
    press(served.agent, NONE)
    ready, body = served.get("/readyz")
    assert (ready.status, json.loads(body)["ready"]) == (200, True)
    assert served.get("/", "free")[0].status == 200
    press(served.agent, ALMOST_ALL)
    shed, body = served.get("/", "free")
    assert (shed.status, json.loads(body)["reason"]) == (503, "shed")
    assert int(shed.headers["Retry-After"]) >= 1
    assert served.get("/", "premium")[0].status == 200
    unready = wait_until(
        lambda: served.get("/readyz"), "unready", accept=lambda found: found[0].status == 503
    )
    assert "a gateway agrees" in json.loads(unready[1])["because"]
    shown = served.resilience()
    assert shown["pressure"]["value"] > 0.9
    assert shown["readiness"]["ready"] is False


@pytest.mark.parametrize("leaves", [False, True], ids=["read to its end", "left by its client"])
def test_an_open_stream_is_in_flight_and_has_its_slot_until_it_ends(served: Served, leaves: bool):
    press(served.agent, NONE)
    # A slot is given back after the answer, so the one of the fixture's request can still be taken.
    begun = wait_until(lambda: served.started(served.stream, "slots"), "it begins")
    assert begun is not None
    connection, response = begun
    with closing(connection), closing(response):
        assert response.read(len(PART)) == PART
        wait_until(lambda: served.in_flight() == 1, "only the stream is open")
        refused, body = served.get("/", "slots")
        assert (refused.status, json.loads(body)["violated-policies"]) == (429, ["open"])
        if not leaves:
            released.set()
            response.read()
    wait_until(lambda: served.in_flight() == 0, "it ends")
    wait_until(lambda: served.get("/", "slots")[0].status == 200, "its slot is free")
