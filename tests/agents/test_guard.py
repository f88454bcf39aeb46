"""``fuseboard.guard`` guards clients as their documentation makes them. They keep their settings."""

import asyncio
import pickle
import ssl
from collections.abc import Iterator
from typing import Any

import aiohttp
import anthropic
import httpx
import httpx2
import openai
import pytest
import requests

import fuseboard
from fuseboard import Agent, Misconfigured, Refused, blocking
from fuseboard.contract.words import Reason
from fuseboard.integrations.aiohttp import CallRefused, GuardedMiddleware
from fuseboard.settings import AgentSettings
from fuseboard.testing import FakeAgent
from tests.agents.vendors import Vendor, settings, vendor
from tests.waiting import wait_until

__all__ = ["settings", "vendor"]

LIBRARIES = [httpx, httpx2]


@pytest.fixture
def agent(settings: AgentSettings) -> Iterator[blocking.Agent]:
    with blocking.Agent(settings=settings) as agent:
        yield agent


def ended(agent: Agent | blocking.Agent, calls: int) -> None:
    """Wait until so many calls to the dependency have ended: a blocking agent counts on its own thread."""

    def counted() -> float:
        lines = agent.metrics_text().splitlines()
        return sum(float(line.split()[-1]) for line in lines if line.startswith("fuseboard_calls_total{"))

    wait_until(counted, f"{calls} calls", accept=lambda count: count == calls)


# What a client keeps


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_keeps_its_pool_tls_http2_and_timeouts(library: Any, agent: blocking.Agent):
    context = ssl.create_default_context()
    client = library.Client(
        limits=library.Limits(max_connections=7, keepalive_expiry=3), verify=context, timeout=1.5
    )
    inner = client._transport
    assert fuseboard.guard(client, agent, "api") is client
    pool = client._transport._transport._pool
    assert client._transport._transport is inner
    assert (pool._max_connections, pool._keepalive_expiry, pool._ssl_context) == (7, 3, context)
    assert client.timeout == library.Timeout(1.5)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_client_keeps_the_proxy_of_the_environment(
    library: Any, agent: blocking.Agent, vendor: Vendor, monkeypatch: pytest.MonkeyPatch
):
    # The vendor answers every request, also one for another host: it is the proxy here.
    monkeypatch.setenv("HTTP_PROXY", vendor.url)
    monkeypatch.setenv("NO_PROXY", "localhost")
    with fuseboard.guard(library.Client(), agent, "api") as client:
        assert client.get("http://payments.invalid/charge").text == "fine"
        with pytest.raises(library.ConnectError):
            client.get("http://localhost:1/")
    assert [method for method, _ in vendor.seen] == ["GET"]
    ended(agent, 2)


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_transport_that_is_mounted_twice_is_opened_and_closed_once(library: Any, agent: blocking.Agent):
    class Counting(library.BaseTransport):  # type: ignore[misc, name-defined]
        closed = 0

        def handle_request(self, request: Any) -> Any:
            return library.Response(200, text="own")

        def close(self) -> None:
            Counting.closed += 1

    own = Counting()
    client = library.Client(mounts={"http://a.invalid": own, "http://b.invalid": own})
    fuseboard.guard(client, agent, "api")
    assert {client.get(f"http://{host}.invalid/").text for host in "ab"} == {"own"}
    assert len({id(one) for one in client._mounts.values()}) == 1
    ended(agent, 2)


def test_a_session_of_requests_keeps_its_adapters_and_their_order(agent: blocking.Agent, vendor: Vendor):
    session = requests.Session()
    adapter = requests.adapters.HTTPAdapter(pool_maxsize=3)
    session.mount(vendor.url, adapter)
    order = list(session.adapters)
    assert fuseboard.guard(session, agent, "api") is session
    assert list(session.adapters) == order
    assert session.get(vendor.url).text == "fine"
    ended(agent, 1)


# What a client does


@pytest.mark.parametrize("library", LIBRARIES)
async def test_an_asynchronous_client_is_guarded(library: Any, settings: AgentSettings, vendor: Vendor):
    async with Agent(settings=settings) as agent:
        async with fuseboard.guard(library.AsyncClient(), agent, "api") as client:
            assert (await client.get(vendor.url)).text == "fine"
        ended(agent, 1)


@pytest.mark.parametrize("make", [openai.OpenAI, anthropic.Anthropic])
def test_a_client_of_a_model_vendor_is_guarded_as_it_is_made(
    make: Any, agent: blocking.Agent, vendor: Vendor
):
    client = make(api_key="made-up", base_url=vendor.url, timeout=7)
    assert fuseboard.guard(client, agent, "api") is client
    assert (client.max_retries, client.timeout) == (0, 7)
    vendor.fails(400, body={"error": {"message": "no"}})
    with pytest.raises(Exception, match="no"):
        client.models.list()
    ended(agent, 1)
    # A client that is derived later has the same connections.
    vendor.fails(400, body={"error": {"message": "no"}})
    with pytest.raises(Exception, match="no"):
        client.with_options(timeout=3).models.list()
    ended(agent, 2)


@pytest.mark.parametrize(
    ("package", "make"), [(openai, openai.AsyncOpenAI), (anthropic, anthropic.AsyncAnthropic)]
)
async def test_a_refusal_is_the_error_of_the_client_with_its_reason_and_comes_at_once(
    package: Any, make: Any, vendor: Vendor
):
    agent = FakeAgent()
    agent.open("api")
    client = fuseboard.guard(make(api_key="made-up", base_url=vendor.url), agent, "api")
    with pytest.raises(package.APIConnectionError, match="breaker_open") as caught:
        await client.models.list()
    assert isinstance(caught.value, Refused)
    assert caught.value.decision.reason is Reason.BREAKER_OPEN
    assert len(agent.refusals) == 1
    assert vendor.seen == []
    again = pickle.loads(pickle.dumps(caught.value))  # noqa: S301 - made here
    assert isinstance(again, package.APIConnectionError)
    assert again.decision.reason is Reason.BREAKER_OPEN


@pytest.mark.parametrize(("own", "retries"), [({}, True), ({"max_retries": 0}, False)])
def test_retries_of_a_model_client_become_those_of_the_dependency(
    own: dict[str, int], retries: bool, agent: blocking.Agent, vendor: Vendor
):
    client = openai.OpenAI(api_key="made-up", base_url=vendor.url, **own)
    fuseboard.guard(client, agent, "api")
    transport: Any = client._client._transport
    assert transport._retry is retries
    assert client.max_retries == 0
    # What the caller says comes first.
    other = fuseboard.guard(openai.OpenAI(api_key="made-up"), agent, "api", retry=False)
    assert not other._client._transport._retry  # type: ignore[attr-defined]


# What is refused


def test_a_client_is_guarded_once(agent: blocking.Agent):
    for client in (httpx.Client(), requests.Session(), openai.OpenAI(api_key="made-up")):
        fuseboard.guard(client, agent, "api")
        with pytest.raises(Misconfigured, match="guarded already"):
            fuseboard.guard(client, agent, "api")


def test_the_agent_fits_the_client(agent: blocking.Agent, settings: AgentSettings):
    with pytest.raises(Misconfigured, match=r"fuseboard\.from_env\(\)"):
        fuseboard.guard(httpx.AsyncClient(), agent, "api")
    for client in (httpx.Client(), requests.Session(), anthropic.Anthropic(api_key="made-up")):
        with pytest.raises(Misconfigured, match=r"fuseboard\.blocking\.from_env\(\)"):
            fuseboard.guard(client, Agent(settings=settings), "api")


def test_an_unknown_client_is_refused_with_what_to_do(agent: blocking.Agent):
    with pytest.raises(Misconfigured, match=r"not object: use 'async with agent\.call\(name\)'"):
        fuseboard.guard(object(), agent, "api")


async def test_a_session_of_aiohttp_is_refused_with_what_to_do():
    async with aiohttp.ClientSession() as session:
        with pytest.raises(Misconfigured, match=r"middlewares=\(fuseboard\.integrations\.aiohttp"):
            fuseboard.guard(session, FakeAgent(), "api")  # type: ignore[arg-type]


@pytest.mark.parametrize("attribute", ["_transport", "_mounts"])
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_version_without_an_attribute_is_refused_and_left_as_it_is(
    library: Any, attribute: str, agent: blocking.Agent
):
    client = library.Client()
    kept = dict(vars(client))
    delattr(client, attribute)
    with pytest.raises(Misconfigured, match=f"has no Client.{attribute}"):
        fuseboard.guard(client, agent, "api")
    assert vars(client) == {name: value for name, value in kept.items() if name != attribute}


@pytest.mark.parametrize("options", [{"tier": "urgent"}, {"wait_s": -1}, {"retries": True}])
def test_wrong_options_are_named_before_anything_changes(options: dict[str, Any], agent: blocking.Agent):
    client = httpx.Client()
    inner = client._transport
    with pytest.raises((Misconfigured, TypeError)):
        fuseboard.guard(client, agent, "api", **options)
    with pytest.raises(Misconfigured):
        fuseboard.guard(client, agent, "not a name!")
    assert client._transport is inner


# aiohttp


async def test_a_refused_request_of_aiohttp_is_not_sent(vendor: Vendor):
    agent: Any = FakeAgent()
    agent.open("api")
    async with aiohttp.ClientSession(middlewares=(GuardedMiddleware(agent, dependency="api"),)) as session:
        with pytest.raises(aiohttp.ClientConnectionError, match="breaker_open") as caught:
            await session.get(vendor.url)
    assert isinstance(caught.value, CallRefused)
    assert vendor.seen == []


async def test_outcomes_of_aiohttp(vendor: Vendor):
    agent: Any = FakeAgent()
    vendor.fails(503)
    vendor.fails(404)
    vendor.script.append((0, {}, b""))
    async with aiohttp.ClientSession(middlewares=(GuardedMiddleware(agent, dependency="api"),)) as session:
        for expected in (503, 404):
            async with session.get(vendor.url) as answer:
                assert answer.status == expected
        with pytest.raises(aiohttp.ServerDisconnectedError):
            await session.post(vendor.url, data=b"order")
        async with session.get(vendor.url) as answer:
            assert answer.status == 200
    assert [str(outcome) for _, outcome in agent.outcomes] == ["failure", "neutral", "failure", "ok"]
    assert agent.held("api") == 0


async def test_a_cancelled_request_of_aiohttp_is_neutral():
    agent: Any = FakeAgent()
    arrived = asyncio.Event()

    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        arrived.set()
        await reader.read()
        writer.close()

    async with await asyncio.start_server(never, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        guarded = GuardedMiddleware(agent, dependency="api")
        async with aiohttp.ClientSession(middlewares=(guarded,)) as session:
            task = asyncio.create_task(session.get(f"http://127.0.0.1:{port}/"))
            await arrived.wait()
            task.cancel()
            await asyncio.wait([task])
    assert [str(outcome) for _, outcome in agent.outcomes] == ["neutral"]
    assert agent.held("api") == 0
