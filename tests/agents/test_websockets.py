"""WebSockets: limits decide the handshake and each message, on a real server with both kinds of clients."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Reason, Refused, Subject
from fuseboard.contract.policy import Limit, TenantRecord, Tier
from fuseboard.contract.words import Algorithm
from fuseboard.decision import Decision
from fuseboard.integrations.asgi import FuseboardMiddleware
from tests.agents.pressed import TENANTS, TIERED, press
from tests.agents.published import decides_by, publish
from tests.agents.servers import PATIENT, POLICY
from tests.waiting import eventually

pytest.importorskip("websockets")
pytest.importorskip("fastapi")
import uvicorn
from fastapi import Depends, FastAPI, Header, WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from fuseboard.integrations.fastapi import answer_refused, limited
from fuseboard.integrations.problem import problem

WINDOW = {"window_ms": 3_600_000, "algorithm": Algorithm.SLIDING_WINDOW}
HANDSHAKES = Limit(name="handshakes", limit=2, endpoints=("GET /live",), **WINDOW)
MESSAGES = Limit(name="messages", limit=2, endpoints=("MESSAGE /live",), **WINDOW)
OPEN = Limit(name="open", limit=1, window_ms=600_000, algorithm=Algorithm.CONCURRENCY)
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(HANDSHAKES, MESSAGES)), Tier(name="slots", quotas=(OPEN,))),
    tuning=PATIENT,
)


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    publish(limits, RULES, revision=1, tenants={"slots": TenantRecord(tier="slots")})
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await eventually(decides_by(agent, 1))
        yield agent


def tenant_of(x_tenant: Annotated[str, Header()]) -> str:
    return x_tenant


async def live(socket: WebSocket, x_tenant: Annotated[str, Header()]) -> None:
    await socket.accept()
    await socket.send_text("hello")
    async for text in socket.iter_text():
        if text == "escape":
            raise Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN, retry_after_ms=4_000))
        try:
            async with agent_of(socket).request(x_tenant, subject=Subject(endpoint="MESSAGE /live")):
                await socket.send_text(text.upper())
        except Refused as refused:
            await socket.send_json(problem(refused.decision))


def agent_of(socket: WebSocket) -> Agent:
    agent: Agent = socket.app.state.agent
    return agent


def by_dependency(agent: Agent) -> FastAPI:
    app = FastAPI()
    app.state.agent = agent
    app.websocket("/live", dependencies=[Depends(limited(agent, tenant=tenant_of))])(live)
    return app


def with_handler(agent: Agent) -> FastAPI:
    app = by_dependency(agent)
    app.add_exception_handler(Refused, answer_refused)
    return app


def by_middleware(agent: Agent) -> FastAPI:
    def tenant(scope: Any) -> str:
        return str(dict(scope["headers"])[b"x-tenant"].decode())

    def subject(scope: Any) -> Subject:
        return Subject(endpoint=f"{scope.get('method', 'GET')} {scope['path']}")

    app = FastAPI()
    app.state.agent = agent
    app.websocket("/live")(live)
    app.add_middleware(FuseboardMiddleware, agent=agent, tenant=tenant, subject=subject, websockets=True)
    return app


APPS = pytest.mark.parametrize("make", [by_dependency, with_handler, by_middleware])


def without_extension(app: Any) -> Any:
    async def plain(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "extensions": {}}, receive, send)

    return plain


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    server = uvicorn.Server(
        uvicorn.Config(
            app, host="127.0.0.1", port=0, log_level="error", lifespan="off", ws="websockets-sansio"
        )
    )
    task = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    try:
        yield f"ws://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/live"
    finally:
        server.should_exit = True
        await task


def opened(address: str, tenant: str = "acme") -> Any:
    return connect(address, additional_headers={"x-tenant": tenant}, proxy=None)


async def refused_handshake(address: str, tenant: str = "acme") -> Any:
    with pytest.raises(InvalidStatus) as refusal:
        async with opened(address, tenant):
            pass
    return refusal.value.response


@APPS
async def test_a_handshake_that_is_refused_gets_a_429_with_its_reason(agent: Agent, make: Any):
    async with served(make(agent)) as address:
        for _ in range(2):
            async with opened(address) as socket:
                assert await socket.recv() == "hello"
        answer = await refused_handshake(address)
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0
    assert b"handshakes" in answer.body


@APPS
async def test_a_server_that_cannot_answer_a_handshake_closes_it(agent: Agent, make: Any):
    async with served(without_extension(make(agent))) as address:
        for _ in range(2):
            async with opened(address) as socket:
                assert await socket.recv() == "hello"
        assert (await refused_handshake(address)).status_code == 403


@APPS
async def test_each_message_is_limited_and_the_connection_stays(agent: Agent, make: Any):
    async with served(make(agent)) as address, opened(address) as socket:
        assert await socket.recv() == "hello"
        answers = []
        for _ in range(3):
            await socket.send("one")
            answers.append(await socket.recv())
    assert answers[:2] == ["ONE", "ONE"]
    assert '"messages"' in answers[2]


@APPS
async def test_a_refusal_that_escapes_closes_the_socket_with_its_reason(agent: Agent, make: Any, caplog: Any):
    async with served(make(agent)) as address, opened(address) as socket:
        assert await socket.recv() == "hello"
        await socket.send("escape")
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1013
    assert closed.value.rcvd.reason
    assert not [record for record in caplog.records if record.exc_info]


@APPS
async def test_a_connection_holds_its_slot_until_it_is_closed(agent: Agent, make: Any):
    async with served(make(agent)) as address:
        async with opened(address, "slots") as socket:
            assert await socket.recv() == "hello"
            assert (await refused_handshake(address, "slots")).status_code == 429
        assert (await agent.admit_request("slots", wait_s=10)).allowed


@APPS
async def test_an_overloaded_pod_sheds_handshakes_and_does_not_count_connections(
    limits: redis.Redis, redis_url: str, tmp_path: Path, make: Any
):
    publish(limits, TIERED, revision=1, tenants=TENANTS)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await eventually(lambda: agent._runtime.inbound.pod is not None)
        async with served(make(agent)) as address, opened(address, "free") as socket:
            assert await socket.recv() == "hello"
            pod = agent._runtime.inbound.pod
            assert pod is not None
            assert (pod.requests.in_flight, pod.requests.unanswered) == (0, 0)
            press(agent, 1.0, seconds=10)
            assert (await refused_handshake(address, "free")).status_code == 503


async def test_without_the_option_websockets_pass_untouched(agent: Agent):
    app = by_middleware(agent)
    app.user_middleware[0].kwargs["websockets"] = False
    async with served(app) as address:
        for _ in range(3):
            async with opened(address) as socket:
                assert await socket.recv() == "hello"
