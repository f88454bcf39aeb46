"""httpx transport that guards one dependency.

::

    client = httpx.AsyncClient(transport=GuardedTransport(agent, dependency="payments-api"))

A refused request raises ``CallRefused``, which is both ``fuseboard.Refused`` (it carries the
decision) and ``httpx.TransportError``: code that already survives a vendor that is down
survives an open breaker too. Every attempt is admitted on its own, so a client that retries
must leave ``fuseboard.Refused`` alone until ``decision.retry_after_ms`` is over.
"""

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from types import TracebackType
from typing import Self

import httpx

from fuseboard.agent import Agent
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.outcomes import outcome_of_exception, outcome_of_status


class CallRefused(Refused, httpx.TransportError):
    """The request was not sent. ``decision`` says why, and when to try again."""

    def __init__(self, decision: Decision, request: httpx.Request) -> None:
        httpx.TransportError.__init__(self, decision.explain(), request=request)
        self.decision = decision


class GuardedTransport(httpx.AsyncBaseTransport):
    """Admits each request, and reports how it ended, exactly once.

    Failures are 5xx, 429, timeouts and broken connections, also while the body is read. Other
    4xx and cancelled requests say nothing about the dependency. A success is slow when its
    headers took longer than the breaker's ``slow_ms``: how long a body streams is no fault.
    """

    def __init__(
        self, agent: Agent, *, dependency: str, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self._agent = agent
        self._dependency = dependency
        self._transport = transport if transport is not None else httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        try:
            permit = await self._agent.admit_call(self._dependency)
        except Refused as refused:
            raise CallRefused(refused.decision, request) from None
        started = monotonic()
        try:
            response = await self._transport.handle_async_request(request)
        except BaseException as error:
            self._agent.report(permit, outcome_of_exception(error))
            raise
        elapsed_s = monotonic() - started
        outcome = outcome_of_status(response.status_code)
        if outcome is not Outcome.OK:
            # Known now: the breaker need not wait for a body that is perhaps never read.
            self._agent.report(permit, outcome)
            return response
        assert isinstance(response.stream, httpx.AsyncByteStream)  # noqa: S101 - an async transport's
        response.stream = _ReportingStream(response.stream, self._agent, permit, elapsed_s)
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


class _ReportingStream(httpx.AsyncByteStream):
    """A response's body, whose end ends the permit."""

    def __init__(self, stream: httpx.AsyncByteStream, agent: Agent, permit: Permit, elapsed_s: float) -> None:
        self._stream = stream
        self._agent = agent
        self._permit = permit
        self._elapsed_s = elapsed_s
        self._loop = asyncio.get_running_loop()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for part in self._stream:
                yield part
        except GeneratorExit:
            raise  # the reader has enough; closing reports the success it was
        except BaseException as error:
            self._agent.report(self._permit, outcome_of_exception(error))
            raise

    async def aclose(self) -> None:
        # Reported first: closing may be cancelled, or fail for a connection already lost.
        self._agent.report(self._permit, Outcome.OK, self._elapsed_s)
        await self._stream.aclose()

    def __del__(self) -> None:
        # Never closed: the answer was good, and a half-open permit must not wait for its lease.
        # The collector may run in any thread, the agent belongs to the loop.
        if not self._permit.reported and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._agent.report, self._permit, Outcome.OK, self._elapsed_s)
