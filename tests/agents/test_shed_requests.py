"""An overloaded pod refuses requests before it checks a limit. A real agent, a real Redis, middleware."""

import json
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, Misconfigured, Reason, Subject
from fuseboard.contract.load import PodLoad
from fuseboard.contract.policy import Dependency, TenantRecord, Tier
from fuseboard.contract.protection import Bulkhead, CallProtection, Observe, PodProtection, Shedding
from fuseboard.contract.sync import SyncRequest, encode
from fuseboard.contract.words import LoadLevel
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.integrations.asgi import FuseboardMiddleware, readiness, resilience, subject_of
from fuseboard.protection.pod import ServedRequest
from fuseboard.protection.shedding import Load
from tests.agents.gateways import FakeGateway, Reply, gateway_running
from tests.agents.pressed import ALMOST_ALL, NONE, SOME, TENANTS, TIERED, pod_of, press
from tests.agents.published import publish
from tests.agents.servers import POLICY, REQUESTS
from tests.waiting import eventually

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> AsyncIterator[Agent]:
    publish(limits, TIERED, revision=1, tenants=TENANTS)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        await eventually(lambda: agent._runtime.inbound.pod is not None)
        for tenant in TENANTS:
            await agent.admit_request(tenant)  # its record is here now
        press(agent, NONE)
        yield agent


def tenant_of(scope: Scope) -> str | None:
    values = [value.decode() for name, value in scope["headers"] if name == b"x-tenant"]
    return values[0] if values else None


async def hello(scope: Scope, receive: object, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"hello"})


async def ask(app: Any, tenant: str | None = None, path: str = "/", method: str = "GET") -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return await client.request(method, path, headers={} if tenant is None else {"X-Tenant": tenant})


async def statuses(app: Any, *tenants: str | None) -> list[int]:
    return [(await ask(app, tenant)).status_code for tenant in tenants]


ALL = ("free", "pro", "premium")


async def test_at_the_middleware(agent: Agent):
    app = FuseboardMiddleware(hello, agent, tenant_of)
    assert await statuses(app, *ALL) == [200, 200, 200]
    press(agent, SOME)
    assert await statuses(app, *ALL) == [503, 200, 200]
    press(agent, ALMOST_ALL)
    assert await statuses(app, *ALL) == [503, 503, 200]
    press(agent, NONE, seconds=15)
    assert await statuses(app, *ALL) == [200, 200, 200]


async def test_a_shed_request_is_a_503_that_says_why_and_when_to_come_back(agent: Agent):
    press(agent, SOME)
    response = await ask(FuseboardMiddleware(hello, agent, tenant_of), "free")
    assert response.headers["content-type"] == "application/problem+json"
    assert int(response.headers["retry-after"]) >= 1
    problem = response.json()
    assert problem["reason"] == "shed"
    assert problem["detail"] == "Service under pressure - free tier temporarily limited"
    assert "violated-policies" not in problem
    assert (await ask(FuseboardMiddleware(hello, agent, tenant_of), "free", method="HEAD")).content == b""


@pytest.mark.parametrize(
    ("waiting", "latency", "detail"),
    [(500, None, "System overloaded - queue full"), (0, 3.0, "Service temporarily overloaded")],
)
async def test_the_text_names_the_cause(agent: Agent, waiting: int, latency: float | None, detail: str):
    pod = pod_of(agent)
    pod.stop()
    shedder = pod.shedder
    assert shedder is not None
    for tick in range(1, 40):
        for _ in range(100):
            shedder.enter(90, "premium")
            shedder.enter(10, "free")
            shedder.leave()
        shedder.tick(pod._clock() + tick / 4, Load(waiting, latency, "GET /", 0.1, 400))
    response = await ask(FuseboardMiddleware(hello, agent, tenant_of), "free")
    assert (response.status_code, response.json()["detail"]) == (503, detail)


async def test_health_checks_are_never_shed(agent: Agent):
    press(agent, ALMOST_ALL)
    assert await statuses(FuseboardMiddleware(hello, agent, tenant_of), None) == [200]
    assert agent.enter_request(None) is None
    assert agent.enter_request(None, Subject(endpoint="GET /healthz")) is None


async def test_a_tier_comes_from_the_tenants_record_and_never_from_the_request(agent: Agent):
    press(agent, ALMOST_ALL)
    app = FuseboardMiddleware(hello, agent, tenant_of, subject=subject_of)
    # Not known yet, not valid, or no tenant at all: the default tier.
    assert await statuses(app, "someone-new", "", "premium\x00", None) == [503] * 4
    press(agent, SOME, seconds=30)
    assert await statuses(app, "someone-new", None, "premium") == [200, 200, 200]


async def test_a_tenant_that_was_shed_unmet_has_its_own_tier_soon(agent: Agent, limits: redis.Redis):
    publish(limits, TIERED, revision=2, tenants={"vip": TenantRecord(tier="premium")}, listed=None)
    press(agent, ALMOST_ALL)
    app = FuseboardMiddleware(hello, agent, tenant_of)
    assert await statuses(app, "vip") == [503]
    pod = pod_of(agent)
    assert pod._on_tick is not None
    pod._on_tick()
    await eventually(lambda: agent.configuration.snapshot.tier_of("vip").name == "premium")
    assert await statuses(app, "vip") == [200]


async def test_a_shed_request_spends_nothing_and_asks_redis_nothing(agent: Agent, limits: redis.Redis):
    limited = msgspec.structs.replace(
        TIERED, tiers=(Tier(name="free", priority=10, quotas=(REQUESTS,)), *TIERED.tiers[1:])
    )
    publish(limits, limited, revision=2)
    await eventually(lambda: agent.configuration.snapshot.head.revision == 2)
    press(agent, SOME)
    before = agent.counters.store_answers
    assert await statuses(FuseboardMiddleware(hello, agent, tenant_of), *["free"] * 30) == [503] * 30
    assert agent.counters.store_answers == before
    pod = pod_of(agent)
    assert pod._on_tick is not None
    pod._on_tick()
    wire = agent.counters.wire()
    assert wire.refused == {Reason.SHED: 30}
    assert next(one for one in wire.tenants if one.tenant == "free").refused == 30
    decision = await agent.admit_request("free")
    assert decision.allowed
    assert decision.limits[0].remaining == 19


async def test_requests_are_counted_from_their_start_to_their_end_whatever_happens(agent: Agent):
    pod = pod_of(agent)
    seen: list[int] = []

    async def app(scope: Scope, receive: object, send: Send) -> None:
        seen.append(pod.requests.in_flight)
        if scope["path"] == "/broken":
            raise LookupError
        if scope["path"] == "/refused":
            raise Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN))
        status = 500 if scope["path"] == "/500" else 200
        await send({"type": "http.response.start", "status": status, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    guarded = FuseboardMiddleware(app, agent, tenant_of)
    answers = [(await ask(guarded, "pro", path)).status_code for path in ("/", "/500", "/broken", "/refused")]
    assert answers == [200, 500, 500, 503]
    assert seen == [1] * 4
    assert pod.requests.in_flight == 0
    # A refused call of the application is a 503, but not a failure of the pod.
    assert pod.requests.errors == 2
    assert pod.requests.latency.count(pod._clock()) == 3


async def test_the_route_of_a_request_is_measured_by_its_pattern(agent: Agent):
    guarded = FuseboardMiddleware(hello, agent, tenant_of)
    for number in range(25):
        await ask(guarded, "pro", f"/orders/{number}")
    routes = agent.resilience()["routes"]
    assert set(routes) == {"GET /orders/*", "other"}
    assert routes["GET /orders/*"]["sla_ms"] == 500
    assert routes["GET /orders/*"]["p95_ms"] is not None
    assert routes["other"]["p95_ms"] is None


async def test_a_tenant_that_moves_to_another_tier_has_its_priority(agent: Agent, limits: redis.Redis):
    app = FuseboardMiddleware(hello, agent, tenant_of)
    press(agent, ALMOST_ALL)
    assert await statuses(app, "free") == [503]
    moved = {"free": TenantRecord(tier="premium")}
    publish(limits, TIERED, revision=2, tenants=moved, listed=("free",))
    await eventually(lambda: agent.configuration.snapshot.tier_of("free").name == "premium")
    assert await statuses(app, "free") == [200]


async def test_observe_mode_refuses_nothing_and_counts(agent: Agent, limits: redis.Redis):
    observing = msgspec.structs.replace(
        TIERED, protection=PodProtection(shedding=Shedding(), observe=Observe(shedding_until_us=2**52))
    )
    publish(limits, observing, revision=2)
    await eventually(lambda: agent.configuration.snapshot.head.revision == 2)
    press(agent, ALMOST_ALL)
    assert await statuses(FuseboardMiddleware(hello, agent, tenant_of), *ALL) == [200, 200, 200]
    assert pod_of(agent).load().observed == 2
    assert agent.resilience()["shedding"]["observe_only"] is True


async def test_without_protection_nothing_is_measured(agent: Agent, limits: redis.Redis):
    pod = pod_of(agent)
    del pod.start  # of the fixture
    publish(limits, TIERED, revision=2)
    await eventually(lambda: pod._timer is not None)
    publish(limits, POLICY, revision=3)
    await eventually(lambda: agent._runtime.inbound.pod is None)
    assert pod._timer is None
    assert agent.enter_request("free", method="GET", path="/") is None
    assert agent.pressure().value == 0
    assert agent.ready()
    assert agent._runtime._describe().load is None
    # Back again: it goes on with the same counts.
    publish(limits, TIERED, revision=4)
    await eventually(lambda: agent._runtime.inbound.pod is not None)
    assert agent._runtime.inbound.pod is pod
    assert pod._timer is not None


async def test_a_bulkhead_alone_has_the_pod_measured(agent: Agent, limits: redis.Redis):
    dependency = Dependency(name="payments", protection=CallProtection(bulkhead=Bulkhead()))
    publish(limits, msgspec.structs.replace(POLICY, dependencies=(dependency,)), revision=2)
    await eventually(lambda: agent.configuration.snapshot.head.revision == 2)
    assert agent._runtime.inbound.pod is not None
    press(agent, ALMOST_ALL)
    assert agent.pressure().value > 0.9
    assert agent.pressure().level is LoadLevel.NORMAL
    visit = agent.enter_request("free", method="GET", path="/")
    assert isinstance(visit, ServedRequest)
    visit.leave()


async def test_wrong_arguments_are_for_admit_request_to_refuse(agent: Agent):
    assert agent.enter_request(7) is None  # type: ignore[arg-type]
    assert agent.enter_request("free", "me") is None  # type: ignore[arg-type]
    assert agent.defects == 0
    with pytest.raises(Misconfigured):
        await agent.admit_request("free", subject="me")  # type: ignore[arg-type]


async def test_a_defect_of_the_pod_fails_no_request(agent: Agent, caplog: pytest.LogCaptureFixture):
    def broken(*args: object) -> None:
        raise LookupError

    pod_of(agent).enter = broken  # type: ignore[method-assign,assignment]
    with caplog.at_level(logging.ERROR):
        assert await statuses(FuseboardMiddleware(hello, agent, tenant_of), "free", "free") == [200, 200]
    assert agent.defects == 2


# What the pod says about itself


async def test_probes_and_the_resilience_view(agent: Agent):
    probe = await ask(readiness(agent), path="/readyz")
    assert (probe.status_code, probe.json()) == (200, {"ready": True, "because": ""})
    press(agent, ALMOST_ALL)
    await ask(FuseboardMiddleware(hello, agent, tenant_of), "free")
    shown = await ask(resilience(agent), path="/resilience")
    described = shown.json()
    assert shown.headers["cache-control"] == "no-store"
    assert described["pressure"]["level"] == "shed_hard"
    assert described["pressure"]["cause"].startswith("CPU is at 94% of ")
    assert described["shedding"]["refused"] == {"queue": 0, "latency": 0, "pressure": 1}
    # Neither who asked nor a secret.
    assert "free" not in json.dumps(described)
    assert "token" not in json.dumps(described)
    assert (await ask(readiness(agent), method="HEAD")).content == b""


async def test_a_stopping_agent_is_unready_at_once(agent: Agent):
    assert agent.ready()
    await agent.stop()
    assert agent.readiness() == (False, "the agent is stopping")
    assert (await ask(readiness(agent))).status_code == 503
    assert pod_of(agent)._timer is None


def test_an_agent_that_has_not_started_is_unready(redis_url: str):
    agent = Agent(settings=AgentSettings(redis_url=redis_url))
    assert agent.readiness() == (False, "the agent is not started")


class Granting(FakeGateway):
    """Lets the pod be unready while it asks, for ``unready_ms``."""

    unready_ms = 60_000

    def answer(self, beat: SyncRequest) -> Reply:
        asks = beat.load is not None and beat.load.asks_unready
        answer = self.response(beat)
        return Reply(body=encode(msgspec.structs.replace(answer, unready_ms=self.unready_ms if asks else 0)))


async def test_under_lasting_pressure_a_gateway_decides_whether_the_pod_is_unready(
    limits: redis.Redis, redis_url: str, tmp_path: Path
):
    with gateway_running(Granting()) as gateway:
        gateway.publish(TIERED, revision=7)
        gateway.next_ms = 50
        settings = AgentSettings(
            redis_url=redis_url, url=gateway.url, token="t", state_dir=tmp_path, server="shop-1"
        )
        async with Agent(settings=settings) as agent:
            await eventually(lambda: agent._runtime.inbound.pod is not None)
            press(agent, NONE)
            pod_of(agent).readiness.asks = False
            seen = len(gateway.beats)
            await eventually(lambda: len(gateway.beats) > seen + 1 and gateway.beats[-1].load is not None)
            load = gateway.beats[-1].load
            assert isinstance(load, PodLoad)
            assert not load.asks_unready
            press(agent, 0.95)
            await eventually(lambda: not agent.ready())
            assert "a gateway agrees" in agent.readiness()[1]
            await eventually(lambda: (gateway.beats[-1].load or PodLoad()).unready)
            # The gateway takes it back: ready again, although the pressure lasts.
            gateway.unready_ms = 0
            await eventually(agent.ready)
            assert pod_of(agent).readiness.asks
