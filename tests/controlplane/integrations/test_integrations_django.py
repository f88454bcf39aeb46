"""The agent's Django middleware: real requests through Django's own handlers, limits in a real Redis."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import request_finished
from django.http import Http404, HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client, RequestFactory
from django.urls import path
from django.utils import translation

from fuseboard import AgentSettings, Misconfigured, Outcome, Reason, Refused, blocking
from fuseboard.contract.policy import Dependency, Limit, TenantRecord, Tier
from fuseboard.contract.words import Algorithm, Dimension
from fuseboard.decision import Decision
from fuseboard.integrations import django as integration
from fuseboard.integrations.django import (
    FuseboardMiddleware,
    agent,
    metrics,
    readiness,
    resilience,
    subject_of,
)
from tests.agents.pressed import NONE, SOME, TENANTS, TIERED, pod_of, press
from tests.agents.published import publish
from tests.agents.servers import BREAKER, POLICY
from tests.waiting import eventually, wait_until

REQUESTS = Limit(name="requests", limit=5, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
OPEN = Limit(name="open", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
ORDERS = Limit(
    name="orders",
    limit=1,
    window_ms=60_000,
    per=(Dimension.ENDPOINT,),
    endpoints=("GET /orders/<int:pk>",),
)
PER_IP = Limit(name="per-ip", limit=2, window_ms=60_000, burst=2, per=(Dimension.IP,))
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(
        Tier(name="free", quotas=(REQUESTS,)),
        Tier(name="slots", quotas=(OPEN,)),
        Tier(name="routes", quotas=(ORDERS,)),
    ),
    subject_limits=(PER_IP,),
    dependencies=(Dependency(name="payments", breaker=BREAKER),),
)


def view(request: HttpRequest, pk: int = 0) -> HttpResponse:
    return HttpResponse("hello")


async def async_view(request: HttpRequest) -> HttpResponse:
    return HttpResponse("hello")


def calling(request: HttpRequest) -> HttpResponse:
    with agent().call("payments"):
        return HttpResponse("called")


async def async_calling(request: HttpRequest) -> HttpResponse:
    async with agent().acall("payments"):
        return HttpResponse("called")


async def async_admitting(request: HttpRequest) -> HttpResponse:
    permit = await agent().aadmit_call("payments")
    agent().report(permit, Outcome.OK)
    return HttpResponse("called")


async def blocking_the_loop(request: HttpRequest) -> HttpResponse:
    with pytest.raises(Misconfigured, match="acall"), agent().call("payments"):
        pass
    return HttpResponse("refused with a hint")


def broken(request: HttpRequest) -> HttpResponse:
    raise LookupError


def refused(request: HttpRequest) -> HttpResponse:
    raise Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN))


def wrapping(request: HttpRequest) -> HttpResponse:
    try:
        raise Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN, retry_after_ms=4_000))
    except Refused as error:
        raise ConnectionError("what a vendor's client raises") from error


async def grouping(request: HttpRequest) -> HttpResponse:
    """A ``TaskGroup`` raises a group, inside which a client wraps the refusal."""
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(asyncio.to_thread(wrapping, request))
        tasks.create_task(asyncio.sleep(60))
    raise AssertionError("the group was raised")


def defective(request: HttpRequest) -> HttpResponse:
    raise ExceptionGroup("tasks", [Refused(Decision(allowed=False, reason=Reason.SHED)), LookupError()])


def choosing(request: HttpRequest) -> HttpResponse:
    try:
        return wrapping(request)
    except ConnectionError as error:
        raise Http404 from error


def streaming(request: HttpRequest) -> StreamingHttpResponse:
    return StreamingHttpResponse(iter([b"a", b"b"]))


async def async_streaming(request: HttpRequest) -> StreamingHttpResponse:
    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    return StreamingHttpResponse(parts())


def handler404(request: HttpRequest, exception: Exception) -> HttpResponse:
    """The project's page needs URLs that this module lacks."""
    return HttpResponse(status=404)


urlpatterns = [
    path("", view),
    path("async", async_view),
    path("orders/<int:pk>", view),
    path("calling", calling),
    path("async-calling", async_calling),
    path("async-admitting", async_admitting),
    path("blocking-the-loop", blocking_the_loop),
    path("broken", broken),
    path("streaming", streaming),
    path("async-streaming", async_streaming),
    path("refused", refused),
    path("wrapping", wrapping),
    path("grouping", grouping),
    path("defective", defective),
    path("choosing", choosing),
    path("readyz", readiness()),
    path("resilience", resilience()),
    path("metrics", metrics()),
]


def tenant_of(request: HttpRequest) -> str | None:
    return request.headers.get("X-Tenant")


@pytest.fixture
def guarded(limits: redis.Redis, redis_url: str, tmp_path: Path, settings: Any) -> Iterator[blocking.Agent]:
    publish(
        limits,
        RULES,
        revision=1,
        tenants={tier: TenantRecord(tier=tier) for tier in ("slots", "routes")}
        | {"late-payer": TenantRecord(tier="free", suspended=True)},
    )
    ours = blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="web-1", state_dir=tmp_path))
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["fuseboard.integrations.django.FuseboardMiddleware"]
    settings.FUSEBOARD = {"TENANT": f"{__name__}.tenant_of", "SUBJECT": subject_of, "AGENT": ours}
    with ours:
        yield ours


async def get(client: Client | AsyncClient, address: str, tenant: str = "acme") -> Any:
    headers = {"X-Tenant": tenant} if tenant else {}
    if isinstance(client, AsyncClient):
        return await client.get(address, headers=headers)
    return await asyncio.to_thread(lambda: client.get(address, headers=headers))


@pytest.fixture(params=[Client, AsyncClient])
def client(request: pytest.FixtureRequest) -> Client | AsyncClient:
    made: Client | AsyncClient = request.param(raise_request_exception=False)
    return made


async def test_a_request_within_its_quota_gets_the_headers_and_one_beyond_a_429(
    guarded: blocking.Agent, client: Client | AsyncClient
):
    response = await get(client, "/")
    assert (response.status_code, response.content) == (200, b"hello")
    assert response.headers["RateLimit-Policy"] == '"requests";q=5;w=60'
    assert response.headers["RateLimit"] == '"requests";r=4'
    assert [(await get(client, "/async")).status_code for _ in range(5)] == [200] * 4 + [429]
    refused = await get(client, "/")
    assert refused.headers["Content-Type"] == "application/problem+json"
    assert refused.json()["violated-policies"] == ["requests"]
    assert int(refused.headers["Retry-After"]) >= 1
    assert (await get(client, "/", "late-payer")).status_code == 403


@pytest.fixture
def tiered(guarded: blocking.Agent, limits: redis.Redis) -> blocking.Agent:
    publish(limits, TIERED, revision=2, tenants=TENANTS)
    wait_until(lambda: guarded.configuration.snapshot.head.revision == 2)
    for tenant in TENANTS:
        guarded.admit_request(tenant)
    press(guarded, NONE)
    return guarded


async def test_requests_are_shed_before_any_limit_and_counted_until_they_end(
    tiered: blocking.Agent, client: Client | AsyncClient
):
    pod = pod_of(tiered)
    for address, status in (("/", 200), ("/async", 200), ("/broken", 500)):
        assert (await get(client, address, "free")).status_code == status
    assert (pod.requests.in_flight, pod.requests.errors) == (0, 1)
    assert pod.requests.latency.count(pod._clock()) == 3
    await asyncio.to_thread(press, tiered, SOME)
    shed = await get(client, "/", "free")
    assert (shed.status_code, shed.json()["reason"]) == (503, "shed")
    assert int(shed.headers["Retry-After"]) >= 1
    assert [(await get(client, "/", tenant)).status_code for tenant in ("pro", "premium")] == [200, 200]
    assert pod.requests.in_flight == 0


async def test_a_stream_is_in_flight_until_it_ends(tiered: blocking.Agent, client: Client | AsyncClient):
    pod = pod_of(tiered)
    response = await get(client, "/async-streaming" if isinstance(client, AsyncClient) else "/streaming")
    if isinstance(client, AsyncClient):
        assert b"".join([part async for part in response.streaming_content]) == b"ab"
    else:
        assert b"".join(response.streaming_content) == b"ab"
    response.close()
    assert pod.requests.in_flight == 0
    assert pod.requests.latency.count(pod._clock()) == 1


async def test_a_refused_call_is_no_failure_of_the_pod(tiered: blocking.Agent, client: Client | AsyncClient):
    assert (await get(client, "/refused", "free")).status_code == 503
    assert pod_of(tiered).requests.errors == 0


async def test_a_probe_and_the_protection_of_the_pod(tiered: blocking.Agent, client: Client | AsyncClient):
    probe = await get(client, "/readyz", "")
    assert (probe.status_code, probe.json()) == (200, {"ready": True, "because": ""})
    assert "pressure" in (await get(client, "/resilience", "")).json()
    scraped = await get(client, "/metrics", "")
    assert scraped["content-type"].startswith("text/plain; version=0.0.4")
    assert "# TYPE fuseboard_requests_total counter" in scraped.content.decode()


async def test_the_route_is_the_endpoint_not_the_path(guarded: blocking.Agent, client: Client | AsyncClient):
    statuses = [(await get(client, f"/orders/{pk}", "routes")).status_code for pk in (1, 2)]
    assert statuses == [200, 429]
    assert (await get(client, "/", "routes")).status_code == 200


async def test_callers_without_a_tenant_are_decided_by_their_address(
    guarded: blocking.Agent, client: Client | AsyncClient
):
    assert [(await get(client, "/", "")).status_code for _ in range(3)] == [200, 200, 429]


async def test_without_tenant_and_subject_nothing_decides(guarded: blocking.Agent, settings: Any):
    settings.FUSEBOARD = {"TENANT": lambda request: None, "AGENT": guarded}
    assert "RateLimit" not in (await get(Client(), "/", "")).headers


@pytest.mark.parametrize("address", ["/", "/async", "/broken", "/nowhere"])
async def test_slots_of_a_request_are_free_when_it_has_ended(
    guarded: blocking.Agent, client: Client | AsyncClient, address: str
):
    assert (await get(client, address, "slots")).status_code in (200, 404, 500)
    assert (await guarded.aadmit_request("slots", wait_s=5)).allowed


async def test_a_streamed_answer_holds_it_until_its_end(
    guarded: blocking.Agent, client: Client | AsyncClient
):
    address = "/async-streaming" if isinstance(client, AsyncClient) else "/streaming"
    response = await get(client, address, "slots")
    assert response.streaming
    assert not (await guarded.aadmit_request("slots")).allowed
    await asyncio.to_thread(response.close)
    assert (await guarded.aadmit_request("slots", wait_s=5)).allowed


async def test_a_guarded_call_that_is_refused_and_escapes_is_a_503(
    guarded: blocking.Agent, client: Client | AsyncClient
):
    assert (await get(client, "/calling")).content == b"called"
    for _ in range(BREAKER.consecutive_failures):
        with pytest.raises(TimeoutError):
            await asyncio.to_thread(fail, guarded)
    await asyncio.to_thread(until_refused, guarded)
    response = await get(client, "/calling")
    assert (response.status_code, response.json()["reason"]) == (503, "breaker_open")


async def test_a_refusal_inside_another_error_is_a_503_unless_the_view_chose_an_answer(
    guarded: blocking.Agent, client: Client | AsyncClient
):
    """It was a 500: a vendor's client wraps what its transport raises."""
    response = await get(client, "/wrapping")
    assert (response.status_code, response.json()["reason"]) == (503, "breaker_open")
    assert int(response.headers["Retry-After"]) >= 4
    assert (await get(client, "/choosing")).status_code == 404


async def test_a_refusal_inside_a_group_is_a_503_and_hides_no_defect_beside_it(
    guarded: blocking.Agent, client: Client | AsyncClient
):
    response = await get(client, "/grouping")
    assert (response.status_code, response.json()["reason"]) == (503, "breaker_open")
    client.raise_request_exception = False
    assert (await get(client, "/defective")).status_code == 500


def fail(guarded: blocking.Agent) -> None:
    with guarded.call("payments"):
        raise TimeoutError


def until_refused(guarded: blocking.Agent) -> None:
    def is_refused() -> bool:
        try:
            guarded.give_back(guarded.admit_call("payments"))
        except Refused:
            return True
        return False

    wait_until(is_refused, "an open breaker")


async def test_an_impossible_cost_is_logged_and_the_request_passes(
    guarded: blocking.Agent, settings: Any, caplog: pytest.LogCaptureFixture
):
    settings.FUSEBOARD = settings.FUSEBOARD | {"COST": lambda request: 0}
    assert (await get(Client(), "/")).status_code == 200
    assert "failed_open" in caplog.text


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "TENANT"),
        ({"TENANT": tenant_of, "TENNANT": tenant_of}, "TENNANT"),
        ({"TENANT": tenant_of, "WAIT_S": -1}, "WAIT_S"),
    ],
)
def test_wrong_settings_fail_at_start(settings: Any, given: dict[str, Any], said: str):
    settings.FUSEBOARD = given
    with pytest.raises(ImproperlyConfigured, match=said):
        FuseboardMiddleware(lambda request: HttpResponse())


def test_without_an_agent_one_is_created_from_the_environment(settings: Any, monkeypatch: pytest.MonkeyPatch):
    settings.FUSEBOARD = {"TENANT": tenant_of}
    for name in ("URL", "TOKEN", "TOKEN_FILE"):
        monkeypatch.delenv(f"FUSEBOARD_{name}", raising=False)
    monkeypatch.setenv("FUSEBOARD_STATE_DIR", "off")
    integration._from_env.cache_clear()
    made = agent()
    assert made is agent()
    assert not made.running
    integration._from_env.cache_clear()


@pytest.mark.parametrize("address", ["/async-calling", "/async-admitting", "/blocking-the-loop"])
async def test_an_asynchronous_view_guards_its_calls(
    guarded: blocking.Agent, client: Client | AsyncClient, address: str
) -> None:
    assert (await get(client, address)).status_code == 200


async def test_a_failed_call_of_an_asynchronous_view_counts(guarded: blocking.Agent) -> None:
    async def fail() -> bool:
        try:
            async with guarded.acall("payments"):
                raise LookupError
        except LookupError:
            return False
        except Refused:
            return True

    for _ in range(BREAKER.consecutive_failures):
        assert not await fail()
    await eventually(fail, "the breaker to open")


ORIGIN = {"HTTP_ORIGIN": "https://shop.example"}
ASKS = {"HTTP_ACCESS_CONTROL_REQUEST_METHOD": "POST"}


class TestPreflights:
    def test_they_cost_nothing_and_have_no_tenant(self, guarded: Any):
        client = Client()
        assert {client.options("/", **ORIGIN, **ASKS).status_code for _ in range(8)} == {200}
        assert client.get("/", headers={"X-Tenant": "acme"}).headers["RateLimit"] == '"requests";r=4'

    @pytest.mark.parametrize("headers", [{}, ORIGIN, ASKS])
    def test_options_alone_is_a_request(self, guarded: Any, headers: dict[str, str]):
        client = Client(headers={"X-Tenant": "acme"})
        assert [client.options("/", **headers).status_code for _ in range(6)] == [200] * 5 + [429]


def test_work_in_close_holds_no_slot(guarded: Any):
    freed: list[bool] = []

    def ended(**what: Any) -> None:
        freed.append(agent().admit_request("slots", wait_s=10).allowed)

    request_finished.connect(ended)
    try:
        response = Client(headers={"X-Tenant": "slots"}).get("/streaming")
        assert not agent().admit_request("slots").allowed
        response.close()
    finally:
        request_finished.disconnect(ended)
    assert freed == [True]


@pytest.mark.parametrize("active", ["en", "de"])
def test_a_route_has_one_name_whatever_language_the_thread_has(settings: Any, monkeypatch: Any, active: str):
    # Django decides once whether it translates.
    monkeypatch.setattr(translation, "_trans", type(translation._trans)())
    settings.USE_I18N, settings.LANGUAGE_CODE = True, "en"
    settings.LANGUAGES = [("en", "English"), ("de", "German")]
    names = {
        "/in/x/7/": "/in/x/<int:pk>/",
        "/in/y/7/": "/in/y/(?P<pk>[0-9]+)/$",
        "/orders/7/": "/orders/<int:pk>/",
        "/de/orders/7/": "/de/orders/<int:pk>/",
        "/nowhere/7": "/nowhere/7",
    }
    with translation.override(active):
        for path_info, name in names.items():
            request = RequestFactory().get(path_info)
            request.urlconf = "tests.controlplane.integrations.languages"
            assert subject_of(request).endpoint == f"GET {name}"
        assert translation.get_language() == active
