"""A call is charged to the tenant of the request that is served, or of a job, also while a body is read."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Annotated, Any
from wsgiref.util import FileWrapper, setup_testing_defaults

import httpx
import pytest
import redis
from django.http import FileResponse, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from fastapi import Depends, FastAPI, Header
from msgspec.structs import replace
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

import fuseboard
from fuseboard import Misconfigured, Reason, Refused
from fuseboard.calling.current_tenant import current_tenant
from fuseboard.contract.policy import Tier
from fuseboard.integrations.asgi import FuseboardMiddleware as AsgiMiddleware
from fuseboard.integrations.django import FuseboardMiddleware as DjangoMiddleware
from fuseboard.integrations.drf import FuseboardThrottle
from fuseboard.integrations.fastapi import limited
from fuseboard.integrations.wsgi import FuseboardMiddleware as WsgiMiddleware
from fuseboard.testing import FakeAgent
from tests.agents.limit_kinds import window
from tests.llm.pods import MONTH_S, RULES, billed, gpt, pod, spent
from tests.llm.vendor import Vendor
from tests.waiting import eventually

ASKED: list[Any] = [{"role": "user", "content": "Who pays for this call?"}]


async def test_a_job_says_whose_call_it_is(limits: redis.Redis, redis_url: str, vendor: Vendor):
    async with pod(limits, redis_url) as agent, gpt(agent, vendor) as client:
        with fuseboard.tenant("acme"):
            await client.chat.completions.create(model="m", messages=ASKED)
        await client.chat.completions.create(model="m", messages=ASKED)
        async with gpt(agent, vendor, tenant="other") as theirs:
            with fuseboard.tenant("acme"):
                await theirs.chat.completions.create(model="m", messages=ASKED)
        one = billed(vendor.bill[0], counts_cached=True)
        every = billed(*vendor.bill, counts_cached=True)
        for tenant in ("acme", "other"):
            found = await eventually(
                lambda tenant=tenant: spent(agent, tenant=tenant),
                accept=lambda found: found["all-tokens"] == one["tokens"],
            )
            assert found["llm-output_tokens"] == one["output_tokens"]
        await eventually(lambda: spent(agent), accept=lambda found: found == every)


async def test_a_function_names_the_tenant_of_each_call(limits: redis.Redis, redis_url: str, vendor: Vendor):
    whose = iter(["acme", None, ""])
    async with (
        pod(limits, redis_url) as agent,
        gpt(agent, vendor, tenant=lambda: next(whose)) as client,
    ):
        for _ in range(2):
            await client.chat.completions.create(model="m", messages=ASKED)
        with fuseboard.tenant("other"):
            await client.chat.completions.create(model="m", messages=ASKED)
        one = billed(vendor.bill[0], counts_cached=True)
        for tenant in ("acme", "other"):
            await eventually(
                lambda tenant=tenant: spent(agent, tenant=tenant),
                accept=lambda found: found["all-tokens"] == one["tokens"],
            )


async def test_a_call_that_a_quota_refuses_is_in_the_counters_of_its_tenant(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    few = window(50, MONTH_S, name="few", measure="tokens")
    rules = replace(RULES, tiers=(Tier(name="free", quotas=(few,)),))
    async with pod(limits, redis_url, rules) as agent, gpt(agent, vendor, tenant="acme") as client:
        for _ in range(2):
            with pytest.raises(Refused, match="few"):
                await client.chat.completions.create(model="m", messages=ASKED * 20, max_tokens=5)
        counted = agent.counters.wire()
        assert [(one.tenant, one.allowed, one.refused) for one in counted.tenants] == [("acme", 0, 2)]
        assert [(one.rule, one.refused) for one in counted.rules] == [("few", 2)]
        assert counted.refused == {Reason.QUOTA: 2}
    assert vendor.requests == 0


async def test_a_call_within_a_request_is_no_request_of_its_own(
    limits: redis.Redis, redis_url: str, vendor: Vendor
):
    async with pod(limits, redis_url) as agent, gpt(agent, vendor) as client:
        with fuseboard.tenant("acme"):
            await client.chat.completions.create(model="m", messages=ASKED)
        assert sum(counted.allowed for counted in agent.counters.wire().tenants) == 0


async def test_tenants_of_tasks_and_threads_do_not_mix():
    found: list[str] = []

    async def work(name: str) -> None:
        with fuseboard.tenant(name):
            await asyncio.sleep(0)
            found.append(current_tenant())
            await asyncio.to_thread(lambda: found.append(current_tenant()))

    await asyncio.gather(work("a"), work("b"))
    thread = threading.Thread(target=lambda: found.append(current_tenant()))
    thread.start()
    thread.join()
    assert sorted(found) == ["", "a", "a", "b", "b"]
    with fuseboard.tenant("a"), fuseboard.tenant(""):
        assert current_tenant() == ""


def test_a_tenant_is_text():
    with pytest.raises(Misconfigured, match="a tenant is text, not NoneType"):
        fuseboard.tenant(None)  # type: ignore[arg-type]


# ASGI


async def test_asgi_serves_each_request_for_its_tenant():
    seen: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(current_tenant())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(2):
            await asyncio.sleep(0)
            seen.append(current_tenant())
        await send({"type": "http.response.body", "body": b"ok"})

    agent: Any = FakeAgent()
    served = AsgiMiddleware(app, agent, tenant=lambda scope: scope["path"].strip("/") or None)

    async def ask(where: str) -> None:
        async def ignore(*_: Any) -> None:
            """Nothing is received or sent."""

        await served({"type": "http", "method": "GET", "path": where, "headers": []}, ignore, ignore)

    await asyncio.gather(ask("/acme"), ask("/other"), ask("/"))
    assert sorted(seen) == ["", "", "", "acme", "acme", "acme", "other", "other", "other"]
    await ask("/acme")
    assert current_tenant() == ""


# FastAPI


async def test_fastapi_serves_a_limited_route_for_its_tenant():
    app, agent = FastAPI(), FakeAgent()

    def whose(x_tenant: Annotated[str | None, Header()] = None) -> str | None:
        return x_tenant

    route = {"dependencies": [Depends(limited(agent, tenant=whose))]}  # type: ignore[arg-type]

    @app.get("/async", **route)  # type: ignore[arg-type]
    async def asynchronous() -> str:
        return current_tenant()

    @app.get("/thread", **route)  # type: ignore[arg-type]
    def in_a_thread() -> str:
        return current_tenant()

    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://app") as client:
        for where in ("/async", "/thread"):
            for tenant in ("acme", "other"):
                assert (await client.get(where, headers={"x-tenant": tenant})).json() == tenant
            assert (await client.get(where)).json() == ""
    assert current_tenant() == ""


# WSGI


class Blocking:
    """Admits every request."""

    def __init__(self) -> None:
        self._agent = FakeAgent()

    def admit_request(self, tenant: str | None, *_: Any, **__: Any) -> Any:
        return self._agent.allow_unasked(tenant=tenant or "")

    async def aadmit_request(self, tenant: str | None, *_: Any, **__: Any) -> Any:
        return self._agent.allow_unasked(tenant=tenant or "")

    def enter_request(self, *_: Any) -> None:
        """Nothing is configured."""

    def finish(self, *_: Any) -> None:
        """Nothing is held."""


def served_by_wsgi(app: Any, tenant: str | None) -> Any:
    environ: dict[str, Any] = {"wsgi.file_wrapper": FileWrapper}
    setup_testing_defaults(environ)
    agent: Any = Blocking()
    return WsgiMiddleware(app, agent, tenant=lambda _: tenant)(environ, lambda *_: lambda _: None)


@pytest.mark.parametrize("tenant", ["acme", None])
def test_wsgi_makes_a_body_for_the_tenant_of_its_request(tenant: str | None):
    closed: list[str] = []

    class Body:
        """As Flask's: the answer has begun, and its parts are made later."""

        def __init__(self) -> None:
            self.left = 2

        def __iter__(self) -> Iterator[bytes]:
            return self

        def __next__(self) -> bytes:
            if not self.left:
                raise StopIteration
            self.left -= 1
            return current_tenant().encode()

        def close(self) -> None:
            closed.append("once")

    def app(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return Body()

    body = served_by_wsgi(app, tenant)
    parts = []
    for part in body:
        assert current_tenant() == ""
        parts.append(part)
    body.close()
    assert parts == [(tenant or "").encode()] * 2
    assert closed == ["once"]


def test_wsgi_leaves_lists_and_files_as_they_are(tmp_path: Any):
    file = tmp_path / "report"
    file.write_bytes(b"ok")

    def lists(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return [b"ok"]

    def files(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        return FileWrapper(file.open("rb"))

    assert served_by_wsgi(lists, "acme") == [b"ok"]
    body = served_by_wsgi(files, "acme")
    assert isinstance(body, FileWrapper)
    body.close()


# Django


def whole(request: HttpRequest) -> HttpResponse:
    return HttpResponse(current_tenant())


async def awhole(request: HttpRequest) -> HttpResponse:
    return HttpResponse(current_tenant())


def streamed(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(current_tenant() for _ in range(2))


async def astreamed(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[str]:
        for _ in range(2):
            await asyncio.sleep(0)
            yield current_tenant()

    return StreamingHttpResponse(parts())


def file(request: HttpRequest) -> FileResponse:
    return FileResponse(open(__file__, "rb"))


class Throttled(APIView):
    authentication_classes = ()
    permission_classes = ()
    throttle_classes = (FuseboardThrottle,)

    def get(self, request: Request) -> Response:
        return Response(current_tenant())


urlpatterns = [
    *[path(view.__name__, view) for view in (whole, awhole, streamed, astreamed, file)],
    path("throttled", Throttled.as_view()),
]


@pytest.fixture
def django_app(settings: Any) -> None:
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["fuseboard.integrations.django.FuseboardMiddleware"]
    settings.FUSEBOARD = {
        "TENANT": lambda request: request.headers.get("x-tenant"),
        "AGENT": Blocking(),
    }


@pytest.mark.usefixtures("django_app")
@pytest.mark.parametrize("view", ["whole", "streamed"])
def test_django_serves_a_request_for_its_tenant(view: str):
    for tenant in ("acme", "other"):
        answer = Client().get(f"/{view}", headers={"x-tenant": tenant})
        text = b"".join(answer) if answer.streaming else answer.content
        assert text.decode() == tenant * (2 if answer.streaming else 1)
    assert Client().get("/whole").content == b""
    assert current_tenant() == ""


@pytest.mark.usefixtures("django_app")
@pytest.mark.parametrize("view", ["awhole", "astreamed"])
async def test_asynchronous_views_of_django_too(view: str):
    answer: Any = await AsyncClient().get(f"/{view}", headers={"x-tenant": "acme"})
    text = b"".join([part async for part in answer]) if answer.streaming else answer.content
    assert text.decode() == "acme" * (2 if answer.streaming else 1)


@pytest.mark.usefixtures("django_app")
def test_django_sends_a_file_as_it_did():
    answer: Any = DjangoMiddleware(file)(RequestFactory().get("/file", headers={"x-tenant": "acme"}))
    assert answer.file_to_stream is not None
    assert b"as_it_did" in b"".join(answer)
    answer.close()


@pytest.mark.usefixtures("django_app")
@pytest.mark.parametrize("decided_before", [False, True])
def test_a_throttle_of_rest_framework_serves_a_request_for_its_tenant(settings: Any, decided_before: bool):
    if not decided_before:
        settings.MIDDLEWARE = []
    for tenant in ("acme", "other"):
        assert Client().get("/throttled", headers={"x-tenant": tenant}).json() == tenant
        assert current_tenant() == ""
    assert Client().get("/throttled").json() == ""
