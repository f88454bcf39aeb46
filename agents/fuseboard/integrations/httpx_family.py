"""The transports for httpx and httpx2: one request, its permit and its attempts.

Both libraries have the same classes under the same names, so this knows neither. A module of each derives its
classes from those here and from those of the library.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from functools import cache, partial
from types import TracebackType
from typing import Any, Generic, Self, TypeVar, Unpack

from fuseboard.agent import Agent
from fuseboard.agent_api.options import TransportOptions, list_options
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling import deadline
from fuseboard.calling.vendor_codes import code_in, code_in_part
from fuseboard.calling.waits import run_blocking
from fuseboard.decision import Parts, Permit
from fuseboard.integrations.guarded_request import (
    BlockingSender,
    GuardedRequest,
    GuardedSender,
    headers_bound_s,
)
from fuseboard.integrations.http_bodies import MIN_S, AsyncKept, Body, Kept, is_stream

#: The transport of the library that a guarded one sends with.
Transport = TypeVar("Transport")

_Timeouts = Mapping[str, float | None]


class Guard(GuardedSender, Generic[Transport]):
    """The part that does not wait."""

    #: httpx or httpx2.
    _library: Any
    _transport: Any
    #: The kind of body that can be read again.
    _kept: type[AsyncKept] | type[Kept]

    def _repeats(self, request: Any) -> bool:
        """A body that is generated cannot be sent again."""
        return isinstance(request.stream, self._library.ByteStream)

    async def _code(self, answer: Any) -> str:
        body = await self._keep(answer)
        try:
            copied = self._library.Response(answer.status_code, headers=answer.headers, content=body.begun)
            return code_in(copied.json()) if body.whole else code_in_part(copied.content)
        except (ValueError, RuntimeError, self._library.DecodingError):
            return ""

    async def _replaced(self, one: GuardedRequest, answer: Any) -> bool:
        try:
            kept = await self._keep(answer)
        except BaseException:
            one.dropped()
            raise
        return one.replaces(answer, kept)

    async def _keep(self, answer: Any) -> AsyncKept | Kept:
        """Read the beginning of a body, so that it can be read again."""
        if not hasattr(answer.stream, "kept"):
            answer.stream = self._stream(self._kept(answer.stream))
        kept: AsyncKept | Kept = answer.stream.kept
        await kept.fill()
        return kept

    def _succeed(self, permit: Permit, answer: Any, elapsed_s: float, request: Any, given: Any) -> None:
        """The permit of a success ends with its body."""
        if permit.parts is not None and is_stream(answer.headers):
            _bound_parts(request, given, permit.parts, elapsed_s)
        late = partial(self._library.ReadTimeout, request=request)
        make = self._body_of(request, answer)
        answer.stream = self._stream(
            make(answer.stream, self._agent, permit, elapsed_s, answer.headers, late)
        )

    def _body_of(self, request: Any, answer: Any) -> Callable[..., Body]:
        """Makes the body of this good answer to the request."""
        return Body

    def _stream(self, body: "Body | AsyncKept | Kept") -> Any:
        """``body`` as a stream of the library."""
        return _stream_class(self._library, isinstance(self, AsyncGuard))(body)


class AsyncGuard(Guard[Transport]):
    """A transport for clients on an event loop. Admits each request, and reports how it ended, exactly once.

    With a ``tenant``, that tenant's quotas on the dependency apply too. If a request would be refused, it
    waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    _kept = AsyncKept

    @list_options()
    def __init__(
        self,
        agent: Agent,
        *,
        dependency: str,
        transport: Transport | None = None,
        **options: Unpack[TransportOptions],
    ) -> None:
        self._transport = transport if transport is not None else self._library.AsyncHTTPTransport()
        self._configure(agent, dependency, options)

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
        given = request.extensions.get("timeout")
        return await self._exchange(request, given, repeats=self._repeats(request))

    async def _send(self, request: Any, given: Any, permit: Permit) -> Any:
        _bound(request, given, permit)
        return await self._transport.handle_async_request(request)


class BlockingGuard(BlockingSender, Guard[Transport]):
    """A guard for threads, with an agent of ``fuseboard.blocking``."""

    _kept = Kept

    @list_options()
    def __init__(
        self,
        agent: BlockingAgent,
        *,
        dependency: str,
        transport: Transport | None = None,
        **options: Unpack[TransportOptions],
    ) -> None:
        self._transport = transport if transport is not None else self._library.HTTPTransport()
        self._configure(agent, dependency, options)

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
        given = request.extensions.get("timeout")
        return run_blocking(self._exchange(request, given, repeats=self._repeats(request)))

    async def _send(self, request: Any, given: Any, permit: Permit) -> Any:
        _bound(request, given, permit)
        return self._transport.handle_request(request)


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
