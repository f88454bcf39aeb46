"""Refused requests carry a token over HTTP, if the agent has a key; nothing else does."""

import random
from copy import deepcopy

import httpx
import msgspec
import pytest

from fuseboard import Agent, AgentSettings
from fuseboard.contract.policy import Limit, Tier
from fuseboard.contract.refusal_token import RefusalKey, read_token
from fuseboard.contract.sync import decode_response, encode
from fuseboard.contract.words import Algorithm, Mode, Reason
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.integrations.asgi import FuseboardMiddleware
from fuseboard.integrations.problem import refusal
from fuseboard.integrations.wsgi import FuseboardMiddleware as WsgiMiddleware
from fuseboard.reporting.refusal_tokens import RefusalTokens
from tests.agents.published import publish
from tests.agents.servers import POLICY
from tests.agents.test_integrations_asgi import FakeAgent, hello, refused, tenant_of
from tests.contract.examples import EXAMPLES

KEY = RefusalKey(day=20_780, id=b"\1\2\3\4", key=b"k" * 32)
NOW_MS = 1_795_426_323_412


def signer(key=KEY, page=""):
    tokens = RefusalTokens()
    tokens.use_clock(lambda: NOW_MS * 1000 + 999)
    tokens.take(key, page)
    return tokens


def signed(decision, tokens):
    return msgspec.structs.replace(decision, signer=tokens, server="shop-2", revision=7)


def token_in(headers):
    token = read_token(headers["fuseboard-refusal"])
    assert token.is_signed(KEY.key)
    return token


def test_a_token_says_what_the_decision_says():
    decision = signed(refused(Reason.QUOTA), signer())
    token = read_token(decision.refusal_token())
    assert token.is_signed(KEY.key)
    assert (token.at_ms, token.revision, token.retry_after_ms) == (NOW_MS, 7, 1_500)
    assert (token.reason, token.mode) == (Reason.QUOTA, Mode.SHARED)
    assert token.is_rule(KEY.key, "", "burst")
    assert token.is_tenant(KEY.key, "acme")
    assert token.is_server(KEY.key, "shop-2")


def test_an_allowed_call_has_no_token():
    assert Decision(allowed=True, signer=signer()).refusal_token() == ""


def test_without_a_key_there_is_no_token_and_the_answer_is_as_before():
    decision = refused(Reason.QUOTA, retry_after_ms=0)
    assert signed(decision, signer(None)).refusal_token() == ""
    assert refusal(signed(decision, signer(None))) == refusal(decision)
    assert "fuseboard-refusal" not in dict(refusal(decision)[1])


def test_a_control_plane_without_keys_leaves_the_last_one():
    tokens = signer()
    tokens.take(None)
    assert read_token(tokens.sign(refused(Reason.QUOTA))).is_signed(KEY.key)
    later = RefusalKey(day=20_781, id=b"\5\6\7\x08", key=b"l" * 32)
    tokens.take(later)
    assert read_token(tokens.sign(refused(Reason.QUOTA))).is_signed(later.key)


def test_header_and_problem_carry_the_same_token():
    status, headers, body = refusal(signed(refused(Reason.QUOTA), signer()))
    assert status == 429
    text = dict(headers)["fuseboard-refusal"]
    assert msgspec.json.decode(body)["instance"] == f"urn:fuseboard:refusal:{text}"


def test_two_answers_never_have_the_same_token():
    decision = signed(refused(Reason.QUOTA), signer())
    random.seed(7)
    assert len({decision.refusal_token() for _ in range(200)}) == 200


async def test_the_asgi_middleware_sends_the_token():
    agent = FakeAgent(signed(refused(Reason.QUOTA), signer()))
    transport = httpx.ASGITransport(FuseboardMiddleware(hello, agent, tenant_of))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        response = await client.get("/", headers={"X-Tenant": "acme"})
    assert response.status_code == 429
    assert token_in(response.headers).reason is Reason.QUOTA


async def test_a_refused_call_that_escapes_from_the_application_has_a_token_too():
    async def calling(scope, receive, send):
        decision = Decision(allowed=False, reason=Reason.BREAKER_OPEN, rule="llm", dependency="llm")
        raise Refused(signed(decision, signer()))

    agent = FakeAgent(Decision(allowed=True))
    transport = httpx.ASGITransport(FuseboardMiddleware(calling, agent, tenant_of))
    async with httpx.AsyncClient(transport=transport, base_url="http://shop") as client:
        response = await client.get("/", headers={"X-Tenant": "acme"})
    assert response.status_code == 503
    token = token_in(response.headers)
    assert token.reason is Reason.BREAKER_OPEN
    assert token.is_rule(KEY.key, "llm", "llm")


def test_the_wsgi_middleware_sends_the_token():
    class Agent:
        def enter_request(self, *asked):
            return signed(refused(Reason.SHED), signer())

    answered = {}

    def start_response(status, headers):
        answered.update({name.lower(): value for name, value in headers}, status=status)

    environ = {"REQUEST_METHOD": "GET", "PATH_INFO": "/"}
    list(WsgiMiddleware(lambda *_: [], Agent(), lambda environ: "acme")(environ, start_response))
    assert answered["status"].startswith("503")
    assert token_in(answered).reason is Reason.SHED


async def test_an_agent_signs_its_refusals_with_the_key_of_its_heartbeat(limits, redis_url, tmp_path):
    spent = Limit(name="requests", limit=1, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
    publish(limits, msgspec.structs.replace(POLICY, tiers=(Tier(name="free", quotas=(spent,)),)), revision=7)
    async with Agent(settings=AgentSettings(redis_url=redis_url, state_dir=tmp_path)) as agent:
        assert (await agent.admit_request("acme")).allowed
        decision = await agent.admit_request("acme")
        assert (decision.reason, decision.refusal_token()) == (Reason.QUOTA, "")
        agent._runtime.refusal_tokens.take(KEY)
        token = read_token(decision.refusal_token())
        assert token.is_signed(KEY.key)
        assert token.is_server(KEY.key, agent.settings.server)
        assert token.is_rule(KEY.key, "", "requests")
        assert token.revision == 7
        # The same token-maker for a call that is refused because no time is left.
        with pytest.raises(Refused) as late:
            await agent.admit_call("llm", deadline_s=1e-9)
        assert read_token(late.value.decision.refusal_token()).reason is Reason.QUEUE_TIMEOUT


def test_decisions_can_still_be_logged_compared_copied_and_encoded_without_the_key():
    decision = signed(refused(Reason.QUOTA), signer())
    assert decision == signed(refused(Reason.QUOTA), signer(None))
    for text in (repr(decision), repr(deepcopy(decision)), msgspec.json.encode(decision).decode()):
        assert "burst" in text
        assert "kkkk" not in text
        assert "a2tr" not in text  # the same in base64
    assert msgspec.to_builtins(decision)["rule"] == "burst"


def test_the_answer_names_the_page_that_explains_it_if_one_is_configured():
    decision = signed(refused(Reason.QUOTA), signer(page="https://fuseboard.example.com/explain"))
    _, headers, body = refusal(decision)
    named = dict(headers)
    page = f"https://fuseboard.example.com/explain#{named['fuseboard-refusal']}"
    assert named["link"] == f'<{page}>; rel="help"'
    assert msgspec.json.decode(body)["explain_url"] == page
    assert decision.explain_url().startswith("https://fuseboard.example.com/explain#fr1.")
    for silent in (signed(refused(Reason.QUOTA), signer()), refused(Reason.QUOTA)):
        _, headers, body = refusal(silent)
        assert "link" not in dict(headers)
        assert "explain_url" not in msgspec.json.decode(body)
        assert silent.explain_url() == ""
    assert Decision(allowed=True, signer=decision.signer).explain_url() == ""


def test_a_page_that_is_removed_is_named_no_more_and_a_silent_control_plane_changes_nothing():
    tokens = signer(page="https://fuseboard.example.com/explain")
    tokens.take(None)
    assert tokens.explain_url("fr1.x") == "https://fuseboard.example.com/explain#fr1.x"
    tokens.take(KEY)
    assert tokens.explain_url("fr1.x") == ""


@pytest.mark.parametrize(
    "page", ["https://x/a#b", "ftp://x/", "https://x/>; rel=y", "https://x/\r\nA: b", "https://"]
)
def test_a_page_that_breaks_a_header_is_not_decoded(page):
    response = msgspec.structs.replace(EXAMPLES["sync_response.5.json"], explain_url=page)
    with pytest.raises(msgspec.ValidationError, match="explain_url"):
        decode_response(encode(response))
