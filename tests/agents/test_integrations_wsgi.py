"""WSGI middleware and the adapter for `requests`, with a real agent, a real Redis and real sockets."""

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import msgspec
import pytest
import redis

from fuseboard import AgentSettings, Reason, Refused, blocking
from fuseboard.contract.policy import Dependency, Limit, TenantRecord, Tier
from fuseboard.contract.words import Algorithm, Dimension
from fuseboard.decision import Decision
from fuseboard.integrations.wsgi import FuseboardMiddleware, readiness, resilience, subject_of
from tests.agents.pressed import NONE, SOME, TENANTS, TIERED, pod_of, press
from tests.agents.published import publish
from tests.agents.servers import BREAKER, POLICY
from tests.waiting import wait_until

REQUESTS = Limit(name="requests", limit=2, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
OPEN = Limit(name="open", limit=1, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)
PER_IP = Limit(name="per-ip", limit=1, window_ms=60_000, per=(Dimension.IP,))
RULES = msgspec.structs.replace(
    POLICY,
    tiers=(Tier(name="free", quotas=(REQUESTS,)), Tier(name="slots", quotas=(OPEN,))),
    subject_limits=(PER_IP,),
    dependencies=(Dependency(name="payments", breaker=BREAKER, timeout_ms=200),),
)


@pytest.fixture
def agent(limits: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[blocking.Agent]:
    publish(limits, RULES, revision=1, tenants={"slots": TenantRecord(tier="slots")})
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        yield agent


def hello(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"hel", b"lo"]


class Answer:
    """What a server would send; ``body`` is read and closed by whoever wants it."""

    def __init__(self, app: Any, tenant: str = "", method: str = "GET") -> None:
        environ: dict[str, Any] = {"REQUEST_METHOD": method, "REMOTE_ADDR": "192.0.2.1"}
        if tenant:
            environ["HTTP_X_TENANT"] = tenant
        setup_testing_defaults(environ)
        environ.pop("QUERY_STRING", None)
        environ["QUERY_STRING"] = ""
        self.status, self.headers = 0, dict[str, str]()
        self.body = app(environ, self._start)

    def _start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        self.status, self.headers = int(status.split()[0]), {name.lower(): value for name, value in headers}
        return lambda data: None

    def read(self) -> bytes:
        try:
            return b"".join(self.body)
        finally:
            if hasattr(self.body, "close"):
                self.body.close()


def tenant_of(environ: dict[str, Any]) -> str | None:
    return environ.get("HTTP_X_TENANT")


def test_a_request_is_decided_and_the_middleware_keeps_to_the_standard(agent: blocking.Agent):
    app = validator(FuseboardMiddleware(validator(hello), agent, tenant_of, legacy_headers=True))
    first = Answer(app, "acme")
    assert first.read() == b"hello"
    assert (first.status, first.headers["ratelimit"]) == (200, '"requests";r=1')
    assert first.headers["x-ratelimit-remaining"] == "1"
    Answer(app, "acme").read()
    refused = Answer(app, "acme")
    assert b"violated-policies" in refused.read()
    assert (refused.status, refused.headers["content-type"]) == (429, "application/problem+json")
    assert int(refused.headers["retry-after"]) >= 1
    plain = FuseboardMiddleware(hello, agent, tenant_of)
    assert Answer(plain, "acme", method="HEAD").read() == b""


def test_without_a_tenant_the_address_decides_or_nothing(agent: blocking.Agent):
    app = FuseboardMiddleware(hello, agent, tenant_of, subject=subject_of)
    assert [Answer(app).status for _ in range(2)] == [200, 429]
    app = FuseboardMiddleware(hello, agent, tenant_of)
    assert "ratelimit" not in Answer(app).headers


def test_what_a_request_held_is_free_when_its_body_is_closed(agent: blocking.Agent):
    app = FuseboardMiddleware(hello, agent, tenant_of)
    answer = Answer(app, "slots")
    assert not agent.admit_request("slots").allowed
    answer.read()
    held = agent.admit_request("slots", wait_s=5)
    assert held.allowed
    agent.finish(held)

    def broken(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise LookupError

    app = FuseboardMiddleware(broken, agent, lambda environ: "slots")

    def fails() -> bool:
        try:
            Answer(app)
        except LookupError:
            return True
        return False  # refused: the slot of the one before is on its way back

    wait_until(fails)
    wait_until(lambda: free(agent))


@pytest.mark.parametrize("group", [False, True])
def test_a_guarded_call_that_is_refused_and_escapes_is_a_503(agent: blocking.Agent, group: bool):
    def calling(environ: Any, start_response: Any) -> Iterable[bytes]:
        if group:
            raise ExceptionGroup("tasks", [ExceptionGroup("more", [refused_call()])])
        raise refused_call()

    answer = Answer(FuseboardMiddleware(calling, agent, tenant_of), "acme")
    assert (answer.status, b"breaker_open" in answer.read()) == (503, True)


@pytest.fixture
def tiered(limits: redis.Redis, redis_url: str, tmp_path: Path) -> Iterator[blocking.Agent]:
    publish(limits, TIERED, revision=1, tenants=TENANTS)
    with blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        wait_until(lambda: agent.configuration.snapshot.head.revision == 1)
        for tenant in TENANTS:
            agent.admit_request(tenant)
        press(agent, NONE)
        yield agent


def test_requests_are_shed_before_any_limit_and_counted_until_their_body_ends(tiered: blocking.Agent):
    pod = pod_of(tiered)
    app = validator(FuseboardMiddleware(validator(hello), tiered, tenant_of))
    answer = Answer(app, "free")
    assert pod.requests.in_flight == 1
    answer.read()
    assert (pod.requests.in_flight, pod.requests.latency.count(pod._clock())) == (0, 1)
    press(tiered, SOME)
    shed = Answer(app, "free")
    assert b"free tier temporarily limited" in shed.read()
    assert (shed.status, int(shed.headers["retry-after"]) >= 1) == (503, True)
    for tenant in ("pro", "premium", ""):
        served = Answer(app, tenant)
        assert (served.status, served.read()) == (200, b"hello")

    def broken(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise LookupError

    with pytest.raises(LookupError):
        Answer(FuseboardMiddleware(broken, tiered, tenant_of), "premium")
    assert (pod.requests.in_flight, pod.requests.errors) == (0, 1)


def refused_call() -> Refused:
    return Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN, retry_after_ms=4000))


@pytest.mark.parametrize("starts", [False, True])
def test_a_generator_that_fails_is_an_error_of_the_pod(tiered: blocking.Agent, starts: bool):
    def broken(environ: Any, start_response: Any) -> Iterable[bytes]:
        if starts:
            start_response("200 OK", [("Content-Type", "text/plain")])
        yield b""
        raise LookupError

    answer = Answer(FuseboardMiddleware(broken, tiered, tenant_of), "premium")
    with pytest.raises(LookupError):
        answer.read()
    pod = pod_of(tiered)
    # A response that began with 200 is counted as that.
    assert (pod.requests.in_flight, pod.requests.errors) == (0, 0 if starts else 1)


def test_a_generator_whose_call_is_refused_gets_the_same_answer(tiered: blocking.Agent):
    """It runs only while the server reads its body."""
    closed = []

    def calling(environ: Any, start_response: Any) -> Iterable[bytes]:
        try:
            raise ExceptionGroup("tasks", [refused_call()])
            yield b""
        finally:
            closed.append(True)

    answer = Answer(FuseboardMiddleware(calling, tiered, tenant_of), "premium")
    body = answer.read()
    assert (answer.status, b"breaker_open" in body, closed) == (503, True, [True])
    pod = pod_of(tiered)
    assert (pod.requests.in_flight, pod.requests.errors) == (0, 0)


def test_a_refusal_after_the_start_of_an_answer_is_raised(agent: blocking.Agent):
    def late(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("200 OK", [])
        yield b"hel"
        raise refused_call()

    answer = Answer(FuseboardMiddleware(late, agent, tenant_of), "slots")
    with pytest.raises(Refused):
        answer.read()
    wait_until(lambda: free(agent))


@pytest.mark.parametrize("path", ["/café/menu", "/a b", "/日本"])
def test_the_path_of_an_endpoint_is_text(path: str):
    environ = {"SCRIPT_NAME": "", "PATH_INFO": path.encode().decode("latin-1"), "REQUEST_METHOD": "get"}
    assert subject_of(environ).endpoint == f"GET {path}"


def test_bytes_of_a_path_that_are_no_text_stay(agent: blocking.Agent):
    environ = {"SCRIPT_NAME": "/shop", "PATH_INFO": "/\xff", "REQUEST_METHOD": "GET"}
    assert subject_of(environ).endpoint == "GET /shop/\xff"


def test_a_probe_and_the_protection_of_the_pod(tiered: blocking.Agent):
    probe = Answer(validator(readiness(tiered)))
    assert (probe.status, probe.read()) == (200, b'{"ready": true, "because": ""}')
    shown = Answer(validator(resilience(tiered)))
    assert b'"pressure"' in shown.read()
    assert tiered.pressure().value < 1
    assert tiered.ready()
    tiered.stop()
    assert not tiered.ready()
    assert Answer(readiness(tiered), method="HEAD").status == 503


def test_an_impossible_cost_is_logged_and_the_request_passes(agent: blocking.Agent, caplog):
    app = FuseboardMiddleware(hello, agent, tenant_of, cost=lambda environ: 0)
    assert [Answer(app, "acme").status for _ in range(3)] == [200] * 3
    assert caplog.text.count("wsgi.failed_open") == 1


class Vendor(BaseHTTPRequestHandler):
    status, headers_to_send, hangs = 200, dict[str, str](), False

    def do_GET(self) -> None:
        if Vendor.hangs:
            time.sleep(1)
        self.send_response(Vendor.status)
        for name, value in Vendor.headers_to_send.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it
        """The tests look at what is reported."""


@pytest.fixture
def vendor() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Vendor)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    Vendor.status, Vendor.headers_to_send, Vendor.hangs = 200, {}, False
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_session_of_requests_is_guarded(agent: blocking.Agent, vendor: str):
    requests = pytest.importorskip("requests")
    from fuseboard.integrations.requests import CallRefused, GuardedAdapter

    with requests.Session() as session:
        session.mount("http://", GuardedAdapter(agent, dependency="payments"))
        assert session.get(vendor).status_code == 200
        Vendor.hangs = True
        with pytest.raises(requests.Timeout):
            session.get(vendor)  # the dependency's timeout, for it has none of its own
        Vendor.hangs, Vendor.status, Vendor.headers_to_send = False, 429, {"Retry-After": "60"}
        assert session.get(vendor).status_code == 429
        with pytest.raises(CallRefused) as refused:
            session.get(vendor)
    assert isinstance(refused.value, requests.ConnectionError)
    assert refused.value.decision.reason is Reason.COOLING_DOWN
    (seen,) = agent._started().counters.wire().dependencies
    assert (seen.ok, seen.failure, seen.neutral) == (1, 1, 1)


def free(agent: blocking.Agent) -> bool:
    decision = agent.admit_request("slots")
    if decision.allowed:
        agent.finish(decision)
    return decision.allowed
