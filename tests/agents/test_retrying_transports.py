"""Transports that retry, with a real server and real clients."""

import json

import anthropic
import httpx2
import openai
import pytest

import fuseboard
from fuseboard import blocking
from fuseboard.integrations import httpx2 as for_httpx2
from fuseboard.settings import AgentSettings
from tests.agents.vendors import ASYNC, Send, Vendor, rich, send, settings, vendor

__all__ = ["send", "settings", "vendor"]


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


def test_an_account_without_money_stops_the_pod_that_heard_it(vendor: Vendor, settings: AgentSettings):
    for library, ours in ASYNC.values():
        with blocking.Agent(settings=settings) as agent:
            vendor.fails(429, body={"error": {"code": "insufficient_quota"}}, retry_after="3600")
            transport = ours.BlockingGuardedTransport(agent, dependency="api")
            with library.Client(transport=transport) as client:
                with client.stream("GET", vendor.url) as answer:
                    assert json.loads(answer.read())["error"]["code"] == "insufficient_quota"
                with pytest.raises(fuseboard.Refused) as caught:
                    client.get(vendor.url)
                assert caught.value.decision.reason is fuseboard.Reason.COOLING_DOWN
                assert caught.value.decision.retry_after_ms <= 60_000


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
