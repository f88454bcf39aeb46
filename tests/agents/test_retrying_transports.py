"""Transports that retry, with a real server and real clients."""

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests

import fuseboard
from fuseboard import Agent, blocking
from fuseboard.calling.classification import is_repeatable
from fuseboard.contract.policy import Dependency, Policy
from fuseboard.contract.protection import CallProtection, Retry
from fuseboard.contract.words import Jitter
from fuseboard.integrations import httpx as for_httpx
from fuseboard.integrations import httpx2 as for_httpx2
from fuseboard.integrations.requests import GuardedAdapter
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY

RETRY = Retry(base_ms=1, cap_ms=1, jitter=Jitter.NONE, budget_percent=100)
RULES = Policy(
    environment=POLICY.environment,
    default_tier=POLICY.default_tier,
    tiers=POLICY.tiers,
    dependencies=(Dependency(name="api", protection=CallProtection(retry=RETRY)),),
)


class Vendor:
    """``script``: status, headers and body of each answer in turn; then 200."""

    def __init__(self) -> None:
        self.script: list[tuple[int, dict[str, str], bytes]] = []
        #: Method and body of each request.
        self.seen: list[tuple[str, bytes]] = []
        vendor = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                vendor.seen.append((self.command, body))
                status, headers, answer = vendor.script.pop(0) if vendor.script else (200, {}, b"fine")
                if status == 0:
                    self.close_connection = True
                    return
                self.send_response(status)
                for name, text in headers.items():
                    self.send_header(name, text)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            do_GET = do_POST = answer  # noqa: N815 - names of the library

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/"

    def fails(self, status: int, times: int = 1, body: object = "no", **headers: str) -> None:
        text = {name.replace("_", "-"): value for name, value in headers.items()}
        if body != "no":
            text["Content-Type"] = "application/json"
        self.script += [(status, text, json.dumps(body).encode())] * times


@pytest.fixture
def vendor() -> Iterator[Vendor]:
    vendor = Vendor()
    thread = threading.Thread(target=vendor.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield vendor
    vendor.server.shutdown()
    thread.join()
    vendor.server.server_close()


@pytest.fixture
def settings(tmp_path: Path) -> AgentSettings:
    return settings_with(tmp_path, RULES)


def rich(agent: Agent | blocking.Agent) -> None:
    """Many calls have allowed many retries."""
    budget, now = agent.retries.part("api").budget, agent.retries.clock()
    for _ in range(50_000):
        budget.first_call(now)


Send = Callable[..., tuple[int, str]]
ASYNC = {"httpx": (httpx, for_httpx), "httpx2": (httpx2, for_httpx2)}


@pytest.fixture(params=["httpx", "httpx2", "requests", "async httpx", "async httpx2"])
def send(request: pytest.FixtureRequest, settings: AgentSettings, vendor: Vendor) -> Send:
    """Send one request as this library does, and return status and body of the answer."""
    kind = request.param

    def blocking_httpx(library: Any, ours: Any, method: str, options: dict[str, Any], **more: Any) -> Any:
        with blocking.Agent(settings=settings) as agent:
            rich(agent)
            transport = ours.BlockingGuardedTransport(agent, dependency="api", retry=True, **options)
            with library.Client(transport=transport) as client:
                answer = client.request(method, vendor.url, **more)
                return answer.status_code, answer.text

    def of_requests(method: str, options: dict[str, Any], **more: Any) -> Any:
        if "content" in more:
            more["data"] = more.pop("content")
        with blocking.Agent(settings=settings) as agent, requests.Session() as session:
            rich(agent)
            session.mount("http://", GuardedAdapter(agent, dependency="api", retry=True, **options))
            answer = session.request(method, vendor.url, **more)
            return answer.status_code, answer.text

    async def async_httpx(library: Any, ours: Any, method: str, options: dict[str, Any], **more: Any) -> Any:
        async with Agent(settings=settings) as agent:
            rich(agent)
            transport = ours.GuardedTransport(agent, dependency="api", retry=True, **options)
            async with library.AsyncClient(transport=transport) as client:
                answer = await client.request(method, vendor.url, **more)
                return answer.status_code, answer.text

    def send(method: str, options: dict[str, Any] | None = None, **more: Any) -> tuple[int, str]:
        import asyncio

        if kind == "requests":
            return of_requests(method, options or {}, **more)
        name = kind.removeprefix("async ")
        if name == kind:
            return blocking_httpx(*ASYNC[name], method, options or {}, **more)
        return asyncio.run(async_httpx(*ASYNC[name], method, options or {}, **more))

    return send


def test_a_failed_get_is_sent_again(vendor: Vendor, send: Send):
    vendor.fails(503)
    vendor.script.append((0, {}, b""))
    assert send("GET") == (200, "fine")
    assert [method for method, _ in vendor.seen] == ["GET", "GET", "GET"]


def test_the_last_answer_is_returned_whole(vendor: Vendor, send: Send):
    vendor.fails(503, 9, {"why": "down"})
    assert send("GET") == (503, '{"why": "down"}')
    assert len(vendor.seen) == 3


def test_a_post_is_sent_again_only_when_asked(vendor: Vendor, send: Send):
    vendor.fails(503)
    assert send("POST", content=b"order")[0] == 503
    vendor.seen.clear()
    vendor.fails(503)
    assert send("POST", {"idempotent": True}, content=b"order") == (200, "fine")
    assert vendor.seen == [("POST", b"order"), ("POST", b"order")]
    vendor.seen.clear()
    vendor.fails(503)
    assert send("POST", content=b"order", headers={"Idempotency-Key": "7"}) == (200, "fine")
    assert len(vendor.seen) == 2


def test_a_generated_body_is_sent_once(vendor: Vendor, send: Send):
    vendor.fails(503)
    length = {"Content-Length": "5"}
    try:
        assert send("POST", {"idempotent": True}, content=iter([b"order"]), headers=length)[0] == 503
    except RuntimeError:
        # An async client takes no blocking generator.
        assert vendor.seen == []
        return
    assert len(vendor.seen) == 1


def test_a_request_that_is_wrong_is_sent_once(vendor: Vendor, send: Send):
    vendor.fails(404)
    assert send("GET")[0] == 404
    vendor.fails(429, body={"error": {"code": "insufficient_quota"}}, retry_after="3600")
    assert json.loads(send("GET")[1]) == {"error": {"code": "insufficient_quota"}}
    assert len(vendor.seen) == 2


def test_a_deadline_bounds_all_attempts(vendor: Vendor, send: Send):
    vendor.fails(429, 9, retry_after="100")
    with fuseboard.deadline(50):
        assert send("GET")[0] == 429
    assert len(vendor.seen) == 1


def test_an_account_without_money_does_not_stop_the_fleet(vendor: Vendor, settings: AgentSettings):
    with blocking.Agent(settings=settings) as agent:
        for library, ours in ASYNC.values():
            vendor.fails(429, body={"error": {"code": "insufficient_quota"}}, retry_after="3600")
            transport = ours.BlockingGuardedTransport(agent, dependency="api")
            with library.Client(transport=transport) as client:
                with client.stream("GET", vendor.url) as answer:
                    assert json.loads(answer.read())["error"]["code"] == "insufficient_quota"
                # A cooldown would refuse this one.
                assert client.get(vendor.url).status_code == 200


def test_clients_of_model_vendors_use_the_transport(vendor: Vendor, settings: AgentSettings):
    """Each of their own attempts is admitted too; here they make one."""
    with blocking.Agent(settings=settings) as agent:
        rich(agent)
        transport = for_httpx2.BlockingGuardedTransport(agent, dependency="api", retry=True, idempotent=True)
        with httpx2.Client(transport=transport) as client:
            vendor.fails(529, body={"error": {"type": "overloaded_error"}})
            vendor.fails(500, 2, body={"error": {"type": "api_error", "message": "no"}})
            one = anthropic.Anthropic(
                api_key="made-up", base_url=vendor.url, http_client=client, max_retries=0
            )
            with pytest.raises(anthropic.InternalServerError):
                one.messages.create(max_tokens=1, messages=[{"role": "user", "content": "?"}], model="m")
            assert len(vendor.seen) == 3
            other = openai.OpenAI(api_key="made-up", base_url=vendor.url, http_client=client, max_retries=0)
            vendor.fails(429, body={"error": {"code": "insufficient_quota"}})
            with pytest.raises(openai.RateLimitError):
                other.models.list()
            assert len(vendor.seen) == 4


def test_a_get_that_follows_a_post_is_not_repeated_with_it() -> None:
    """Otherwise a payment that was redirected to its receipt is made again when the receipt fails."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            return httpx.Response(303, headers={"location": "/receipt"})
        return httpx.Response(503)

    with httpx.Client(transport=httpx.MockTransport(answer), follow_redirects=True) as client:
        alone = client.get("http://vendor/receipt")
        redirected = client.post("http://vendor/pay")
    for response, repeatable in ((alone, True), (redirected, False)):
        with pytest.raises(httpx.HTTPStatusError) as raised:
            response.raise_for_status()
        assert is_repeatable(raised.value) is repeatable
