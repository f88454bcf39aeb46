"""The FastAPI dependency in a real application: it knows the route and the authenticated tenant."""

from collections.abc import AsyncIterator
from pathlib import Path
from time import time
from typing import Annotated, Any

import httpx
import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Refused, Subject
from fuseboard.contract.policy import Limit, TenantRecord, Tier
from fuseboard.contract.words import Algorithm, Dimension
from tests.agents.pressed import NONE, SOME, TENANTS, TIERED, pod_of, press
from tests.agents.published import decides_by, publish
from tests.agents.servers import POLICY
from tests.waiting import eventually

pytest.importorskip("fastapi")
from fastapi import APIRouter, BackgroundTasks, Depends, FastAPI, Header, HTTPException
from fastapi.responses import JSONResponse
from starlette.requests import HTTPConnection

from fuseboard.integrations.asgi import FuseboardMiddleware
from fuseboard.integrations.fastapi import answer_refused, limited, subject_of

REQUESTS = Limit(name="requests", limit=5, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
OPEN = Limit(name="open", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
ORDERS = Limit(
    name="orders", limit=1, window_ms=60_000, per=(Dimension.ENDPOINT,), endpoints=("GET /orders/{number}",)
)
PER_IP = Limit(name="per-ip", limit=1, window_ms=60_000, per=(Dimension.IP,))
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(
        Tier(name="free", quotas=(REQUESTS,)),
        Tier(name="slots", quotas=(OPEN,)),
        Tier(name="routes", quotas=(ORDERS,)),
    ),
    subject_limits=(PER_IP,),
)


def key_of(x_key: Annotated[str, Header()]) -> str:
    if x_key == "wrong":
        raise HTTPException(401)
    return x_key


def tenant_of(key: Annotated[str, Depends(key_of)]) -> str | None:
    return key if key != "anonymous" else None


def application(agent: Agent) -> FastAPI:
    app = FastAPI()
    limit = Depends(limited(agent, tenant=tenant_of, legacy_headers=True))

    @app.get("/orders/{number}", dependencies=[limit])
    async def order(number: int) -> int:
        return number

    @app.get("/five", dependencies=[Depends(limited(agent, tenant=tenant_of, cost=lambda: 5))])
    async def five() -> str:
        return "five"

    @app.get("/own", dependencies=[limit])
    async def own() -> JSONResponse:
        return JSONResponse("own")

    @app.get("/broken", dependencies=[limit])
    async def broken() -> None:
        raise HTTPException(418)

    @app.get("/health", dependencies=[Depends(limited(agent, tenant=lambda: None, subject=lambda: None))])
    async def health() -> str:
        return "well"

    return app


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    tenants = {tier: TenantRecord(tier=tier) for tier in ("slots", "routes")}
    publish(limits, RULES, revision=1, tenants=tenants)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        # The start of an agent waits half a second for Redis, which a busy machine exceeds.
        await eventually(decides_by(agent, 1))
        yield agent


async def get(app: FastAPI, address: str, tenant: str = "acme") -> httpx.Response:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop") as client:
        return await client.get(address, headers={"X-Key": tenant})


async def test_an_allowed_request_gets_the_headers(agent: Agent):
    response = await get(application(agent), "/orders/7")
    assert (response.status_code, response.json()) == (200, 7)
    assert response.headers["RateLimit"] == '"requests";r=4'
    assert response.headers["X-RateLimit-Remaining"] == "4"


async def test_a_refusal_is_a_429_in_fastapis_format_and_as_problem_json_with_the_handler(agent: Agent):
    app = application(agent)
    assert (await get(app, "/five")).status_code == 200
    refused = await get(app, "/five")
    assert (refused.status_code, refused.headers["Content-Type"]) == (429, "application/json")
    assert refused.json()["detail"]["violated-policies"] == ["requests"]
    assert int(refused.headers["Retry-After"]) >= 1

    app = application(agent)
    app.add_exception_handler(Refused, answer_refused)
    refused = await get(app, "/five")
    assert (refused.status_code, refused.headers["Content-Type"]) == (429, "application/problem+json")
    assert refused.json()["violated-policies"] == ["requests"]
    assert refused.headers["RateLimit-Policy"] == '"requests";q=5;w=60'


async def test_the_route_is_the_endpoint_not_the_path(agent: Agent):
    app = application(agent)
    assert [(await get(app, f"/orders/{n}", "routes")).status_code for n in (1, 2)] == [200, 429]


async def test_a_route_is_shed_before_its_limits_and_counted_once(
    limits: redis.Redis, redis_url: str, tmp_path: Path
):
    publish(limits, TIERED, revision=1, tenants=TENANTS)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await eventually(lambda: agent._runtime.inbound.pod is not None)
        for tenant in TENANTS:
            await agent.admit_request(tenant)
        press(agent, NONE)
        pod, app = pod_of(agent), application(agent)
        app.add_exception_handler(Refused, answer_refused)
        assert (await get(app, "/orders/7", "free")).status_code == 200
        assert (await get(app, "/broken", "free")).status_code == 418
        assert pod.requests.latency.count(pod._clock()) == 2
        assert pod.requests.routes.of("GET /orders/7").histogram.count(pod._clock()) == 1
        press(agent, SOME)
        shed = await get(app, "/orders/7", "free")
        assert (shed.status_code, shed.json()["reason"]) == (503, "shed")
        assert (await get(app, "/orders/7", "premium")).status_code == 200
        assert (await get(app, "/health")).status_code == 200
        # With the middleware too, a request is counted once.
        entered = pod.requests.entered
        app = application(agent)
        app.add_middleware(FuseboardMiddleware, agent=agent, tenant=lambda scope: "premium")
        assert (await get(app, "/orders/7", "premium")).status_code == 200
        assert (pod.requests.entered, pod.requests.in_flight) == (entered + 1, 0)


async def test_who_is_not_authenticated_spends_nothing(agent: Agent):
    app = application(agent)
    for _ in range(7):
        assert (await get(app, "/orders/1", "wrong")).status_code == 401
    assert (await get(app, "/orders/1")).status_code == 200


async def test_a_caller_without_a_tenant_is_decided_by_its_address_or_not_at_all(agent: Agent):
    app = application(agent)
    assert [(await get(app, "/own", "anonymous")).status_code for _ in range(2)] == [200, 429]
    assert [(await get(app, "/health")).status_code for _ in range(3)] == [200] * 3


@pytest.mark.parametrize(("address", "status"), [("/orders/1", 200), ("/own", 200), ("/broken", 418)])
async def test_slots_of_a_request_are_free_when_it_has_ended(agent: Agent, address: str, status: int):
    assert (await get(application(agent), address, "slots")).status_code == status
    decision = await agent.admit_request("slots", wait_s=5)
    assert decision.allowed
    held: Any = await get(application(agent), address, "slots")
    assert (held.status_code, held.json()["detail"]["reason"]) == (429, "concurrency")
    agent.finish(decision)
    assert (await agent.admit_request("slots", subject=Subject(user="ada"), wait_s=5)).allowed


class TestNames:
    """The endpoint of a route has one name, wherever the route is included or mounted."""

    @pytest.fixture
    def app(self) -> FastAPI:
        def name(connection: HTTPConnection) -> str:
            return subject_of(connection).endpoint

        def make() -> FastAPI:
            inner, outer, app = APIRouter(prefix="/in"), APIRouter(prefix="/mid"), FastAPI()
            inner.get("/x/{id}")(name)
            outer.include_router(inner, prefix="/more")
            app.include_router(outer, prefix="/top")
            app.get("/orders/{id}")(name)
            app.get("/files/{path:path}")(name)
            return app

        app = make()
        app.mount("/shop", make())
        app.mount("/of/{tenant}", make())
        return app

    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("/orders/1", "GET /orders/{id}"),
            ("/files/a/b", "GET /files/{path:path}"),
            ("/top/mid/more/in/x/1", "GET /top/mid/more/in/x/{id}"),
            ("/shop/orders/1", "GET /shop/orders/{id}"),
            ("/shop/top/mid/more/in/x/1", "GET /shop/top/mid/more/in/x/{id}"),
            ("/of/acme/orders/1", "GET /of/{tenant}/orders/{id}"),
            ("/of/orders/orders/orders", "GET /of/{tenant}/orders/{id}"),
        ],
    )
    @pytest.mark.parametrize("root", ["", "/api"])
    async def test_a_name_has_the_prefixes_of_routers_and_mounts(
        self, app: FastAPI, root: str, path: str, name: str
    ):
        transport = httpx.ASGITransport(app, root_path=root)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            assert (await client.get(root + path)).json() == name


async def test_the_tasks_after_an_answer_hold_no_slot(agent: Agent):
    app, seen = FastAPI(), list[bool]()

    async def later() -> None:
        seen.append((await agent.admit_request("slots", wait_s=10)).allowed)

    @app.get("/mail", dependencies=[Depends(limited(agent, tenant=lambda: "slots"))])
    async def mail(tasks: BackgroundTasks) -> str:
        assert not (await agent.admit_request("slots")).allowed
        tasks.add_task(later)
        return "sent"

    assert (await get(app, "/mail")).status_code == 200
    assert seen == [True]


@pytest.mark.parametrize("handled", [True, False])
async def test_a_refusal_has_the_older_headers_that_agree_with_retry_after(agent: Agent, handled: bool):
    app = application(agent)
    if handled:
        app.add_exception_handler(Refused, answer_refused)
    before = time()
    answers = [await get(app, "/orders/7") for _ in range(6)]
    refused = answers[5]
    assert (refused.status_code, refused.headers["X-RateLimit-Remaining"]) == (429, "0")
    wait_s = int(refused.headers["X-RateLimit-Reset"]) - before
    assert 0 <= wait_s - int(refused.headers["Retry-After"]) <= time() - before + 1
