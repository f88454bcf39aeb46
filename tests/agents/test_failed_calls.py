"""How calls failed, as a heartbeat reports it."""

import json
from collections.abc import MutableMapping
from typing import Any

import pytest

from fuseboard.calling import trace
from fuseboard.calling.classification import classify_answer, examine
from fuseboard.calling.failures import is_noted, kind_of, kind_of_answer
from fuseboard.calling.outcomes import judge_permitted, outcome_of
from fuseboard.contract.failures import MAX_CALLS, MAX_FAILED_DEPENDENCIES, MAX_KINDS, is_kind
from fuseboard.contract.heartbeat_size import cut_to
from fuseboard.contract.sync import SyncRequest, encode
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.integrations.asgi import FuseboardMiddleware
from fuseboard.integrations.wsgi import FuseboardMiddleware as WsgiMiddleware
from fuseboard.reporting.counters import Counters

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class VendorError(Exception):
    def __init__(self, status: int) -> None:
        super().__init__("sk-secret at https://vendor.example/orders/17")
        self.status_code = status


def permit() -> Permit:
    return Permit(made=Decision(allowed=True, dependency="openai"), dependency="openai", generation=1)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (VendorError(503), "HTTP 503"),
        (TimeoutError(), "timeout"),
        (ConnectionRefusedError("10.1.2.3"), "ConnectionRefusedError"),
        (type("Näme", (Exception,), {})(), "failure"),
        (type("A" * 80, (Exception,), {})(), "A" * 48),
    ],
)
def test_a_kind_is_a_word_and_never_a_message(error: Exception, kind: str) -> None:
    assert kind_of(examine(error)) == kind
    assert is_kind(kind)


def test_an_answer_is_named_by_the_code_of_the_vendor_or_by_its_status() -> None:
    assert kind_of_answer(classify_answer(429, {}, "insufficient_quota")) == "insufficient_quota"
    assert kind_of_answer(classify_answer(502, {})) == "HTTP 502"


def test_what_is_judged_a_failure_is_noted_with_the_permit() -> None:
    failed, fine = permit(), permit()
    assert judge_permitted(failed, VendorError(500))[0] is Outcome.FAILURE
    assert failed.failure == ("HTTP 500", "")
    assert judge_permitted(fine, VendorError(404))[0] is Outcome.NEUTRAL
    assert fine.failure is None


@pytest.mark.parametrize(
    ("status", "headers", "code", "kind"),
    [
        (429, {"retry-after": "2"}, "", "HTTP 429"),
        (401, {}, "", "HTTP 401"),
        (403, {}, "", "HTTP 403"),
        (429, {}, "insufficient_quota", "insufficient_quota"),
    ],
)
def test_what_a_vendor_refuses_is_noted_although_it_is_no_failure_of_the_vendor(
    status: int, headers: dict[str, str], code: str, kind: str
) -> None:
    verdict = classify_answer(status, headers, code)
    assert outcome_of(verdict) is Outcome.NEUTRAL
    assert is_noted(verdict)
    refused = permit()
    if not headers and not code:
        assert judge_permitted(refused, VendorError(status)) == (Outcome.NEUTRAL, 0)
        assert refused.failure == (kind, "")
    counters = Counters()
    counters.call("openai", Outcome.NEUTRAL, (kind_of_answer(verdict), ""))
    (found,) = counters.failures()
    assert found.kinds == {kind: 1}


def test_counters_keep_the_newest_calls_and_totals_by_kind() -> None:
    counters = Counters()
    for number in range(5):
        counters.call("openai", Outcome.FAILURE, ("timeout", TRACE if number == 4 else ""))
    counters.call("openai", Outcome.SLOW, ("slow", ""))
    counters.call("openai", Outcome.NEUTRAL, None)
    counters.calls_ok("search", 3)
    (found,) = counters.failures()
    assert found.dependency == "openai"
    assert found.kinds == {"timeout": 5, "slow": 1}
    assert [(call.number, call.kind, call.trace) for call in found.last] == [
        (4, "timeout", ""),
        (5, "timeout", TRACE),
        (6, "slow", ""),
    ]


def test_kinds_calls_and_dependencies_are_bounded() -> None:
    counters = Counters()
    for dependency in range(MAX_FAILED_DEPENDENCIES + 50):
        for kind in range(MAX_KINDS + 5):
            counters.call(f"d{dependency}", Outcome.FAILURE, (f"kind{kind}", ""))
    found = counters.failures()
    assert len(found) == MAX_FAILED_DEPENDENCIES
    assert all(len(one.kinds) == MAX_KINDS + 1 and one.kinds["other"] == 5 for one in found)
    assert all(len(one.last) == MAX_CALLS for one in found)
    request = SyncRequest(
        environment="production",
        service="shop",
        server="web-1",
        boot="boot-0001",
        sequence=1,
        agent_version="0.2",
        failures=found,
    )
    cut, body = cut_to(request, 8_192, encode)
    assert len(body) <= 8_192
    assert cut.failures == found[: len(cut.failures)]
    assert cut.cut == len(found) - len(cut.failures)


@pytest.mark.parametrize(
    "header",
    ["", "nonsense", f"00-{'0' * 32}-00f067aa0ba902b7-01", f"ff-{TRACE}-00f067aa0ba902b7-01", "0" * 10_000],
)
def test_a_broken_traceparent_is_no_trace(header: str) -> None:
    assert trace.trace_of(header) == ""


def test_a_traceparent_is_read() -> None:
    assert trace.trace_of(TRACEPARENT) == TRACE


class NoLimits:
    """An agent for callers without a tenant: nothing is decided."""


async def test_a_failed_call_names_the_trace_of_the_asgi_request() -> None:
    failed = permit()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        judge_permitted(failed, VendorError(503))

    async def nothing(message: MutableMapping[str, Any] | None = None) -> Any:
        return {}

    middleware = FuseboardMiddleware(app, NoLimits(), lambda scope: None)  # type: ignore[arg-type]
    scope = {"type": "http", "method": "GET", "headers": [(b"traceparent", TRACEPARENT.encode())]}
    await middleware(scope, nothing, nothing)
    assert failed.failure == ("HTTP 503", TRACE)
    assert trace.trace_id() == ""


def test_a_failed_call_names_the_trace_of_the_wsgi_request() -> None:
    failed = permit()

    def app(environ: dict[str, Any], start_response: Any) -> list[bytes]:
        judge_permitted(failed, VendorError(503))
        return [json.dumps({}).encode()]

    middleware = WsgiMiddleware(app, NoLimits(), lambda environ: None)  # type: ignore[arg-type]
    environ = {"REQUEST_METHOD": "GET", "HTTP_TRACEPARENT": TRACEPARENT}
    list(middleware(environ, lambda *given: lambda data: None))
    assert failed.failure == ("HTTP 503", TRACE)
    assert trace.trace_id() == ""
