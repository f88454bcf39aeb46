"""httpx transports that guard one dependency.

::

    client = httpx.AsyncClient(transport=GuardedTransport(agent, dependency="payments-api"))
    client = httpx.Client(transport=BlockingGuardedTransport(agent, dependency="payments-api"))

A refused request raises ``CallRefused``, which is both ``fuseboard.Refused`` (it carries the decision)
and ``httpx.TransportError``: code that handles an unavailable vendor handles an open breaker too. Every
attempt is admitted separately, so a client that retries must not retry ``fuseboard.Refused`` before
``decision.retry_after_ms`` is over.

Failures are 5xx, 429, timeouts and broken connections, also while the body is read. Other 4xx and
cancelled requests say nothing about the dependency. A success is slow when its headers took longer than
the breaker's ``slow_ms``; the time of streaming a body does not count. After a 429 or 503 with
``Retry-After``, the whole fleet stops calling for that time, at most an hour. A request without a
timeout gets the dependency's.

With ``retry=True``, a failed request is sent again as the policy of the dependency allows, see
docs/protection.md: each attempt is admitted by itself. Not repeated are requests that may have arrived and
are not idempotent, unless ``idempotent=True``, requests whose body is generated, and requests whose answer
has a body of more than 64 KiB. If no attempt succeeds, the last answer is returned, or the last error raised.
"""

from collections.abc import AsyncIterator, Iterator
from types import ModuleType, TracebackType
from typing import Self

import httpx

from fuseboard.agent import Agent
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.integrations.guarded_http import AsyncGuard, BlockingGuard
from fuseboard.integrations.http_bodies import AsyncKept, Body, Kept


class CallRefused(Refused, httpx.TransportError):
    """The request was not sent. ``decision`` says why, and when to try again."""

    def __init__(self, decision: Decision, request: httpx.Request) -> None:
        httpx.TransportError.__init__(self, decision.explain(), request=request)
        self.decision = decision


class GuardedTransport(AsyncGuard, httpx.AsyncBaseTransport):
    """Admits each request, and reports how it ended, exactly once.

    With a ``tenant``, that tenant's quotas on the dependency apply too. If a request would be
    refused, it waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        dependency: str,
        tenant: str = "",
        transport: httpx.AsyncBaseTransport | None = None,
        wait_s: float | None = None,
        retry: bool = False,
        idempotent: bool | None = None,
    ) -> None:
        if transport is None:
            transport = httpx.AsyncHTTPTransport()
        super().__init__(dependency, tenant, transport, wait_s, retry, idempotent)
        self._agent = agent

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        await self._transport.__aexit__(exc_type, exc_value, traceback)

    async def aclose(self) -> None:
        await self._transport.aclose()

    @property
    def _library(self) -> ModuleType:
        return httpx

    def _refusal(self, decision: Decision, request: httpx.Request) -> CallRefused:
        return CallRefused(decision, request)

    def _stream(self, body: Body | AsyncKept | Kept) -> "_AsyncStream":
        assert not isinstance(body, Kept)  # noqa: S101 - an async transport's
        return _AsyncStream(body)


class BlockingGuardedTransport(BlockingGuard, httpx.BaseTransport):
    """The same for ``httpx.Client``, with an agent of ``fuseboard.blocking``."""

    def __init__(
        self,
        agent: BlockingAgent,
        *,
        dependency: str,
        tenant: str = "",
        transport: httpx.BaseTransport | None = None,
        wait_s: float | None = None,
        retry: bool = False,
        idempotent: bool | None = None,
    ) -> None:
        if transport is None:
            transport = httpx.HTTPTransport()
        super().__init__(dependency, tenant, transport, wait_s, retry, idempotent)
        self._agent = agent

    def __enter__(self) -> Self:
        self._transport.__enter__()
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None = None,
        exc_value: BaseException | None = None,
        traceback: TracebackType | None = None,
    ) -> None:
        self._transport.__exit__(exc_type, exc_value, traceback)

    def close(self) -> None:
        self._transport.close()

    @property
    def _library(self) -> ModuleType:
        return httpx

    def _refusal(self, decision: Decision, request: httpx.Request) -> CallRefused:
        return CallRefused(decision, request)

    def _stream(self, body: Body | AsyncKept | Kept) -> "_BlockingStream":
        assert not isinstance(body, AsyncKept)  # noqa: S101 - a blocking transport's
        return _BlockingStream(body)


class _AsyncStream(httpx.AsyncByteStream):
    def __init__(self, body: Body | AsyncKept) -> None:
        self._body = body
        #: The original stream.
        self._stream = body.stream
        if isinstance(body, AsyncKept):
            self.kept = body

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._body.parts_async()

    async def aclose(self) -> None:
        await self._body.close_async()


class _BlockingStream(httpx.SyncByteStream):
    def __init__(self, body: Body | Kept) -> None:
        self._body = body
        self._stream = body.stream
        if isinstance(body, Kept):
            self.kept = body

    def __iter__(self) -> Iterator[bytes]:
        return self._body.parts()

    def close(self) -> None:
        self._body.close()
