"""A vendor's client wraps the refusal of a guarded call. If the error escapes, the middleware answers it.

Anthropic's client wraps whatever its transport raises; OpenAI's does so in some versions only.
"""

from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
from fastapi import Depends, FastAPI, HTTPException

from fuseboard import Decision, Reason, Refused
from fuseboard.integrations import wsgi
from fuseboard.integrations.asgi import FuseboardMiddleware
from fuseboard.integrations.fastapi import answer_refused, limited
from tests.agents.test_integrations_asgi import FakeAgent, allowed

OPEN = Decision(allowed=False, reason=Reason.BREAKER_OPEN, retry_after_ms=4_000)
SPENT = Decision(allowed=False, reason=Reason.BUDGET_SPENT, rule="tokens", retry_after_ms=4_000)
Ask = Callable[[], Awaitable[Any]]


class Visited:
    """What a visit of the pod was told."""

    def __init__(self) -> None:
        self.statuses: list[int] = []

    def answered(self, status: int) -> None:
        self.statuses.append(status)

    def leave(self) -> None:
        """The request is over."""


class Counting(FakeAgent):
    """Admits every request and keeps its visit."""

    def __init__(self) -> None:
        super().__init__(allowed())
        self.visit = Visited()

    def enter_request(self, *_: Any) -> Any:
        return self.visit


class Blocking(Counting):
    def admit_request(self, *_: Any, **__: Any) -> Any:
        return self.decision


def refusing(decision: Decision | None) -> Callable[[httpx2.Request], httpx2.Response]:
    """A transport that refuses like a guarded one, or whose vendor is down."""

    def send(request: httpx2.Request) -> httpx2.Response:
        if decision is None:
            raise httpx2.ConnectError("down", request=request)
        raise Refused(decision)

    return send


def clients(decision: Decision | None) -> dict[str, Ask]:
    http = httpx2.AsyncClient(transport=httpx2.MockTransport(refusing(decision)))
    given: Any = {"api_key": "made-up", "base_url": "http://vendor", "http_client": http, "max_retries": 0}
    one, other = openai.AsyncOpenAI(**given), anthropic.AsyncAnthropic(**given)
    return {"openai": lambda: one.models.list(), "anthropic": lambda: other.models.list()}


async def get(app: Any, path: str = "/") -> httpx.Response:
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        return await client.get(path)


def check(response: httpx.Response, decision: Decision) -> None:
    assert response.status_code == (503 if decision is OPEN else 429)
    assert 4 <= int(response.headers["retry-after"]) <= 5
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["reason"] == decision.reason


@pytest.mark.parametrize("vendor", ["openai", "anthropic"])
@pytest.mark.parametrize("decision", [OPEN, SPENT], ids=["503", "429"])
async def test_asgi_answers_a_refusal_inside_the_error_of_a_client(vendor: str, decision: Decision):
    """It was a 500 without Retry-After."""
    ask = clients(decision)[vendor]

    async def app(*_: Any) -> None:
        await ask()

    agent = Counting()
    check(await get(FuseboardMiddleware(app, agent, lambda _: "acme")), decision)
    assert agent.visit.statuses == []


async def test_asgi_leaves_a_vendor_that_is_down_to_the_application():
    app_error = clients(None)["anthropic"]

    async def app(*_: Any) -> None:
        await app_error()

    agent = Counting()
    assert (await get(FuseboardMiddleware(app, agent, lambda _: "acme"))).status_code == 500
    assert agent.visit.statuses == [500]


async def test_asgi_changes_no_answer_that_has_begun():
    ask = clients(OPEN)["anthropic"]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await ask()

    middleware = FuseboardMiddleware(app, Counting(), lambda _: "acme")
    with pytest.raises(anthropic.APIConnectionError):
        async with httpx.AsyncClient(transport=httpx.ASGITransport(middleware)) as client:
            await client.get("http://shop/")


@pytest.mark.parametrize("decision", [OPEN, SPENT, None], ids=["503", "429", "down"])
def test_wsgi_answers_a_refusal_inside_the_error_of_a_client(decision: Decision | None):
    http = httpx2.Client(transport=httpx2.MockTransport(refusing(decision)))
    client = anthropic.Anthropic(api_key="made-up", base_url="http://vendor", http_client=http, max_retries=0)

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        client.models.list()
        return []

    agent: Any = Blocking()
    middleware = wsgi.FuseboardMiddleware(app, agent, lambda _: "acme")
    transport = httpx.WSGITransport(middleware)
    with httpx.Client(transport=transport, base_url="http://shop") as caller:
        if decision is not None:
            check(caller.get("/"), decision)
            assert agent.visit.statuses == []
            return
        with pytest.raises(anthropic.APIConnectionError):
            caller.get("/")
    assert agent.visit.statuses == [500]


def shop(agent: Any, decision: Decision | None) -> FastAPI:
    app = FastAPI()
    ask = clients(decision)["anthropic"]
    limit = Depends(limited(agent, tenant=lambda: "acme"))

    @app.get("/", dependencies=[limit])
    async def models() -> None:
        await ask()

    @app.get("/chosen", dependencies=[limit])
    async def chosen() -> None:
        try:
            await ask()
        except anthropic.APIConnectionError as error:
            raise HTTPException(424) from error

    return app


async def test_fastapi_answers_a_refusal_inside_the_error_of_a_client():
    agent = Counting()
    app = shop(agent, OPEN)
    assert (await get(app)).status_code == 500
    app = shop(agent, OPEN)
    app.add_exception_handler(anthropic.APIConnectionError, answer_refused)
    check(await get(app), OPEN)
    assert agent.visit.statuses == []
    # The application has chosen an answer.
    assert (await get(app, "/chosen")).status_code == 424
    assert agent.visit.statuses == [424]

    app = shop(agent, OPEN)
    app.add_middleware(FuseboardMiddleware, agent=agent, tenant=lambda scope: "acme")
    check(await get(app), OPEN)


async def test_fastapi_leaves_a_vendor_that_is_down_to_the_application():
    agent = Counting()
    app = shop(agent, None)
    app.add_exception_handler(anthropic.APIConnectionError, answer_refused)
    assert (await get(app)).status_code == 500
    assert agent.visit.statuses == [500]
