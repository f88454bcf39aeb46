"""A request has one id in its answer and in its log lines."""

import re

import pytest
import structlog
from django.http import HttpResponse
from django.test import Client, RequestFactory
from structlog.contextvars import clear_contextvars, get_contextvars
from structlog.testing import capture_logs

from controlplane.request_ids import RequestIds, trace_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
MADE = re.compile(r"[0-9a-f]{32}")


def answered(**headers):
    """The id in the answer, and what every log line of the request contains."""
    seen = {}

    def view(request):
        seen.update(get_contextvars())
        return HttpResponse()

    # What an earlier test has left here is not of this request.
    clear_contextvars()
    request = RequestFactory().get("/", headers=headers)
    answer = RequestIds(view)(request)
    assert get_contextvars() == {}
    return answer.headers["X-Request-Id"], seen


def test_the_id_of_a_client_is_taken_over():
    assert answered(**{"x-request-id": "edge-7.a:b"}) == ("edge-7.a:b", {"request_id": "edge-7.a:b"})


@pytest.mark.parametrize("given", ["", "a" * 65, "two words", 'a"b', "-x", "é", "a\x1b[31m", "<b>"])
def test_an_id_that_is_missing_or_not_sane_is_replaced(given):
    request_id, seen = answered(**({"x-request-id": given} if given else {}))
    assert MADE.fullmatch(request_id)
    assert seen == {"request_id": request_id}


def test_two_requests_have_two_ids():
    assert answered()[0] != answered()[0]


def test_the_trace_of_a_client_is_in_the_log():
    _, seen = answered(traceparent=f"00-{TRACE}-{SPAN}-01")
    assert (seen["trace_id"], seen["span_id"]) == (TRACE, SPAN)


@pytest.mark.parametrize(
    "invalid",
    [
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01\n",
    ],
)
def test_an_invalid_trace_is_ignored(invalid):
    assert trace_of(invalid) == {}


def test_a_later_version_may_append_fields():
    assert trace_of(f"01-{TRACE}-{SPAN}-01-more") == {"trace_id": TRACE, "span_id": SPAN}


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/healthz", "/login/", "/api/v1/environments", "/nowhere"])
def test_every_answer_has_an_id(path):
    answer = Client().get(path, headers={"x-request-id": "edge-1"})
    assert answer.headers["X-Request-Id"] == "edge-1"


def test_a_log_line_of_a_request_has_its_id():
    def view(_):
        structlog.get_logger("test").warning("test.said")
        return HttpResponse()

    headers = {"x-request-id": "edge-2", "traceparent": f"00-{TRACE}-{SPAN}-00"}
    with capture_logs(processors=[structlog.contextvars.merge_contextvars]) as logs:
        RequestIds(view)(RequestFactory().get("/", headers=headers))
    ids = {"request_id": "edge-2", "trace_id": TRACE, "span_id": SPAN}
    assert logs == [{"event": "test.said", "log_level": "warning"} | ids]
