"""``Idempotency-Key`` in Django: real requests through Django's own handlers, sync and async."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.test import AsyncClient, Client
from django.urls import path

from fuseboard import AgentSettings, blocking
from fuseboard.contract import keys
from fuseboard.integrations.django_idempotency import IdempotencyMiddleware
from tests.waiting import eventually

#: Numbers of the runs, by path.
runs: dict[str, list[int]] = {}


def ran(request: HttpRequest) -> int:
    run = request.idempotency  # type: ignore[attr-defined]
    runs.setdefault(request.path, []).append(run.fence if run is not None else 0)
    return len(runs[request.path])


def create(request: HttpRequest) -> HttpResponse:
    response = HttpResponse(f"{request.POST['book']} {ran(request)}", status=201)
    response.set_cookie("session", "1")
    response.headers["Location"] = "/orders/1"
    return response


async def async_create(request: HttpRequest) -> HttpResponse:
    return HttpResponse(f"{request.POST['book']} {ran(request)}", status=201)


def fails_once(request: HttpRequest) -> HttpResponse:
    if ran(request) == 1:
        raise LookupError
    return HttpResponse("done")


def stream(request: HttpRequest) -> StreamingHttpResponse:
    ran(request)
    return StreamingHttpResponse(iter([b"a", b"b"]))


async def async_stream(request: HttpRequest) -> StreamingHttpResponse:
    ran(request)

    async def parts() -> AsyncIterator[bytes]:
        yield b"a"
        yield b"b"

    return StreamingHttpResponse(parts())


urlpatterns = [
    path("orders", create),
    path("async-orders", async_create),
    path("fails-once", fails_once),
    path("stream", stream),
    path("async-stream", async_stream),
]


def handler500(request: HttpRequest) -> HttpResponse:
    """The project's page needs URLs that this module lacks."""
    return HttpResponse(status=500)


def caller_of(request: HttpRequest) -> str | None:
    return request.headers.get("X-Caller")


@pytest.fixture
def configured(limits: redis.Redis, redis_url: str, settings: Any) -> Iterator[blocking.Agent]:
    runs.clear()
    ours = blocking.Agent(settings=AgentSettings(redis_url=redis_url, server="web-1"))
    settings.ROOT_URLCONF = __name__
    settings.MIDDLEWARE = ["fuseboard.integrations.django_idempotency.IdempotencyMiddleware"]
    options = {"CALLER": f"{__name__}.caller_of", "LEASE_S": 2}
    settings.FUSEBOARD = {"AGENT": ours, "IDEMPOTENCY": options}
    with ours:
        yield ours


@pytest.fixture(params=[Client, AsyncClient])
def client(request: pytest.FixtureRequest) -> Client | AsyncClient:
    made: Client | AsyncClient = request.param(raise_request_exception=False)
    return made


async def post(
    client: Client | AsyncClient, address: str, book: str = "Emma", key: str = "order-1", caller: str = "acme"
) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    headers |= {"X-Caller": caller} if caller else {}
    if isinstance(client, AsyncClient):
        return await client.post(address, {"book": book}, headers=headers)
    return await asyncio.to_thread(lambda: client.post(address, {"book": book}, headers=headers))


@pytest.mark.parametrize("address", ["/orders", "/async-orders"])
async def test_a_repeated_request_gets_the_first_answer(
    configured: blocking.Agent, client: Client | AsyncClient, address: str
):
    first, second = await post(client, address), await post(client, address)
    assert (first.status_code, first.content) == (second.status_code, second.content) == (201, b"Emma 1")
    assert second.headers["Idempotency-Replayed"] == "true"
    assert "Set-Cookie" not in second.headers
    assert not second.cookies
    assert (await post(client, address, book="Persuasion")).status_code == 422
    assert (await post(client, address, caller="globex")).content == b"Emma 2"
    assert 0 < runs[address][0] < runs[address][1]


async def test_requests_that_need_no_protection_pass(
    configured: blocking.Agent, client: Client | AsyncClient
):
    await post(client, "/orders", key="")
    await post(client, "/orders", caller="")
    assert runs["/orders"] == [0, 0]
    assert (await post(client, "/orders", key="a, b")).status_code == 400


async def test_a_failed_request_runs_again(configured: blocking.Agent, client: Client | AsyncClient):
    assert (await post(client, "/fails-once")).status_code == 500
    assert (await post(client, "/fails-once")).content == b"done"
    assert (await post(client, "/fails-once")).headers["Idempotency-Replayed"] == "true"
    assert len(runs["/fails-once"]) == 2


@pytest.mark.parametrize("address", ["/stream", "/async-stream"])
@pytest.mark.filterwarnings("ignore:StreamingHttpResponse must consume")
async def test_a_stream_is_done_when_all_of_it_was_sent(
    configured: blocking.Agent, client: Client | AsyncClient, address: str
):
    first = await post(client, address)
    again = await post(client, address)
    assert again.json()["type"] == "urn:fuseboard:problem:idempotency-in-progress"
    parts = [part async for part in first] if first.is_async else list(first)
    assert b"".join(parts) == b"ab"

    async def kind() -> str:
        return str((await post(client, address)).json()["type"])

    await eventually(kind, accept=lambda found: found == "urn:fuseboard:problem:idempotency-done")
    assert len(runs[address]) == 1


async def test_a_stream_that_breaks_stays_running(
    configured: blocking.Agent, client: Client | AsyncClient, limits: redis.Redis
):
    response = await post(client, "/stream")
    await asyncio.to_thread(response.close)
    record = keys.idempotency("production", "acme", "POST", "/stream", "order-1")
    assert limits.hget(record, "state") == b"running"
    # It is not renewed any more, so the request can run again.
    await eventually(lambda: post(client, "/stream"), accept=lambda answer: answer.status_code == 200)


async def test_a_long_body_is_413(configured: blocking.Agent, client: Client | AsyncClient):
    assert (await post(client, "/orders", book="x" * 1_048_577)).status_code == 413
    assert runs == {}


def test_wrong_settings_raise_at_the_start(configured: blocking.Agent, settings: Any):
    for wrong, hint in (
        ({}, "CALLER"),
        ({"CALLER": caller_of, "KEEP": 1, "KEPT_S": 5}, "kept_s"),
        ({"CALLER": caller_of, "KEEP_S": 1}, "keep_s must be 60"),
    ):
        settings.FUSEBOARD = {"AGENT": configured, "IDEMPOTENCY": wrong}
        with pytest.raises(ImproperlyConfigured, match=hint):
            IdempotencyMiddleware(create)
