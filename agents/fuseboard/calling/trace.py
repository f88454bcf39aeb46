"""The trace that this task belongs to: of OpenTelemetry if the application uses it, else of its request."""

import re
import sys
from collections.abc import Callable
from contextvars import ContextVar

#: Returns the ``traceparent`` of the request that is served. It is read only when a call fails.
_header: ContextVar[Callable[[], str] | None] = ContextVar("fuseboard_traceparent", default=None)

#: Version, trace id, parent id, flags, as W3C Trace Context writes them.
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(?:-.*)?"
)
_MAX_LETTERS = 200


#: Begin to serve a request: takes a function that returns its ``traceparent``, empty for none, and returns a
#: token for ``leave_request``. Both are the methods themselves, because every request calls them.
enter_request = _header.set
leave_request = _header.reset


def trace_id() -> str:
    """The id as W3C writes it; empty without a trace. OpenTelemetry is not imported for it."""
    api = sys.modules.get("opentelemetry.trace")
    found = api.get_current_span().get_span_context().trace_id if api is not None else 0
    if found:
        return format(found, "032x")
    header = _header.get()
    return trace_of(header()) if header is not None else ""


def traceparent() -> str:
    """The header of the request that is served, for whoever serves a part of it; empty without one."""
    header = _header.get()
    return header() if header is not None else ""


def trace_of(traceparent: str) -> str:
    """The trace id in a ``traceparent``; empty when it has none."""
    found = _TRACEPARENT.fullmatch(traceparent.strip()[:_MAX_LETTERS])
    return found[1] if found else ""
