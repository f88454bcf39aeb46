"""Names each request, so that its log lines, its answer and its audit entries can be found together.

A client or a proxy can name the request in ``X-Request-Id``; otherwise it gets a new id. The ids of a
trace are taken over from the ``traceparent`` of W3C Trace Context.
"""

import re
from collections.abc import Callable
from secrets import token_hex

from django.http import HttpRequest, HttpResponse
from structlog.contextvars import bound_contextvars, get_contextvars

HEADER = "X-Request-Id"
#: Ids that a client can choose. They go into logs, so no others do.
_SANE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/+=@-]{0,63}", re.ASCII)
#: version-trace-parent-flags. Later versions can append fields; version ff is invalid.
_TRACEPARENT = re.compile(
    r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.{0,200})?", re.ASCII
)


class RequestIds:
    """Adds ``request_id`` to every log line of a request and to its answer; ``trace_id`` and ``span_id`` too
    if the client sends them.
    """

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponse:
        request_id = id_of(request.headers.get(HEADER, ""))
        with bound_contextvars(request_id=request_id, **trace_of(request.headers.get("traceparent", ""))):
            response = self.get_response(request)
        response.headers[HEADER] = request_id
        return response


def id_of(given: str) -> str:
    """The id that the client chose, or a new one."""
    return given if _SANE.fullmatch(given) else token_hex(16)


def current() -> dict[str, str]:
    """``request_id`` and ``trace_id`` of the request that this thread or task answers; empty for none."""
    bound = get_contextvars()
    return {name: str(bound.get(name, "")) for name in ("request_id", "trace_id")}


def trace_of(traceparent: str) -> dict[str, str]:
    """The ids of a trace, by their names in the log; empty for a header that is missing or invalid."""
    found = _TRACEPARENT.fullmatch(traceparent)
    if found is None:
        return {}
    version, trace_id, span_id, more = found.groups()
    if not trace_id.strip("0") or not span_id.strip("0") or (version == "00" and more):
        return {}
    return {"trace_id": trace_id, "span_id": span_id}
