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
"""

from collections.abc import AsyncIterator, Iterator
from time import monotonic
from types import TracebackType
from typing import Self

import httpx

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_wait
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling.outcomes import outcome_of_exception, outcome_of_response
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused


class CallRefused(Refused, httpx.TransportError):
    """The request was not sent. ``decision`` says why, and when to try again."""

    def __init__(self, decision: Decision, request: httpx.Request) -> None:
        httpx.TransportError.__init__(self, decision.explain(), request=request)
        self.decision = decision


class GuardedTransport(httpx.AsyncBaseTransport):
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
    ) -> None:
        check_wait(wait_s)
        self._agent, self._dependency, self._tenant, self._wait_s = agent, dependency, tenant, wait_s
        self._transport = transport if transport is not None else httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            permit = await self._agent.admit_call(self._dependency, tenant=self._tenant, wait_s=self._wait_s)
        except Refused as refused:
            raise CallRefused(refused.decision, request) from None
        _bound(request, permit.timeout_s)
        started = monotonic()
        try:
            response = await self._transport.handle_async_request(request)
        except BaseException as error:
            self._agent.report(permit, outcome_of_exception(error))
            raise
        if _report_status(self._agent, permit, response):
            return response
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - an async transport's
        response.stream = _ReportingStream(response.stream, self._agent, permit, monotonic() - started)
        return response

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


class BlockingGuardedTransport(httpx.BaseTransport):
    """The same for ``httpx.Client``, with an agent of ``fuseboard.blocking``."""

    def __init__(
        self,
        agent: BlockingAgent,
        *,
        dependency: str,
        tenant: str = "",
        transport: httpx.BaseTransport | None = None,
        wait_s: float | None = None,
    ) -> None:
        check_wait(wait_s)
        self._agent, self._dependency, self._tenant, self._wait_s = agent, dependency, tenant, wait_s
        self._transport = transport if transport is not None else httpx.HTTPTransport()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        try:
            permit = self._agent.admit_call(self._dependency, tenant=self._tenant, wait_s=self._wait_s)
        except Refused as refused:
            raise CallRefused(refused.decision, request) from None
        _bound(request, permit.timeout_s)
        started = monotonic()
        try:
            response = self._transport.handle_request(request)
        except BaseException as error:
            self._agent.report(permit, outcome_of_exception(error))
            raise
        if _report_status(self._agent, permit, response):
            return response
        assert isinstance(response.stream, httpx.SyncByteStream)  # noqa: S101 - a blocking transport's
        response.stream = _BlockingStream(response.stream, self._agent, permit, monotonic() - started)
        return response

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


def _bound(request: httpx.Request, timeout_s: float | None) -> None:
    """Set the dependency's timeout for each part of a request that has none."""
    if timeout_s is None:
        return
    own = request.extensions.get("timeout") or {}
    parts = {part: own.get(part) for part in ("connect", "read", "write", "pool")}
    timeouts = {part: timeout_s if given is None else given for part, given in parts.items()}
    request.extensions = {**request.extensions, "timeout": timeouts}


def _report_status(agent: Agent | BlockingAgent, permit: Permit, response: httpx.Response) -> bool:
    """Report what the status alone decides: the body may never be read, and the breaker must not wait for
    it.
    """
    outcome, cooldown_ms = outcome_of_response(response.status_code, response.headers)
    if outcome is Outcome.OK:
        return False
    agent.report(permit, outcome, cooldown_ms=cooldown_ms)
    return True


class _Body:
    """The body of a response. The permit ends when the body ends."""

    def __init__(self, agent: Agent | BlockingAgent, permit: Permit, elapsed_s: float) -> None:
        self._agent, self._permit, self._elapsed_s = agent, permit, elapsed_s

    def _succeeded(self) -> None:
        self._agent.report(self._permit, Outcome.OK, self._elapsed_s)

    def _broke(self, error: BaseException) -> None:
        self._agent.report(self._permit, outcome_of_exception(error))

    def __del__(self) -> None:
        # Never closed: the response was good, and a half-open permit must not wait until it expires. The
        # garbage collector may run in any thread, and anywhere in the loop's.
        if not self._permit.reported:
            agent, permit, elapsed_s = self._agent, self._permit, self._elapsed_s
            agent.soon(lambda: agent.report(permit, Outcome.OK, elapsed_s))


class _ReportingStream(_Body, httpx.AsyncByteStream):
    def __init__(self, stream: httpx.AsyncByteStream, agent: Agent, permit: Permit, elapsed_s: float) -> None:
        super().__init__(agent, permit, elapsed_s)
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except GeneratorExit:
            raise  # the reader has enough; closing reports a success
        except BaseException as error:
            self._broke(error)
            raise

    async def aclose(self) -> None:
        # Reported first: closing may be cancelled, or fail because the connection is already lost.
        self._succeeded()
        await self._stream.aclose()


class _BlockingStream(_Body, httpx.SyncByteStream):
    def __init__(
        self, stream: httpx.SyncByteStream, agent: BlockingAgent, permit: Permit, elapsed_s: float
    ) -> None:
        super().__init__(agent, permit, elapsed_s)
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._stream
        except GeneratorExit:
            raise
        except BaseException as error:
            self._broke(error)
            raise

    def close(self) -> None:
        self._succeeded()
        self._stream.close()
