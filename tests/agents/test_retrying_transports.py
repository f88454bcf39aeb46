"""Transports that retry, with a real server and real clients."""

import contextlib
import json
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
import trustme
import urllib3

import fuseboard
from fuseboard import Agent, Default, blocking
from fuseboard.calling.classification import classify
from fuseboard.contract.policy import Dependency, Policy
from fuseboard.contract.protection import CallProtection, Retry
from fuseboard.contract.words import Jitter
from fuseboard.integrations import guarded_request
from fuseboard.integrations import httpx as for_httpx
from fuseboard.integrations import httpx2 as for_httpx2
from fuseboard.integrations.requests import GuardedAdapter, _bounded
from fuseboard.settings import AgentSettings
from tests.agents.alone import settings_with
from tests.agents.servers import POLICY
from tests.waiting import wait_until

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
        self.held = threading.Event()
        self.held.set()
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
                # "X-Cut": the body breaks off; "X-Held": it comes when ``held`` is set.
                cut = 10 if "x-cut" in headers else 0
                self.close_connection = self.close_connection or bool(cut)
                self.send_header("Content-Length", str(len(answer) + cut))
                self.end_headers()
                if "x-held" in headers:
                    self.wfile.flush()
                    vendor.held.wait(60)
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


def test_a_body_that_breaks_off_is_sent_for_again(vendor: Vendor, send: Send):
    """M2: the answer is thrown away anyway. It was raised as a ReadError, and the request was sent once."""
    vendor.fails(503, x_cut="1")
    assert send("GET") == (200, "fine")
    assert len(vendor.seen) == 2


def test_a_long_answer_is_not_repeated(vendor: Vendor, send: Send):
    """L2: the adapter of requests repeated it."""
    vendor.script.append((503, {}, b"x" * 200_000))
    assert send("GET") == (503, "x" * 200_000)
    assert len(vendor.seen) == 1


READ_ERRORS = (httpx.TransportError, httpx2.TransportError, requests.RequestException)


def test_a_last_answer_that_breaks_off_raises_what_broke_it(vendor: Vendor, send: Send):
    """M3: the session of requests read it again, and found an empty body."""
    vendor.fails(429, body={"error": {"code": "new"}}, x_cut="1")
    with pytest.raises(READ_ERRORS):
        send("POST", content=b"order")
    assert len(vendor.seen) == 1


LIMITED = {"error": {"code": "rate_limit_exceeded"}}
NO_MONEY = {"error": {"code": "insufficient_quota"}}


@pytest.mark.parametrize(("body", "cools"), [(LIMITED, True), (NO_MONEY, False)])
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_m1_an_answer_whose_body_breaks_is_handed_on(
    vendor: Vendor, settings: AgentSettings, library: str, body: object, cools: bool
):
    """The status was lost, and its code: an account without money cooled the fleet for an hour."""
    client_of, ours = ASYNC[library]
    async with Agent(settings=settings) as agent:
        transport = ours.GuardedTransport(agent, dependency="api")
        async with client_of.AsyncClient(transport=transport) as client:
            vendor.fails(429, body=body, x_cut="1", retry_after="3600")
            async with client.stream("GET", vendor.url) as answer:
                assert (answer.status_code, answer.headers["retry-after"]) == (429, "3600")
                with pytest.raises(client_of.RemoteProtocolError):
                    await answer.aread()
            if cools:
                with pytest.raises(ours.CallRefused):
                    await client.get(vendor.url)
            else:
                assert (await client.get(vendor.url)).status_code == 200


class Cut:
    """Answers that break off, from a transport that does not close them by itself."""

    def __init__(self, library: Any, status: int) -> None:
        self.closed = 0
        cut = self

        class Stream(library.SyncByteStream):  # type: ignore[misc]
            def __iter__(self) -> Iterator[bytes]:
                yield b'{"error"'
                raise library.ReadError("lost")

            def close(self) -> None:
                cut.closed += 1

        headers = {"content-type": "application/json"}
        self.transport = library.MockTransport(
            lambda request: library.Response(status, headers=headers, stream=Stream())
        )


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_m1_a_stream_that_breaks_off_is_closed_once(settings: AgentSettings, library: str, status: int):
    client_of, ours = ASYNC[library]
    cut = Cut(client_of, status)
    with blocking.Agent(settings=settings) as agent:
        rich(agent)
        guarded = ours.BlockingGuardedTransport(agent, dependency="api", transport=cut.transport, retry=True)
        with client_of.Client(transport=guarded) as client, pytest.raises(client_of.ReadError):
            client.get("http://vendor/")
    assert cut.closed == 3


def test_m1_a_slow_body_does_not_delay_the_report(
    vendor: Vendor, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(guarded_request, "CODE_WITHIN_S", 0.01)
    vendor.held.clear()
    vendor.fails(429, body=LIMITED, x_held="1", retry_after="30")
    with blocking.Agent(settings=settings) as agent, ThreadPoolExecutor() as threads:
        for_requests = requests.Session()
        for_requests.mount("http://", GuardedAdapter(agent, dependency="api"))
        asked = threads.submit(for_requests.get, vendor.url)
        try:
            wait_until(lambda: not admitted(agent))
            assert not asked.done()
        finally:
            vendor.held.set()
        assert asked.result().json() == LIMITED
        for_requests.close()


def admitted(agent: blocking.Agent) -> bool:
    try:
        agent.give_back(agent.admit_call("api"))
    except fuseboard.Refused:
        return False
    return True


@pytest.mark.parametrize("raised", [KeyboardInterrupt, MemoryError])
def test_m3_a_body_that_cannot_be_read_is_reported_first(
    vendor: Vendor, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
):
    """A probe permit stayed taken until it expired."""

    monkeypatch.setattr(requests.Response, "iter_content", lambda *_, **__: BrokenParts(raised))
    vendor.fails(429, body=LIMITED, retry_after="30")
    with blocking.Agent(settings=settings) as agent, requests.Session() as session:
        session.mount("http://", GuardedAdapter(agent, dependency="api"))
        with pytest.raises(raised):
            session.get(vendor.url)
        wait_until(lambda: not admitted(agent))


class BrokenParts:
    def __init__(self, raised: type[BaseException]) -> None:
        self._raised = raised

    def __next__(self) -> bytes:
        raise self._raised


def test_m3_a_body_that_nests_too_deep_is_no_error(vendor: Vendor, send: Send):
    deep = b"[" * 60_000
    vendor.script.append((429, {"Content-Type": "application/json"}, deep))
    assert send("POST", content=b"order") == (429, deep.decode())


def test_l3_a_retry_whose_admission_fails_gives_its_budget_back(
    vendor: Vendor, settings: AgentSettings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(guarded_request, "block", lambda _: None)
    with blocking.Agent(settings=settings) as agent, requests.Session() as session:
        rich(agent)
        session.mount("http://", GuardedAdapter(agent, dependency="api", retry=True))
        admit, times = agent.admit_call, iter([1])

        def admit_once(*given: Any, **named: Any) -> Any:
            if next(times, None) is None:
                raise KeyboardInterrupt
            return admit(*given, **named)

        monkeypatch.setattr(agent, "admit_call", admit_once)
        vendor.fails(503)
        given_back = []
        monkeypatch.setattr(agent.retries, "give_back", lambda *_: given_back.append(True))
        with pytest.raises(KeyboardInterrupt):
            session.get(vendor.url)
        assert given_back == [True]


def test_l7_every_kind_of_timeout_obeys_the_deadline():
    with fuseboard.deadline(5):
        assert _bounded(60) <= 5
        assert _bounded((1, 60))[0] == 1
        bound = _bounded(urllib3.Timeout(connect=1, read=60))
        assert (bound.connect_timeout, bound.total <= 5) == (1, True)
        assert _bounded(urllib3.Timeout(total=2)).total == 2


async def test_h3_fallbacks_answer_when_a_vendors_client_is_refused(vendor: Vendor, settings: AgentSettings):
    """They answered while the vendor failed, and no longer when its breaker opened."""
    async with Agent(settings=settings) as agent:
        transport = for_httpx2.GuardedTransport(agent, dependency="api")
        async with httpx2.AsyncClient(transport=transport) as client:
            given: Any = {
                "api_key": "made-up",
                "base_url": vendor.url,
                "http_client": client,
                "max_retries": 0,
            }
            one, other = anthropic.AsyncAnthropic(**given), openai.AsyncOpenAI(**given)

            def ask() -> Any:
                return one.messages.create(
                    max_tokens=1, messages=[{"role": "user", "content": "?"}], model="m"
                )

            chain = agent.fallback("api", [Default("sorry")])
            vendor.fails(429, body=LIMITED, retry_after="60")
            assert (await chain.run(ask)).reason == "RateLimitError"
            with pytest.raises(anthropic.APIConnectionError) as caught:
                await ask()
            assert not isinstance(caught.value, fuseboard.Refused)
            answer = await chain.run(ask)
            assert (answer.value, answer.reason) == ("sorry", "cooling_down")
            assert (await chain.run(other.models.list)).reason == "cooling_down"
            answers = await agent.gather_tiers(standard=[ask(), other.models.list()])
            assert answers.standard == (None, None)


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
async def test_m4_a_full_pool_and_an_account_without_money_have_a_fallback(
    settings: AgentSettings, library: Any
):
    request = httpx2.Request("POST", "https://vendor.example.com/v1/messages")
    refused = httpx2.Response(429, request=request)
    agent = Agent(settings=settings)
    chain = agent.fallback("api", [Default("sorry")])
    for error in (
        library.PoolTimeout("full"),
        openai.RateLimitError("no money", response=refused, body={"code": "insufficient_quota"}),
        anthropic.APIStatusError("no money", response=refused, body={"error": {"type": "billing_error"}}),
    ):

        async def ask(error: Exception = error) -> None:
            raise error

        assert (await chain.run(ask)).value == "sorry"


class Shop:
    """A vendor of payments in memory. What a GET does is what the test says."""

    def __init__(self, get: Callable[[], httpx.Response]) -> None:
        self.get = get
        self.payments = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method != "POST":
            return self.get()
        self.payments += 1
        return httpx.Response(303, headers={"location": "/receipt"})

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(transport=httpx.MockTransport(self), base_url="http://vendor", **more)


def unavailable() -> httpx.Response:
    return httpx.Response(503)


def lost() -> httpx.Response:
    raise httpx.ReadTimeout("late")


def not_connected() -> httpx.Response:
    raise httpx.ConnectError("refused")


@pytest.mark.parametrize("get", [unavailable, lost, not_connected])
def test_h1_a_payment_is_not_made_again_when_its_receipt_fails(
    settings: AgentSettings, get: Callable[[], httpx.Response]
):
    """An error of a block is that of its last request. The request before may have done its work."""
    redirected, separate, repeated = Shop(get), Shop(get), Shop(get)

    def pay(agent: blocking.Agent, shop: Shop, follow: bool, **arguments: Any) -> None:
        with shop.client(follow_redirects=follow) as client:
            for attempt in agent.retrying("api", **arguments):
                with attempt:
                    client.post("/pay")
                    client.get("/receipt").raise_for_status()

    with blocking.Agent(settings=settings) as agent:
        rich(agent)
        with pytest.raises(httpx.HTTPError):
            pay(agent, redirected, follow=True)
        with pytest.raises(httpx.HTTPError) as caught:
            pay(agent, separate, follow=False)
        with pytest.raises(httpx.HTTPError):
            pay(agent, repeated, follow=False, idempotent=True)
    assert (redirected.payments, separate.payments, repeated.payments) == (1, 1, 3)
    assert "pass idempotent=True" in caught.value.__notes__[0]


def test_h4_a_vendor_that_drops_tls_connections_fails() -> None:
    """For requests it was neutral, so the breaker never opened."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:

        def drop() -> None:
            taken, _ = listener.accept()
            taken.recv(1)
            taken.shutdown(socket.SHUT_WR)
            while taken.recv(65_536):
                pass
            taken.close()

        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        for get in (requests.get, httpx.get, httpx2.get):
            dropped = threads.submit(drop)
            with pytest.raises((requests.ConnectionError, httpx.ConnectError, httpx2.ConnectError)) as caught:
                get(url, timeout=30)
            dropped.result()
            assert "EOF" in str(caught.value)
            assert (classify(caught.value).trips, classify(caught.value).retryable) == (True, True)


def test_h4_a_certificate_without_trust_is_a_mistake() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor() as threads:

        def shake_hands() -> None:
            taken, _ = listener.accept()
            with contextlib.suppress(OSError), context.wrap_socket(taken, server_side=True) as safe:
                safe.recv(1)

        url = f"https://127.0.0.1:{listener.getsockname()[1]}/"
        for get in (requests.get, httpx.get, httpx2.get):
            shaken = threads.submit(shake_hands)
            with pytest.raises((requests.ConnectionError, httpx.ConnectError, httpx2.ConnectError)) as caught:
                get(url, timeout=30)
            shaken.result()
            verdict = classify(caught.value)
            assert (verdict.trips, verdict.retryable, verdict.alertable) == (False, False, True)
