"""The ASGI middleware: it answers refused requests in full, and passes everything else unchanged."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from time import time
from typing import Any

import httpx
import pytest

from fuseboard.contract.words import Algorithm, Mode, Reason
from fuseboard.decision import Decision, LimitStatus
from fuseboard.errors import Misconfigured, Refused
from fuseboard.integrations.asgi import FuseboardMiddleware, subject_of
from fuseboard.integrations.problem import QUOTA_EXCEEDED, REDUCED_CAPACITY, limit_headers, refusal
from fuseboard.subject import NO_SUBJECT, Subject

Scope = MutableMapping[str, Any]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
LIMITS = (
    LimitStatus(name="burst", limit=10, window_ms=1000, remaining=0),
    LimitStatus(name="daily", limit=1000, window_ms=86_400_000, remaining=12),
)


class FakeAgent:
    """Decides what it is told to."""

    def __init__(self, decision: Decision | Exception) -> None:
        self.decision = decision
        self.asked: list[tuple[str | None, int]] = []
        self.subjects: list[Subject] = []
        self.costs: list[Mapping[str, int] | None] = []
        self.finished: list[Decision] = []
        self.log: list[str] = []
        self.running = False

    async def admit_request(
        self,
        tenant: str | None,
        cost: int = 1,
        *,
        costs: Mapping[str, int] | None = None,
        subject: Subject = NO_SUBJECT,
        wait_s: float = 0.0,
    ) -> Decision:
        self.asked.append((tenant, cost))
        self.subjects.append(subject)
        self.costs.append(costs)
        if isinstance(self.decision, Exception):
            raise self.decision
        return self.decision

    def enter_request(self, tenant: str | None, subject: Subject, method: str, path: str) -> None:
        """Nothing is configured."""

    def finish(self, decision: Decision) -> None:
        self.finished.append(decision)

    async def start(self) -> None:
        self.running = True
        self.log.append("agent started")

    async def stop(self) -> None:
        self.running = False
        self.log.append("agent stopped")


def allowed() -> Decision:
    return Decision(allowed=True, tenant="acme", limits=LIMITS)


def refused(reason: Reason, retry_after_ms: int = 1500) -> Decision:
    return Decision(
        allowed=False,
        reason=reason,
        rule="burst",
        tenant="acme",
        retry_after_ms=retry_after_ms,
        limits=LIMITS,
        mode=Mode.SHARED,
    )


async def hello(scope: Scope, receive: object, send: Send) -> None:
    headers = [(b"x-own", b"kept")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": b"hello"})


def tenant_of(scope: Scope) -> str | None:
    values = [value.decode("latin-1") for name, value in scope["headers"] if name == b"x-tenant"]
    return values[0] if values else None


async def ask(
    agent: FakeAgent, *, app: object = hello, method: str = "GET", tenant: str | None = "acme", **options: Any
) -> httpx.Response:
    middleware = FuseboardMiddleware(app, agent, tenant_of, **options)
    transport = httpx.ASGITransport(middleware)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return await client.request(method, "/", headers={} if tenant is None else {"X-Tenant": tenant})


class TestAllowed:
    async def test_the_answer_passes_with_the_limits_in_its_headers(self):
        response = await ask(FakeAgent(allowed()))
        assert (response.status_code, response.text) == (200, "hello")
        assert response.headers["x-own"] == "kept"
        assert response.headers["RateLimit-Policy"] == '"burst";q=10;w=1, "daily";q=1000;w=86400'
        assert response.headers["RateLimit"] == '"burst";r=0, "daily";r=12'

    async def test_a_request_of_no_tenant_is_not_touched(self):
        agent = FakeAgent(refused(Reason.QUOTA))
        response = await ask(agent, tenant=None)
        assert response.status_code == 200
        assert agent.asked == []
        assert "RateLimit" not in response.headers

    async def test_an_empty_tenant_is_no_way_around_the_limits(self):
        agent = FakeAgent(refused(Reason.QUOTA))
        assert (await ask(agent, tenant="")).status_code == 429

    async def test_a_request_may_cost_more_than_one(self):
        agent = FakeAgent(allowed())
        await ask(agent, cost=lambda scope: 7)
        assert agent.asked == [("acme", 7)]

    async def test_other_protocols_pass_untouched(self):
        seen: list[str] = []

        async def app(scope: Scope, receive: object, send: object) -> None:
            seen.append(scope["type"])

        agent = FakeAgent(refused(Reason.QUOTA))
        await FuseboardMiddleware(app, agent, tenant_of)({"type": "websocket"}, None, None)
        assert seen == ["websocket"]
        assert agent.asked == []


class TestWhoAsks:
    """A caller without a tenant is decided by its address or key, or by nothing at all."""

    async def test_a_subject_decides_for_a_caller_without_a_tenant(self):
        agent = FakeAgent(refused(Reason.QUOTA))
        response = await ask(agent, tenant=None, subject=subject_of)
        assert response.status_code == 429
        assert agent.asked == [(None, 1)]
        assert agent.subjects == [Subject(ip="127.0.0.1", endpoint="GET /")]

    async def test_without_tenant_and_subject_nothing_decides(self):
        agent = FakeAgent(refused(Reason.QUOTA))
        assert (await ask(agent, tenant=None, subject=lambda scope: None)).status_code == 200
        assert (await ask(agent, tenant=None, subject=lambda scope: Subject())).status_code == 200
        assert agent.asked == []

    async def test_a_tenants_request_is_decided_with_its_subject_and_costs(self):
        agent = FakeAgent(allowed())
        await ask(agent, subject=lambda scope: Subject(user="ada"), costs=lambda scope: {"tokens": 50})
        assert (agent.asked, agent.subjects) == ([("acme", 1)], [Subject(user="ada")])
        assert agent.costs == [{"tokens": 50}]


class TestTheEnd:
    """Whatever a request held is free when it has ended, however it ended."""

    async def test_after_the_answer(self):
        agent = FakeAgent(allowed())
        await ask(agent)
        assert agent.finished == [agent.decision]

    @pytest.mark.parametrize("error", [LookupError, asyncio.CancelledError])
    async def test_after_an_exception_and_a_cancellation(self, error: type[BaseException]):
        async def app(scope: Scope, receive: object, send: Send) -> None:
            assert agent.finished == []
            raise error

        agent = FakeAgent(allowed())
        middleware = FuseboardMiddleware(app, agent, tenant_of)
        with pytest.raises(error):
            await middleware({"type": "http", "headers": [(b"x-tenant", b"acme")]}, None, None)
        assert agent.finished == [agent.decision]

    async def test_a_refused_request_held_nothing(self):
        agent = FakeAgent(refused(Reason.CONCURRENCY))
        await ask(agent)
        assert agent.finished == []


class TestLegacyHeaders:
    async def test_only_on_request_and_for_the_limit_nearest_to_its_end(self):
        assert "X-RateLimit-Limit" not in (await ask(FakeAgent(allowed()))).headers
        response = await ask(FakeAgent(allowed()), legacy_headers=True)
        assert response.headers["X-RateLimit-Limit"] == "10"
        assert response.headers["X-RateLimit-Remaining"] == "0"
        assert time() <= int(response.headers["X-RateLimit-Reset"]) <= time() + 2

    async def test_a_refusal_says_when_it_ends(self):
        before = time()
        response = await ask(FakeAgent(refused(Reason.QUOTA)), legacy_headers=True)
        assert before + 1.5 <= int(response.headers["X-RateLimit-Reset"]) <= time() + 3
        assert '"burst";r=0;t=2' in response.headers["RateLimit"]


class TestRetryAfter:
    """C.10: clients that read only the body know when to try again."""

    @pytest.mark.parametrize("reason", [Reason.QUOTA, Reason.BREAKER_OPEN])
    async def test_the_problem_body_repeats_the_header(self, reason: Reason):
        response = await ask(FakeAgent(refused(reason)))
        assert response.json()["retry_after"] == int(response.headers["Retry-After"]) == 2

    async def test_a_refusal_without_an_end_has_none(self):
        response = await ask(FakeAgent(refused(Reason.QUOTA, retry_after_ms=0)))
        assert "retry_after" not in response.json()
        assert "retry_after" not in (await ask(FakeAgent(refused(Reason.SUSPENDED)))).json()


class TestRefused:
    async def test_a_spent_quota_is_a_429_that_says_which_and_when(self):
        response = await ask(FakeAgent(refused(Reason.QUOTA)))
        assert response.status_code == 429
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.headers["RateLimit"] == '"burst";r=0;t=2, "daily";r=12'
        assert response.headers["Retry-After"] == "2"
        problem = response.json()
        assert problem["type"] == QUOTA_EXCEEDED
        assert problem["violated-policies"] == ["burst"]
        assert (problem["status"], problem["reason"]) == (429, "quota")

    @pytest.mark.parametrize(
        ("reason", "status"),
        [
            (Reason.SUSPENDED, 403),
            (Reason.STORE_UNAVAILABLE, 503),
            (Reason.SHED, 503),
            (Reason.BREAKER_OPEN, 503),
            (Reason.LOCAL_RATE, 503),
            (Reason.CONCURRENCY, 429),
        ],
    )
    async def test_each_reason_has_its_status(self, reason: Reason, status: int):
        response = await ask(FakeAgent(refused(reason)))
        assert (response.status_code, response.json()["reason"]) == (status, reason)
        assert ("Retry-After" in response.headers) is (status != 403)
        if status == 503:
            assert response.json()["type"] == REDUCED_CAPACITY

    async def test_a_head_request_gets_the_headers_and_no_body(self):
        response = await ask(FakeAgent(refused(Reason.QUOTA)), method="HEAD")
        assert (response.status_code, response.content) == (429, b"")

    async def test_when_waiting_never_helps_no_time_is_named(self):
        status, headers, _ = refusal(refused(Reason.QUOTA, retry_after_ms=0))
        assert status == 429
        assert "retry-after" not in dict(headers)

    @pytest.mark.parametrize("milliseconds", [1, 999, 1000, 1001, 90_000])
    def test_retry_after_is_neither_too_early_nor_much_too_late(self, milliseconds: int):
        for _ in range(50):
            told = int(dict(refusal(refused(Reason.QUOTA, milliseconds))[1])["retry-after"])
            assert milliseconds / 1000 <= told <= milliseconds / 1000 * 1.1 + 1

    def test_a_window_that_is_no_whole_second_and_an_unknown_rest_are_left_out(self):
        odd = LimitStatus(name="odd", limit=5, window_ms=1500)
        assert limit_headers(Decision(allowed=True, limits=(odd,))) == [("ratelimit-policy", '"odd";q=5')]

    def test_a_shadow_limit_is_kept_from_clients_and_slots_are_called_slots(self):
        limits = (
            LimitStatus(name="trial", limit=5, window_ms=1000, remaining=0, shadow=True),
            LimitStatus(name="open", limit=4, window_ms=30_000, remaining=1, algorithm=Algorithm.CONCURRENCY),
        )
        assert limit_headers(Decision(allowed=True, limits=limits)) == [
            ("ratelimit-policy", '"open";q=4;qu="concurrent-requests"'),
            ("ratelimit", '"open";r=1'),
        ]
        assert limit_headers(Decision(allowed=True, limits=limits[:1])) == []

    async def test_a_refused_call_that_the_application_lets_escape_is_a_503(self):
        async def app(scope: Scope, receive: object, send: Send) -> None:
            raise Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN, retry_after_ms=4000))

        response = await ask(FakeAgent(allowed()), app=app)
        assert response.status_code == 503
        assert 4 <= int(response.headers["Retry-After"]) <= 5
        assert json.loads(response.content)["reason"] == "breaker_open"


class TestTrouble:
    async def test_an_agent_that_cannot_be_asked_lets_requests_pass_and_says_so_once(self, caplog):
        agent = FakeAgent(Misconfigured("not started"))
        middleware = FuseboardMiddleware(hello, agent, tenant_of)
        transport = httpx.ASGITransport(middleware)
        async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
            for _ in range(3):
                assert (await client.get("/", headers={"X-Tenant": "acme"})).status_code == 200
        assert middleware.failed_open == 3
        assert len([record for record in caplog.records if "failed_open" in record.message]) == 1

    async def test_the_applications_own_errors_stay_its_own(self):
        async def app(scope: Scope, receive: object, send: Send) -> None:
            raise LookupError("the application's")

        with pytest.raises(LookupError):
            await ask(FakeAgent(allowed()), app=app)

        def broken(scope: Scope) -> str:
            raise LookupError("the tenant's")

        middleware = FuseboardMiddleware(hello, FakeAgent(allowed()), broken)
        with pytest.raises(LookupError):
            await middleware({"type": "http", "headers": []}, None, None)


class Lifespan:
    """A server's side of a lifespan: startup, then shutdown."""

    def __init__(self, log: list[str]) -> None:
        self.log = log
        self._messages = iter(["lifespan.startup", "lifespan.shutdown"])

    async def receive(self) -> Scope:
        return {"type": next(self._messages)}

    async def send(self, message: Scope) -> None:
        self.log.append(message["type"])


class TestLifespan:
    async def test_the_agent_runs_from_before_the_application_until_after_it(self):
        agent = FakeAgent(allowed())
        server = Lifespan(agent.log)

        async def app(scope: Scope, receive: Any, send: Any) -> None:
            for event in ("startup", "shutdown"):
                assert (await receive())["type"] == f"lifespan.{event}"
                agent.log.append(f"app {event}")
                await send({"type": f"lifespan.{event}.complete"})

        await FuseboardMiddleware(app, agent, tenant_of)({"type": "lifespan"}, server.receive, server.send)
        assert agent.log == [
            "agent started",
            "app startup",
            "lifespan.startup.complete",
            "app shutdown",
            "agent stopped",
            "lifespan.shutdown.complete",
        ]

    async def test_an_application_without_a_lifespan_gets_a_running_agent_all_the_same(self):
        agent = FakeAgent(allowed())
        server = Lifespan(agent.log)

        async def app(scope: Scope, receive: Any, send: Any) -> None:
            assert scope["type"] == "http"

        await FuseboardMiddleware(app, agent, tenant_of)({"type": "lifespan"}, server.receive, server.send)
        assert agent.log == [
            "agent started",
            "lifespan.startup.complete",
            "agent stopped",
            "lifespan.shutdown.complete",
        ]

    async def test_an_application_that_fails_to_start_leaves_no_agent_behind(self):
        agent = FakeAgent(allowed())
        server = Lifespan(agent.log)

        async def app(scope: Scope, receive: Any, send: Any) -> None:
            await receive()
            await send({"type": "lifespan.startup.failed", "message": "no database"})
            raise RuntimeError("no database")

        middleware = FuseboardMiddleware(app, agent, tenant_of)
        with pytest.raises(RuntimeError):
            await middleware({"type": "lifespan"}, server.receive, server.send)
        assert agent.log == ["agent started", "agent stopped", "lifespan.startup.failed"]

    async def test_a_running_agent_is_neither_started_nor_stopped(self):
        agent = FakeAgent(allowed())
        agent.running = True
        server = Lifespan(agent.log)

        async def app(scope: Scope, receive: Any, send: Any) -> None:
            for event in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{event}.complete"})

        await FuseboardMiddleware(app, agent, tenant_of)({"type": "lifespan"}, server.receive, server.send)
        assert agent.log == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
