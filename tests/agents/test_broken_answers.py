"""Answers that break off, are late or are too long, and what a transport reports and hands on."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import aiohttp
import httpx
import httpx2
import pytest
import requests
import urllib3

import fuseboard
from fuseboard import Agent, blocking
from fuseboard.integrations import guarded_request
from fuseboard.integrations.requests import GuardedAdapter, _bounded
from fuseboard.settings import AgentSettings
from tests.agents.vendors import ASYNC, LIMITED, NO_MONEY, Send, Vendor, rich, send, settings, vendor
from tests.waiting import wait_until

__all__ = ["send", "settings", "vendor"]


def test_a_body_that_breaks_off_is_sent_for_again(vendor: Vendor, send: Send):
    """The answer is thrown away anyway. It was raised as a ReadError, and the request was sent once."""
    vendor.fails(503, x_cut="1")
    assert send("GET") == (200, "fine")
    assert len(vendor.seen) == 2


def test_a_long_answer_is_not_repeated(vendor: Vendor, send: Send):
    """The adapter of requests repeated it."""
    vendor.script.append((503, {}, b"x" * 200_000))
    assert send("GET") == (503, "x" * 200_000)
    assert len(vendor.seen) == 1


READ_ERRORS = (
    httpx.TransportError,
    httpx2.TransportError,
    requests.RequestException,
    aiohttp.ClientPayloadError,
)


def test_a_last_answer_that_breaks_off_raises_what_broke_it(vendor: Vendor, send: Send):
    """The session of requests read it again, and found an empty body."""
    vendor.fails(429, body={"error": {"code": "new"}}, x_cut="1")
    with pytest.raises(READ_ERRORS):
        send("POST", content=b"order")
    assert len(vendor.seen) == 1


@pytest.mark.parametrize(("body", "waits_s"), [(LIMITED, 3600), (NO_MONEY, 60)])
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
async def test_an_answer_whose_body_breaks_is_handed_on(
    vendor: Vendor, settings: AgentSettings, library: str, body: object, waits_s: int
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
            # An account without money: only this pod waits, and for a minute.
            with pytest.raises(ours.CallRefused) as refused:
                await client.get(vendor.url)
            assert waits_s - 30 < refused.value.decision.retry_after_ms / 1000 <= waits_s


class Cut:
    """Answers, which break off unless ``whole``, from a transport that does not close them by itself."""

    def __init__(self, library: Any, status: int, *, whole: bool = False) -> None:
        self.closed = 0
        cut = self

        class Stream(library.SyncByteStream):  # type: ignore[misc]
            def __iter__(self) -> Iterator[bytes]:
                yield b'{"error"'
                if not whole:
                    raise library.ReadError("lost")
                yield b": 1}"

            def close(self) -> None:
                cut.closed += 1

        headers = {"content-type": "application/json"}
        self.transport = library.MockTransport(
            lambda request: library.Response(status, headers=headers, stream=Stream())
        )


@pytest.mark.parametrize(("status", "attempts"), [(429, 1), (503, 3)])
@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_stream_that_breaks_off_is_closed_once(
    settings: AgentSettings, library: str, status: int, attempts: int
):
    client_of, ours = ASYNC[library]
    cut = Cut(client_of, status)
    with blocking.Agent(settings=settings) as agent:
        rich(agent)
        guarded = ours.BlockingGuardedTransport(agent, dependency="api", transport=cut.transport, retry=True)
        with client_of.Client(transport=guarded) as client, pytest.raises(client_of.ReadError):
            client.get("http://vendor/")
    assert cut.closed == attempts


@pytest.mark.parametrize("library", ["httpx", "httpx2"])
def test_a_body_that_is_read_twice_is_closed_once(settings: AgentSettings, library: str):
    """The judge of a retry reads it, and so does the guard. Some streams cannot be closed twice."""
    client_of, ours = ASYNC[library]
    answer = Cut(client_of, 429, whole=True)
    with blocking.Agent(settings=settings) as agent:
        rich(agent)
        guarded = ours.BlockingGuardedTransport(
            agent, dependency="api", transport=answer.transport, retry=True
        )
        with client_of.Client(transport=guarded) as client:
            assert client.get("http://vendor/").json() == {"error": 1}
    assert answer.closed == 1


def test_a_slow_body_does_not_delay_the_report(
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
def test_a_body_that_cannot_be_read_is_reported_first(
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


def test_a_body_that_nests_too_deep_is_no_error(vendor: Vendor, send: Send):
    deep = b"[" * 60_000
    vendor.script.append((429, {"Content-Type": "application/json"}, deep))
    assert send("POST", content=b"order") == (429, deep.decode())


def test_a_retry_whose_admission_fails_gives_its_budget_back(
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


def test_every_kind_of_timeout_obeys_the_deadline():
    with fuseboard.deadline(5):
        assert _bounded(60) <= 5
        assert _bounded((1, 60))[0] == 1
        bound = _bounded(urllib3.Timeout(connect=1, read=60))
        assert (bound.connect_timeout, bound.total <= 5) == (1, True)
        assert _bounded(urllib3.Timeout(total=2)).total == 2
