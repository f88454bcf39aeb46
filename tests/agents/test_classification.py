"""What failed calls say, with the real exceptions of the client libraries."""

import asyncio
import json
import pickle
import socket
import ssl
from typing import Any, ClassVar

import anthropic
import httpx
import httpx2
import openai
import pytest
import requests
import urllib3.exceptions

import fuseboard
from fuseboard.calling.classification import classify, classify_answer, known_repeatable
from fuseboard.calling.outcomes import judge, outcome_of_response, outcome_of_status
from fuseboard.calling.retry_after import asked_to_wait_ms
from fuseboard.calling.vendor_codes import code_in
from fuseboard.contract.words import Outcome, Reason
from fuseboard.decision import Decision
from fuseboard.errors import Refused

SENT = httpx2.Request("POST", "https://vendor.example.com/v1/messages")


def flags(error: BaseException) -> str:
    """R retryable, T trips, A alertable, D degradable, C cools the fleet."""
    return flags_of(classify(error))


def flags_of(verdict: fuseboard.Verdict) -> str:
    return "".join(
        letter
        for letter, flag in zip(
            "RTADC",
            (
                verdict.retryable,
                verdict.trips,
                verdict.alertable,
                verdict.degradable,
                verdict.cooldown_ms,
            ),
            strict=True,
        )
        if flag
    )


def caused(error: Exception, *causes: BaseException) -> Exception:
    """``error`` raised from the first of ``causes``, which was raised from the next, and so on."""
    link: BaseException = error
    for cause in causes:
        link.__cause__ = cause
        link = cause
    return error


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (200, ""), (302, ""), (408, "R"), (409, ""), (425, "R"), (429, "R"),
        (500, "RTA"), (502, "RT"), (503, "RT"), (504, "RT"), (522, "RT"), (529, "RT"),
        (400, ""), (404, ""), (405, ""), (410, ""), (422, ""), (413, "D"),
        (401, "A"), (402, "A"), (403, "A"), (501, "TA"), (505, "TA"), (511, "TA"),
    ],
)  # fmt: skip
def test_each_status_is_in_the_table(status: int, expected: str):
    assert flags_of(classify_answer(status, {})) == expected


@pytest.mark.parametrize(
    ("status", "expected"),
    [(425, "RC"), (429, "RC"), (503, "RTC"), (529, "RTC"), (500, "RTA"), (408, "R"), (400, "")],
)
def test_a_time_to_come_back_cools_the_fleet_where_the_vendor_is_short(status: int, expected: str):
    assert flags_of(classify_answer(status, {"retry-after": "5"})) == expected


@pytest.mark.parametrize(
    ("status", "outcome"),
    [
        (200, Outcome.OK),
        (302, Outcome.OK),
        (400, Outcome.NEUTRAL),
        (408, Outcome.NEUTRAL),
        (429, Outcome.NEUTRAL),
        (500, Outcome.FAILURE),
        (511, Outcome.FAILURE),
    ],
)
def test_the_breaker_counts_each_status(status: int, outcome: Outcome):
    assert outcome_of_status(status) is outcome
    # After a 429 without a time, the fleet waits for a second, and asks again whether there is room.
    assert outcome_of_response(status, {}) == (outcome, 1000 if status == 429 else 0)


def test_a_vendor_says_whether_to_repeat_a_request():
    assert classify_answer(409, {"x-should-retry": "true"}).retryable
    assert not classify_answer(503, {"x-should-retry": "false"}).retryable
    assert classify_answer(503, {"x-should-retry": "maybe"}).retryable
    assert not classify_answer(429, {"x-should-retry": "true"}, "insufficient_quota").retryable
    # No attempt succeeds until a person acts.
    assert not classify_answer(400, {"x-should-retry": "true"}, "authentication_error").retryable
    assert not classify_answer(402, {"x-should-retry": "true"}).retryable


@pytest.mark.parametrize(
    ("headers", "milliseconds"),
    [
        ({"retry-after-ms": "1500.7", "retry-after": "9"}, 1500),
        ({"retry-after": "2.5"}, 2500),
        ({"retry-after": "9"}, 9000),
        ({"retry-after-ms": "soon", "retry-after": "9"}, 9000),
        ({"retry-after-ms": "-1"}, 0),
        # Less than a millisecond hid the other header.
        ({"retry-after-ms": "0.4"}, 1),
        ({"retry-after-ms": "0", "retry-after": "9"}, 9000),
        # Milliseconds since 1970 are a mistake of an hour, not no time at all.
        ({"retry-after": "1764000000000"}, 3_600_000),
        ({"retry-after": "9" * 400}, 3_600_000),
        ({"retry-after-ms": "9" * 400}, 3_600_000),
        ({"retry-after-ms": "999999999999"}, 3_600_000),
        ({"retry-after": "1e9"}, 0),
        ({"retry-after": "nan"}, 0),
        ({}, 0),
    ],
)
def test_vendors_ask_for_milliseconds_and_for_parts_of_seconds(headers: dict[str, str], milliseconds: int):
    assert asked_to_wait_ms(headers) == milliseconds


BUILTINS: list[tuple[BaseException, str]] = [
    (ConnectionError(), "RT"),
    (ConnectionResetError(), "RT"),
    (ConnectionRefusedError(), "RT"),
    (ConnectionAbortedError(), "RT"),
    (BrokenPipeError(), "RT"),
    (TimeoutError(), "RT"),
    (socket.timeout(), "RT"),  # noqa: UP041 - the name that old code raises
    (ssl.SSLEOFError(), "RT"),
    (ssl.SSLCertVerificationError(), "A"),
    (socket.gaierror(socket.EAI_AGAIN, "again"), "RT"),
    (socket.gaierror(socket.EAI_NONAME, "no such name"), "A"),
    (asyncio.CancelledError(), ""),
    (KeyboardInterrupt(), ""),
    (Refused(Decision(allowed=False, reason=Reason.QUOTA)), ""),
    (fuseboard.Misconfigured("a wrong name"), ""),
    (ValueError("an answer that does not parse"), "TA"),
]


@pytest.mark.parametrize(("error", "expected"), BUILTINS, ids=lambda value: repr(value))
def test_each_builtin_exception_is_in_the_table(error: BaseException, expected: str):
    assert flags(error) == expected


@pytest.mark.parametrize("library", [httpx, httpx2], ids=lambda library: library.__name__)
@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            "ConnectError ConnectTimeout ReadTimeout WriteTimeout ReadError WriteError CloseError"
            " RemoteProtocolError ProxyError",
            "RT",
        ),
        ("PoolTimeout", ""),
        (
            "UnsupportedProtocol LocalProtocolError InvalidURL CookieConflict TooManyRedirects",
            "A",
        ),
        # The error was neutral, so a vendor whose answers cannot be read never opened the breaker.
        ("DecodingError", "TA"),
    ],
)
def test_httpx_and_httpx2_have_the_same_table(library: Any, names: str, expected: str):
    for name in names.split():
        assert flags(getattr(library, name)("broken")) == expected, name
    for error in (library.StreamConsumed(), library.StreamClosed(), library.ResponseNotRead()):
        assert flags(error) == ""


def test_a_broken_stream_of_events_is_no_failure():
    from httpx2._sse import SSEError

    assert flags(SSEError("too long")) == ""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (requests.ConnectionError(), "RT"),
        (requests.exceptions.ProxyError(), "RT"),
        (requests.ConnectTimeout(), "RT"),
        (requests.ReadTimeout(), "RT"),
        (requests.Timeout(), "RT"),
        (requests.exceptions.ChunkedEncodingError(), "RT"),
        # Its TLS end drops connections. That is no certificate that does not match.
        (requests.exceptions.SSLError(), "RT"),
        (requests.exceptions.SSLError(ssl.SSLEOFError()), "RT"),
        (requests.exceptions.SSLError(ssl.SSLCertVerificationError()), "A"),
        (requests.exceptions.InvalidURL(), "A"),
        (requests.exceptions.MissingSchema(), "A"),
        (requests.exceptions.InvalidSchema(), "A"),
        (requests.exceptions.InvalidHeader(), "A"),
        (requests.TooManyRedirects(), "A"),
        (requests.JSONDecodeError("", "", 0), "TA"),
        (requests.exceptions.ContentDecodingError(), "TA"),
        (requests.exceptions.UnrewindableBodyError(), "A"),
        (requests.exceptions.RetryError(), ""),
    ],
    ids=lambda value: repr(value),
)
def test_each_exception_of_requests_is_in_the_table(error: Exception, expected: str):
    assert flags(error) == expected


def test_what_was_surely_not_sent_is_recognized():
    pool: Any = None
    not_made = urllib3.exceptions.NewConnectionError(pool, "refused")
    lost = urllib3.exceptions.ProtocolError("aborted", ConnectionResetError())
    for error, sent in (
        (ConnectionRefusedError(), False),
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (httpx.ConnectError("refused"), False),
        (httpx.ConnectTimeout("late"), False),
        (httpx.ReadTimeout("late"), True),
        (caused(openai.APIConnectionError(request=SENT), httpx2.ConnectError("refused")), False),
        (caused(openai.APITimeoutError(request=SENT), httpx2.ReadTimeout("late")), True),
        (requests.ConnectionError(urllib3.exceptions.MaxRetryError(pool, "/", not_made)), False),
        (requests.ConnectionError(lost), True),
        (requests.ConnectTimeout(), False),
        # urllib3 1.26 wraps what broke behind a proxy like what never reached it.
        (
            requests.exceptions.ProxyError(urllib3.exceptions.ProxyError("broken", ConnectionResetError())),
            True,
        ),
        (requests.exceptions.ProxyError(urllib3.exceptions.ProxyError("no proxy", not_made)), False),
    ):
        assert classify(error).sent is sent, repr(error)
        assert classify(error).retryable


def test_no_free_connection_of_the_own_pool_is_neutral_also_inside_a_client():
    for library in (httpx, httpx2):
        assert judge(library.PoolTimeout("full")) == (Outcome.NEUTRAL, 0)
    wrapped = caused(openai.APITimeoutError(request=SENT), httpx2.PoolTimeout("full"))
    assert judge(wrapped) == (Outcome.NEUTRAL, 0)
    refused = Refused(Decision(allowed=False, reason=Reason.BREAKER_OPEN))
    assert judge(caused(anthropic.APIConnectionError(request=SENT), refused)) == (Outcome.NEUTRAL, 0)


def answer(status: int, body: object = None, **headers: str) -> httpx2.Response:
    return httpx2.Response(
        status, headers={name.replace("_", "-"): text for name, text in headers.items()},
        content=json.dumps(body), request=SENT,
    )  # fmt: skip


def of_openai(status: int, code: str | None = None, kind: str | None = None, **headers: str) -> Exception:
    client = openai.OpenAI(api_key="made-up")
    with client:
        return client._make_status_error_from_response(
            answer(status, {"error": {"message": "no", "code": code, "type": kind}}, **headers)
        )


def of_anthropic(
    status: int, kind: str | None = None, message: str = "no", **headers: str
) -> anthropic.APIStatusError:
    with anthropic.Anthropic(api_key="made-up") as client:
        return client._make_status_error_from_response(
            answer(status, {"type": "error", "error": {"type": kind, "message": message}}, **headers)
        )


OPENAI: list[tuple[Exception, str]] = [
    (of_openai(429, "rate_limit_exceeded"), "R"),
    (of_openai(429, "rate_limit_exceeded", retry_after="20"), "RC"),
    (of_openai(429, "insufficient_quota", "insufficient_quota", retry_after="3600"), "A"),
    (of_openai(429, None, "insufficient_quota", retry_after="3600"), "A"),
    (of_openai(429, "billing_hard_limit_reached"), "A"),
    (of_openai(429, "something_new"), "R"),
    (of_openai(401, "invalid_api_key", "invalid_request_error"), "A"),
    (of_openai(401, None, "invalid_request_error"), "A"),
    (of_openai(403, "account_deactivated"), "A"),
    (of_openai(400, "context_length_exceeded", "invalid_request_error"), "D"),
    (of_openai(400, "content_policy_violation"), ""),
    (of_openai(400, "invalid_prompt"), ""),
    (of_openai(404, "model_not_found"), ""),
    (of_openai(400, None, "invalid_request_error"), ""),
    (of_openai(400, "bio_policy"), ""),
    (of_openai(409), ""),
    (of_openai(422), ""),
    (of_openai(408), "R"),
    (of_openai(500, "server_error"), "RTA"),
    (of_openai(503, "server_error", retry_after="7"), "RTAC"),
    (of_openai(503, "engine_overloaded"), "RT"),
    (of_openai(504, "timeout"), "RT"),
    (of_openai(400, "model_overloaded"), "RT"),
    (openai.APIError("in a stream", SENT, body={"code": "model_overloaded"}), "RT"),
    (openai.APIConnectionError(request=SENT), "RT"),
    (openai.APITimeoutError(request=SENT), "RT"),
    (openai.APIError("in a stream", SENT, body={"code": "server_error", "type": "server_error"}), "RTA"),
    (openai.APIError("in a stream", SENT, body={"code": "rate_limit_exceeded"}), "R"),
    (openai.APIError("in a stream", SENT, body={"code": None, "type": "invalid_request_error"}), ""),
    (openai.APIError("in a stream", SENT, body={"code": "context_length_exceeded"}), "D"),
    (openai.APIResponseValidationError(answer(200), None), "A"),
    (openai.ContentFilterFinishReasonError(), ""),
    (openai._exceptions.SubjectTokenProviderError("no token", response=answer(500)), "A"),
    (openai._exceptions.WebSocketQueueFullError(), ""),
]

ANTHROPIC: list[tuple[Exception, str]] = [
    (of_anthropic(429, "rate_limit_error"), "R"),
    (of_anthropic(429, "rate_limit_error", retry_after="20"), "RC"),
    (of_anthropic(500, "api_error"), "RTA"),
    (of_anthropic(529, "overloaded_error"), "RT"),
    (of_anthropic(504, "timeout_error"), "RT"),
    # A stream has begun with status 200 when these arrive.
    (of_anthropic(200, "overloaded_error"), "RT"),
    (of_anthropic(200, "api_error"), "RTA"),
    (of_anthropic(200, "invalid_request_error"), ""),
    (of_anthropic(401, "authentication_error"), "A"),
    (of_anthropic(403, "permission_error"), "A"),
    (of_anthropic(402, "billing_error"), "A"),
    (of_anthropic(400, "invalid_request_error"), ""),
    (of_anthropic(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000"), "D"),
    (of_anthropic(404, "not_found_error"), ""),
    (of_anthropic(413, "request_too_large"), "D"),
    (of_anthropic(409, "conflict_error"), ""),
    (of_anthropic(408), "R"),
    (of_anthropic(412), ""),
    (of_anthropic(499), ""),
    (of_anthropic(501), "TA"),
    (of_anthropic(503), "RT"),
    (anthropic.APIConnectionError(request=SENT), "RT"),
    (anthropic.APITimeoutError(request=SENT), "RT"),
    (anthropic.CredentialsError("no key"), "A"),
    (anthropic.RetryableError("opted in"), "RT"),
]


@pytest.mark.parametrize(("error", "expected"), OPENAI, ids=lambda value: repr(value)[:60])
def test_each_error_of_openai_is_in_the_table(error: Exception, expected: str):
    assert flags(error) == expected


@pytest.mark.parametrize(("error", "expected"), ANTHROPIC, ids=lambda value: repr(value)[:60])
def test_each_error_of_anthropic_is_in_the_table(error: Exception, expected: str):
    assert flags(error) == expected


TOO_LARGE = "Request too large for gpt-5 on tokens per min (TPM): Limit 30000, Requested 30601."
BUSY = "Rate limit reached for gpt-5 on tokens per min (TPM): Limit 30000, Used 29900, Requested 601."
NO_CREDIT = "Your credit balance is too low to access the Anthropic API."


@pytest.mark.parametrize(
    ("answered", "expected"),
    [
        # The call never fits. The calls of others do.
        ((429, {"retry-after": "1"}, "rate_limit_exceeded", TOO_LARGE), "D"),
        ((429, {"x-should-retry": "true"}, "tokens", TOO_LARGE), "D"),
        ((429, {}, "", "Limit 30000, Requested 30601"), "D"),
        ((429, {"retry-after": "1"}, "rate_limit_exceeded", BUSY), "RC"),
        ((429, {"retry-after": "1"}, "", "Limit 30000, Requested 601"), "RC"),
        # The account cannot be used: no pause that the fleet takes from the vendor.
        ((429, {"retry-after": "86400"}, "", ""), "A"),
        ((429, {"retry-after": "86400"}, "rate_limit_exceeded", "the monthly limit"), "A"),
        ((429, {"retry-after-ms": "7200000"}, "", ""), "A"),
        ((429, {"retry-after": "60"}, "rate_limit_error", "You have reached your spend limit."), "A"),
        ((429, {}, "billing_hard_limit_reached", ""), "A"),
        ((400, {}, "invalid_request_error", NO_CREDIT), "A"),
        ((400, {}, "billing_not_active", ""), "A"),
        # An hour is obeyed. A time of centuries is a mistake.
        ((429, {"retry-after": "3600"}, "", ""), "RC"),
        ((429, {"retry-after": "1764000000000"}, "", ""), "RC"),
        # Others say the same in their own words.
        ((429, {}, "RESOURCE_EXHAUSTED", ""), "R"),
        ((400, {}, "ThrottlingException", ""), "R"),
        ((503, {}, "UNAVAILABLE", ""), "RT"),
        ((400, {}, "ValidationException", ""), ""),
    ],
)  # fmt: skip
def test_codes_and_texts_of_vendors(answered: tuple[int, dict[str, str], str, str], expected: str):
    assert flags_of(classify_answer(*answered)) == expected


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"error": {"code": "rate_limit_exceeded", "message": TOO_LARGE}}, "request_too_large"),
        ({"error": {"type": "invalid_request_error", "message": NO_CREDIT}}, "billing_error"),
        ({"error": {"code": "insufficient_quota", "message": TOO_LARGE}}, "insufficient_quota"),
        ({"error": {"code": 429, "status": "RESOURCE_EXHAUSTED", "message": "..."}}, "RESOURCE_EXHAUSTED"),
        ({"__type": "ThrottlingException", "message": "Too many requests"}, "ThrottlingException"),
        ({"error": "invalid_grant"}, ""),
        ({"message": 7}, ""),
        ([], ""),
    ],
)  # fmt: skip
def test_the_code_in_a_body(document: object, code: str):
    assert code_in(document) == code


def test_clients_of_google_and_aws_have_their_answer_elsewhere():
    class OfGoogle(Exception):
        code, status, message = 429, "RESOURCE_EXHAUSTED", "quota"

    class OfAws(Exception):
        response: ClassVar = {
            "Error": {"Code": "ThrottlingException"},
            "ResponseMetadata": {"HTTPStatusCode": 400, "HTTPHeaders": {"retry-after": "2"}},
        }

    OfGoogle.__module__, OfAws.__module__ = "google.genai.errors", "botocore.exceptions"
    assert flags(OfGoogle()) == "R"
    assert flags(OfAws()) == "RC"


def test_no_money_left_neither_trips_nor_cools_the_fleet():
    error = of_openai(429, "insufficient_quota", "insufficient_quota", retry_after="3600")
    assert isinstance(error, openai.RateLimitError)
    assert judge(error) == (Outcome.NEUTRAL, 0)
    verdict = classify(error)
    assert (verdict.code, verdict.status, verdict.cooldown_ms) == ("insufficient_quota", 429, 0)


def test_an_overload_in_the_middle_of_a_stream_is_a_failure():
    error = of_anthropic(200, "overloaded_error")
    assert error.status_code == 200
    assert judge(error) == (Outcome.FAILURE, 0)
    assert classify(error).status == 529


def test_a_request_that_may_be_repeated_is_recognized():
    key = {"Idempotency-Key": "order-7"}
    for library in (httpx, httpx2):
        for method, headers, expected in (("GET", {}, True), ("post", {}, None), ("POST", key, True)):
            request = library.Request(method, "https://vendor.example.com/", headers=headers)
            assert known_repeatable(request) is expected
    assert known_repeatable(requests.Request("DELETE", "https://vendor.example.com/").prepare()) is True
    assert known_repeatable(object()) is None


def test_classify_never_raises():
    class Rude(Exception):
        @property
        def response(self) -> object:
            raise RuntimeError("not now")

        def __str__(self) -> str:
            raise RuntimeError("not now")

    assert flags(Rude()) == "TA"
    assert known_repeatable(Rude()) is None


def test_a_verdict_can_be_passed_on():
    verdict = fuseboard.classify(TimeoutError())
    assert isinstance(verdict, fuseboard.Verdict)
    assert pickle.loads(pickle.dumps(verdict)) == verdict  # noqa: S301 - our own
