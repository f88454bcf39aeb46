"""httpx transports that guard one dependency.

::

    client = httpx.AsyncClient(transport=GuardedTransport(agent, dependency="payments-api"))
    client = httpx.Client(transport=BlockingGuardedTransport(agent, dependency="payments-api"))

A refused request raises ``CallRefused``, which is both ``fuseboard.Refused`` (it carries the decision)
and ``httpx.TransportError``: code that handles an unavailable vendor handles an open breaker too. Every
attempt is admitted separately, so a client that retries must not retry ``fuseboard.Refused`` before
``decision.retry_after_ms`` is over.

Failures are 5xx, timeouts and broken connections, also while the body is read. 4xx and
cancelled requests say nothing about the dependency. A success is slow when its headers took longer than
the breaker's ``slow_ms``; the time of streaming a body does not count. After a 429, or a 503 with
``Retry-After``, the whole fleet stops calling for that time, at most an hour. A request without a
timeout gets the dependency's.

With ``retry=True``, a failed request is sent again as the policy of the dependency allows, see
docs/protection.md: each attempt is admitted by itself. Not repeated are requests that may have arrived and
are not idempotent, unless ``idempotent=True``, requests whose body is generated, and requests whose answer
has a body of more than 64 KiB. If no attempt succeeds, the last answer is returned, or the last error raised.
"""

import httpx

from fuseboard.integrations.guarded_request import RequestRefused
from fuseboard.integrations.httpx_family import AsyncGuard, BlockingGuard


class CallRefused(RequestRefused, httpx.TransportError):
    """The request was not sent. ``decision`` says why, and when to try again."""


class GuardedTransport(AsyncGuard[httpx.AsyncBaseTransport], httpx.AsyncBaseTransport):
    """The transport of ``httpx.AsyncClient``."""

    _library, _refused = httpx, CallRefused


class BlockingGuardedTransport(BlockingGuard[httpx.BaseTransport], httpx.BaseTransport):
    """The transport of ``httpx.Client``."""

    _library, _refused = httpx, CallRefused
