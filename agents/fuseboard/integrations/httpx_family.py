"""The transports for httpx and httpx2: one request, its permit and its attempts.

Both libraries have the same classes under the same names, so this knows neither. A module of each derives its
classes from those here and from those of the library.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import cache, partial
from time import monotonic
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_transport_options
from fuseboard.agent_api.options import TransportOptions, list_options
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling import deadline
from fuseboard.calling.classification import Verdict, known_repeatable
from fuseboard.calling.outcomes import judge_permitted, outcome_of
from fuseboard.calling.retried_call import RetriedCall
from fuseboard.calling.retries import Retries
from fuseboard.calling.vendor_codes import code_in, code_in_part
from fuseboard.contract.words import Outcome
from fuseboard.decision import Parts, Permit
from fuseboard.errors import Refused
from fuseboard.integrations.guarded_request import (
    GuardedRequest,
    RequestRefused,
    call_options,
    headers_bound_s,
    may_have_code,
    note_unused_retries,
    paused,
    report_by_status_soon,
    reported,
    slept,
)
from fuseboard.integrations.http_bodies import MIN_S, AsyncKept, Body, Kept, is_stream

#: The transport of the library that a guarded one sends with.
Transport = TypeVar("Transport")

_Timeouts = Mapping[str, float | None]


class Guard(Generic[Transport]):
    """The part that does not wait."""

    #: httpx or httpx2, and the error of a refused request.
    _library: Any
    _refused: type[RequestRefused]
    _agent: Agent | BlockingAgent

    def __init__(self, dependency: str, transport: Any, options: TransportOptions) -> None:
        check_transport_options(type(self).__name__, options)
        self._dependency, self._transport = dependency, transport
        self._options = call_options(options)
        self._retry, self._idempotent = options.get("retry", False), options.get("idempotent")

    def _begun(self, request: Any, retries: Retries | None) -> GuardedRequest:
        if retries is None:
            note_unused_retries(self._agent, self._dependency)
        # A body that is generated cannot be sent again.
        if retries is None or not isinstance(request.stream, self._library.ByteStream):
            return GuardedRequest(None)
        return GuardedRequest(
            RetriedCall(
                retries,
                self._dependency,
                until=deadline.until(),
                idempotent=self._idempotent if self._idempotent is not None else known_repeatable(request),
                one_request=True,
            )
        )

    def _code(self, response: Any, body: AsyncKept | Kept) -> str:
        """The vendor's code in the body of an answer; empty when there is none."""
        try:
            copied = self._library.Response(
                response.status_code, headers=response.headers, content=body.begun
            )
            return code_in(copied.json()) if body.whole else code_in_part(copied.content)
        except (ValueError, RuntimeError, self._library.DecodingError):
            return ""

    def _answer(
        self,
        permit: Permit,
        verdict: Verdict,
        response: Any,
        elapsed_s: float,
        request: Any,
        own: _Timeouts | None,
    ) -> Any:
        """The response for the client. The permit of a success ends with its body."""
        if outcome_of(verdict) is Outcome.OK:
            if permit.parts is not None and is_stream(response.headers):
                _bound_parts(request, own, permit.parts, elapsed_s)
            late = partial(self._library.ReadTimeout, request=request)
            body = Body(response.stream, self._agent, permit, elapsed_s, response.headers, late)
            response.stream = self._stream(body)
        return response

    def _stream(self, body: "Body | AsyncKept | Kept") -> Any:
        """``body`` as a stream of the library."""
        return _stream_class(self._library, isinstance(self, AsyncGuard))(body)


class AsyncGuard(Guard[Transport]):
    """A transport for clients on an event loop. Admits each request, and reports how it ended, exactly once.

    With a ``tenant``, that tenant's quotas on the dependency apply too. If a request would be refused, it
    waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    _agent: Agent

    @list_options()
    def __init__(
        self,
        agent: Agent,
        *,
        dependency: str,
        transport: Transport | None = None,
        **options: Unpack[TransportOptions],
    ) -> None:
        used = transport if transport is not None else self._library.AsyncHTTPTransport()
        super().__init__(dependency, used, options)
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

    async def handle_async_request(self, request: Any) -> Any:
        one = self._begun(request, self._agent.retries if self._retry else None)
        own = request.extensions.get("timeout")
        while True:
            one.begin()
            try:
                permit = await self._agent.admit_call(self._dependency, **self._options)
            except BaseException as error:
                if (before := one.not_admitted(error)) is not None:
                    return before
                if isinstance(error, Refused):
                    raise self._refused(error.decision, request) from None
                raise
            one.admitted()
            _bound(request, own, permit)
            started = monotonic()
            try:
                response = await self._transport.handle_async_request(request)
            except BaseException as error:
                self._agent.report(permit, judge_permitted(permit, error)[0])
                if not one.failed(error):
                    raise
            else:
                elapsed_s = monotonic() - started
                verdict = await self._verdict(permit, response)
                if not one.answered(verdict):
                    return self._answer(permit, verdict, response, elapsed_s, request, own)
                if not await self._replaced(one, response):
                    return response
            if not await paused(one):
                return one.last()

    async def _verdict(self, permit: Permit, response: Any) -> Verdict:
        code = ""
        if may_have_code(response):
            report_by_status_soon(self._agent, permit, response)
            try:
                kept = await self._keep(response)
            except BaseException:
                reported(self._agent, permit, response, "")
                raise
            code = self._code(response, kept)
        return reported(self._agent, permit, response, code)

    async def _replaced(self, one: GuardedRequest, response: Any) -> bool:
        try:
            kept = await self._keep(response)
        except BaseException:
            one.dropped()
            raise
        return one.replaces(response, kept)

    async def _keep(self, response: Any) -> AsyncKept:
        """Read the beginning of a body, so that it can be read again."""
        if not hasattr(response.stream, "kept"):
            response.stream = self._stream(AsyncKept(response.stream))
        kept: AsyncKept = response.stream.kept
        await kept.fill()
        return kept


class BlockingGuard(Guard[Transport]):
    """A guard for threads, with an agent of ``fuseboard.blocking``."""

    _agent: BlockingAgent

    @list_options()
    def __init__(
        self,
        agent: BlockingAgent,
        *,
        dependency: str,
        transport: Transport | None = None,
        **options: Unpack[TransportOptions],
    ) -> None:
        used = transport if transport is not None else self._library.HTTPTransport()
        super().__init__(dependency, used, options)
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

    def handle_request(self, request: Any) -> Any:
        one = self._begun(request, self._agent.retries if self._retry else None)
        own = request.extensions.get("timeout")
        while True:
            one.begin()
            try:
                permit = self._agent.admit_call(self._dependency, **self._options)
            except BaseException as error:
                if (before := one.not_admitted(error)) is not None:
                    return before
                if isinstance(error, Refused):
                    raise self._refused(error.decision, request) from None
                raise
            one.admitted()
            _bound(request, own, permit)
            started = monotonic()
            try:
                response = self._transport.handle_request(request)
            except BaseException as error:
                self._agent.report(permit, judge_permitted(permit, error)[0])
                if not one.failed(error):
                    raise
            else:
                elapsed_s = monotonic() - started
                verdict = self._verdict(permit, response)
                if not one.answered(verdict):
                    return self._answer(permit, verdict, response, elapsed_s, request, own)
                if not self._replaced(one, response):
                    return response
            if not slept(one):
                return one.last()

    def _verdict(self, permit: Permit, response: Any) -> Verdict:
        code = ""
        if may_have_code(response):
            report_by_status_soon(self._agent, permit, response)
            try:
                kept = self._keep(response)
            except BaseException:
                reported(self._agent, permit, response, "")
                raise
            code = self._code(response, kept)
        return reported(self._agent, permit, response, code)

    def _replaced(self, one: GuardedRequest, response: Any) -> bool:
        try:
            kept = self._keep(response)
        except BaseException:
            one.dropped()
            raise
        return one.replaces(response, kept)

    def _keep(self, response: Any) -> Kept:
        if not hasattr(response.stream, "kept"):
            response.stream = self._stream(Kept(response.stream))
        kept: Kept = response.stream.kept
        kept.fill()
        return kept


@cache
def _stream_class(library: Any, asynchronous: bool) -> Callable[[Body | AsyncKept | Kept], Any]:
    """The library takes only streams of its own class."""
    kinds = (_AsyncStream, library.AsyncByteStream) if asynchronous else (_Stream, library.SyncByteStream)
    return type("GuardedStream", kinds, {})


class _AnyStream:
    def __init__(self, body: Body | AsyncKept | Kept) -> None:
        self._body: Any = body
        #: The original stream.
        self._stream = body.stream
        if not isinstance(body, Body):
            self.kept = body


class _AsyncStream(_AnyStream):
    def __aiter__(self) -> AsyncIterator[bytes]:
        parts: AsyncIterator[bytes] = self._body.parts_async()
        return parts

    async def aclose(self) -> None:
        await self._body.close_async()


class _Stream(_AnyStream):
    def __iter__(self) -> Iterator[bytes]:
        parts: Iterator[bytes] = self._body.parts()
        return parts

    def close(self) -> None:
        self._body.close()


def _bound(request: Any, own: _Timeouts | None, permit: Permit) -> None:
    """Set the call's timeout for each part of a request that has none, and the deadline for all."""
    timeout_s, left_s = permit.timeout_s, deadline.left_s()
    if timeout_s is None and left_s is None:
        return
    timeouts = {}
    for part in ("connect", "read", "write", "pool"):
        given = (own or {}).get(part)
        bound_s = headers_bound_s(permit) if part == "read" else timeout_s
        wanted = bound_s if given is None else given
        if left_s is not None:
            wanted = max(MIN_S, left_s if wanted is None else min(wanted, left_s))
        timeouts[part] = wanted
    request.extensions = {**request.extensions, "timeout": timeouts}


def _bound_parts(request: Any, own: _Timeouts | None, bounds: Parts, elapsed_s: float) -> None:
    """The timeout for reading a stream: each library takes it when it begins to read the body."""
    given = (own or {}).get("read")
    wanted = max(bounds.between_s, bounds.first_s - elapsed_s) if bounds.between_s else None
    for most_s in (given, deadline.left_s()):
        if most_s is not None:
            wanted = max(MIN_S, most_s if wanted is None else min(wanted, most_s))
    request.extensions["timeout"]["read"] = wanted
