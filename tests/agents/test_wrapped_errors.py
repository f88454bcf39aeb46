"""What is inside the errors of clients decides: refusals, certificates, and requests before the last one."""

import contextlib
import socket
import ssl
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
import trustme

import fuseboard
from fuseboard import Agent, Default, Reason, Refused, blocking
from fuseboard.calling.classification import classify, refusal_of
from fuseboard.calling.outcomes import judge
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision
from fuseboard.integrations import httpx2 as for_httpx2
from fuseboard.settings import AgentSettings
from tests.agents.test_classification import SENT, caused, flags, of_anthropic
from tests.agents.vendors import LIMITED, Vendor, rich, settings, vendor

__all__ = ["settings", "vendor"]


def test_a_certificate_that_does_not_match_is_a_mistake_also_inside():
    assert flags(caused(httpx.ConnectError("tls"), ssl.SSLCertVerificationError())) == "A"
    assert flags(caused(httpx2.ConnectError("dns"), socket.gaierror(socket.EAI_NONAME, "no name"))) == "A"
    error: Exception = RuntimeError()
    for _ in range(10):
        error = caused(RuntimeError(), error)
    caused(error, error)  # a circle ends too
    assert flags(error) == "TA"


def test_a_good_answer_inside_an_error_is_no_success():
    """It closed a half-open breaker."""

    class Unreadable(Exception):
        status = 200

    assert flags(caused(ValueError("not the document we expect"), Unreadable())) == "TA"
    assert judge(caused(ValueError("not the document"), Unreadable())) == (Outcome.FAILURE, 0)
    # An overload in the middle of a stream has that status too.
    assert flags(caused(ValueError("broken off"), of_anthropic(200, "overloaded_error"))) == "RT"


def test_a_refusal_is_found_whatever_wraps_it():
    refused = Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN))
    assert refusal_of(refused) is refused
    assert refusal_of(caused(anthropic.APIConnectionError(request=SENT), refused)) is refused
    assert refusal_of(caused(RuntimeError(), openai.APIConnectionError(request=SENT), refused)) is refused
    assert refusal_of(openai.APIConnectionError(request=SENT)) is None


async def test_fallbacks_answer_when_a_vendors_client_is_refused(vendor: Vendor, settings: AgentSettings):
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
async def test_a_full_pool_and_an_account_without_money_have_a_fallback(
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
def test_a_payment_is_not_made_again_when_its_receipt_fails(
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


def test_a_vendor_that_drops_tls_connections_fails() -> None:
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


def test_a_certificate_without_trust_is_a_mistake() -> None:
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
