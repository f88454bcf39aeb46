"""The guarded transport with a real server: every permit is reported once, with the right outcome."""

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx
import pytest
import redis

from fuseboard import AgentSettings, blocking
from fuseboard.calling.outcomes import outcome_of_exception
from fuseboard.contract.words import Outcome, Reason
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.integrations.httpx import BlockingGuardedTransport, CallRefused, GuardedTransport
from tests.agents.published import publish
from tests.agents.servers import POLICY
from tests.waiting import eventually

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]


class FakeAgent:
    def __init__(self) -> None:
        self.refusal: Decision | None = None
        self.reports: list[tuple[Outcome, float | None]] = []
        self.cooldowns: list[int] = []
        self.timeout: float | None = None
        self.waits: list[float] = []

    async def admit_call(self, dependency: str, *, tenant: str = "", wait_s: float = 0.0) -> Permit:
        self.waits.append(wait_s)
        if self.refusal is not None:
            raise Refused(self.refusal)
        decision = Decision(allowed=True, dependency=dependency)
        return Permit(made=decision, dependency=dependency, generation=1, timeout_s=self.timeout)

    def report(
        self, permit: Permit, outcome: Outcome, elapsed_s: float | None = None, *, cooldown_ms: int = 0
    ) -> None:
        if not permit.reported:
            permit.reported = True
            self.reports.append((outcome, elapsed_s))
            self.cooldowns.append(cooldown_ms)

    def soon(self, what: Callable[[], None]) -> None:
        what()


class Vendor:
    """Answers every request with whatever a test puts in ``answer``."""

    def __init__(self) -> None:
        self.answer: Answer = status(200)
        self.requests = 0
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            self.requests += 1
            await self.answer(writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            writer.close()


def status(code: int) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        writer.write(f"HTTP/1.1 {code} X\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok".encode())
        await writer.drain()

    return answer


async def half_a_body(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    await writer.drain()


async def hang_up(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


async def never(writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


async def body_never_ends(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
    await writer.drain()
    await asyncio.Event().wait()


@pytest.fixture
async def vendor() -> AsyncIterator[Vendor]:
    vendor = Vendor()
    tasks: set[asyncio.Task[None]] = set()

    def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(vendor.serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    vendor.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    yield vendor
    server.close()
    for task in list(tasks):
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await server.wait_closed()


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


@pytest.fixture
async def client(agent: FakeAgent) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(
        transport=GuardedTransport(agent, dependency="payments"), timeout=30
    ) as client:
        yield client


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (status(200), Outcome.OK),
        (status(301), Outcome.OK),
        (status(400), Outcome.NEUTRAL),
        (status(404), Outcome.NEUTRAL),
        (status(429), Outcome.NEUTRAL),
        (status(500), Outcome.FAILURE),
        (status(503), Outcome.FAILURE),
    ],
)
async def test_an_answer_is_judged_by_its_status(vendor, agent, client, answer, outcome):
    vendor.answer = answer
    await client.get(vendor.url)
    assert [reported for reported, _ in agent.reports] == [outcome]


@pytest.mark.parametrize("answer", [hang_up, never, half_a_body, body_never_ends])
async def test_a_broken_or_late_answer_is_a_failure_also_in_its_body(vendor, agent, client, answer):
    vendor.answer = answer
    with pytest.raises(httpx.TransportError):
        await client.get(vendor.url, timeout=0.2)
    assert [reported for reported, _ in agent.reports] == [Outcome.FAILURE]


async def test_a_vendor_that_is_not_there_is_a_failure(agent, client):
    with pytest.raises(httpx.ConnectError):
        await client.get("http://127.0.0.1:1/")
    assert [reported for reported, _ in agent.reports] == [Outcome.FAILURE]


@pytest.mark.parametrize("answer", [never, body_never_ends])
async def test_a_call_its_caller_cancels_says_nothing(vendor, agent, answer):
    vendor.answer = answer
    transport = GuardedTransport(agent, dependency="payments")
    async with httpx.AsyncClient(transport=transport, timeout=30) as client:
        task = asyncio.create_task(client.get(vendor.url))
        await eventually(lambda: vendor.requests == 1)
        await asyncio.sleep(0.02)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [reported for reported, _ in agent.reports] == [Outcome.NEUTRAL]


async def test_a_success_carries_the_time_its_headers_took(vendor, agent, client):
    await client.get(vendor.url)
    ((outcome, elapsed_s),) = agent.reports
    assert outcome is Outcome.OK
    assert elapsed_s is not None
    assert 0 < elapsed_s < 10


async def test_a_streamed_body_is_reported_once_when_it_is_closed(vendor, agent, client):
    async with client.stream("GET", vendor.url) as response:
        assert response.status_code == 200
        assert agent.reports == []
    assert [reported for reported, _ in agent.reports] == [Outcome.OK]


async def test_a_body_that_is_never_read_or_closed_is_reported(vendor, agent):
    transport = GuardedTransport(agent, dependency="payments")
    response = await transport.handle_async_request(httpx.Request("GET", vendor.url))
    inner = response.stream._stream
    del response
    gc.collect()
    await eventually(lambda: agent.reports)
    await inner.aclose()
    await transport.aclose()
    assert [reported for reported, _ in agent.reports] == [Outcome.OK]


async def test_a_refusal_sends_nothing_and_is_both_ours_and_httpxs(vendor, agent, client):
    agent.refusal = Decision(
        allowed=False, reason=Reason.BREAKER_OPEN, dependency="payments", retry_after_ms=900
    )
    with pytest.raises(CallRefused) as caught:
        await client.get(vendor.url)
    assert isinstance(caught.value, Refused)
    assert isinstance(caught.value, httpx.TransportError)
    assert caught.value.decision.retry_after_ms == 900
    assert str(caught.value.request.url) == vendor.url
    assert "breaker_open" in str(caught.value)
    assert (vendor.requests, agent.reports) == (0, [])


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (TimeoutError(), Outcome.FAILURE),
        (ConnectionResetError(), Outcome.FAILURE),
        (ValueError("an answer that does not parse"), Outcome.FAILURE),
        (httpx.ReadTimeout("late"), Outcome.FAILURE),
        (httpx.PoolTimeout("no connection of our own was free"), Outcome.NEUTRAL),
        (httpx.UnsupportedProtocol("gopher"), Outcome.NEUTRAL),
        (asyncio.CancelledError(), Outcome.NEUTRAL),
        (KeyboardInterrupt(), Outcome.NEUTRAL),
        (Refused(Decision(allowed=False, reason=Reason.QUOTA)), Outcome.NEUTRAL),
    ],
)
def test_an_exception_is_judged_by_whose_fault_it_is(error: BaseException, outcome: Outcome):
    assert outcome_of_exception(error) is outcome


@pytest.mark.parametrize(
    ("code", "outcome"),
    [(422, Outcome.NEUTRAL), (429, Outcome.NEUTRAL), (502, Outcome.FAILURE), (302, Outcome.OK)],
)
def test_an_exception_with_a_status_is_judged_by_it(code: int, outcome: Outcome):
    request = httpx.Request("GET", "http://vendor")
    httpx_error = httpx.HTTPStatusError("", request=request, response=httpx.Response(code))
    assert outcome_of_exception(httpx_error) is outcome

    class VendorError(Exception):
        status = code

    assert outcome_of_exception(VendorError()) is outcome


def asking_for_quiet(code: int, retry_after: str) -> Answer:
    async def answer(writer: asyncio.StreamWriter) -> None:
        headers = f"Retry-After: {retry_after}\r\nContent-Length: 0\r\nConnection: close"
        writer.write(f"HTTP/1.1 {code} X\r\n{headers}\r\n\r\n".encode())
        await writer.drain()

    return answer


@pytest.mark.parametrize(
    ("code", "retry_after", "reported"),
    [
        (429, "7", (Outcome.NEUTRAL, 7000)),
        (503, "7", (Outcome.FAILURE, 7000)),
        (503, "86400", (Outcome.FAILURE, 3_600_000)),
        (429, "86400", (Outcome.NEUTRAL, 0)),
        (429, "Fri, 31 Dec 9999 23:59:59 GMT", (Outcome.NEUTRAL, 3_600_000)),
        (429, "soon", (Outcome.NEUTRAL, 1000)),
        (500, "7", (Outcome.FAILURE, 0)),
    ],
)
async def test_a_cooldown_of_the_vendor_is_obeyed(vendor, agent, client, code, retry_after, reported):
    vendor.answer = asking_for_quiet(code, retry_after)
    await client.get(vendor.url)
    ((outcome, _),) = agent.reports
    assert (outcome, agent.cooldowns[0]) == reported


async def test_a_request_without_a_timeout_gets_the_dependencys(vendor, agent):
    vendor.answer = never
    agent.timeout = 0.1
    transport = GuardedTransport(agent, dependency="payments")
    async with httpx.AsyncClient(transport=transport, timeout=None) as client:  # noqa: S113 - the point
        with pytest.raises(httpx.ReadTimeout):
            await client.get(vendor.url)
        vendor.answer = status(200)
        request = client.build_request("GET", vendor.url, timeout=httpx.Timeout(None, connect=3))
        await client.send(request)
    assert request.extensions["timeout"] == {"connect": 3, "read": 0.1, "write": 0.1, "pool": 0.1}


class TestBlocking:
    """The same for `httpx.Client`, with a real agent and a real Redis."""

    @pytest.fixture
    async def guarded(
        self, limits: redis.Redis, redis_url: str, tmp_path: Path
    ) -> AsyncIterator[blocking.Agent]:
        publish(limits, POLICY, revision=1)
        agent = blocking.Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path))
        yield agent
        await asyncio.to_thread(agent.stop)

    async def send(self, agent: blocking.Agent, url: str, **options: object) -> httpx.Response:
        def send() -> httpx.Response:
            with httpx.Client(transport=BlockingGuardedTransport(agent, dependency="payments")) as client:
                return client.get(url, **options)

        return await asyncio.to_thread(send)

    async def test_every_end_is_reported_once(self, vendor, guarded: blocking.Agent):
        assert (await self.send(guarded, vendor.url)).text == "ok"
        vendor.answer = status(404)
        await self.send(guarded, vendor.url)
        vendor.answer = half_a_body
        with pytest.raises(httpx.TransportError):
            await self.send(guarded, vendor.url, timeout=0.2)
        vendor.answer = hang_up
        with pytest.raises(httpx.TransportError):
            await self.send(guarded, vendor.url)

        def counted() -> tuple[int, ...]:
            (seen,) = guarded._started().counters.wire().dependencies
            return (seen.ok, seen.neutral, seen.failure)

        await eventually(lambda: counted() == (1, 1, 2))

    async def test_a_cooldown_refuses_the_next_request(self, vendor, guarded: blocking.Agent):
        vendor.answer = asking_for_quiet(429, "60")
        assert (await self.send(guarded, vendor.url)).status_code == 429
        with pytest.raises(CallRefused) as refused:
            await self.send(guarded, vendor.url)
        assert refused.value.decision.reason is Reason.COOLING_DOWN
        assert vendor.requests == 1
