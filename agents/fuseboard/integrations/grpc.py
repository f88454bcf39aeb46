"""Interceptors that guard the calls of a gRPC channel as calls to one dependency.

::

    channel = grpc.intercept_channel(
        grpc.insecure_channel("payments:50051"), GuardedInterceptor(worker, dependency="payments-api")
    )
    channel = grpc.aio.insecure_channel(
        "payments:50051", interceptors=async_interceptors(agent, dependency="payments-api")
    )

A refused call raises ``CallRefused``, which is both ``fuseboard.Refused`` and ``grpc.aio.AioRpcError``, and
so ``grpc.RpcError``. The status of a call decides its outcome, see docs/protection.md. A call without a
timeout gets that of the dependency; the deadline of the caller bounds each call.

A stream of answers ends when it is read to its end, fails, or is cancelled. grpc cancels one that a thread
drops, and keeps one that a loop drops until its timeout. Its time is that until its first message. One that
its reader leaves after a message is a success. A call that sends a stream is never slow: its sender decides
how long it takes.

Each call is made once. The retries of grpc itself (``retryPolicy`` of a service config) share one permit.
"""

import asyncio
import weakref
from collections import namedtuple
from collections.abc import AsyncIterator, Callable, Iterator
from time import monotonic
from types import TracebackType
from typing import Any, Unpack

import grpc

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_client_options
from fuseboard.agent_api.context_managers import stream_bound_s
from fuseboard.agent_api.options import ClientOptions, list_options
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling import deadline
from fuseboard.calling.classification import classify_rpc
from fuseboard.calling.grpc_status import CANCELLED, LATE, OK, RpcStatus, rpc_status_of
from fuseboard.calling.outcomes import judge_permitted
from fuseboard.calling.retries import Retries
from fuseboard.calling.waits import run_blocking
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Parts, Permit
from fuseboard.errors import FuseboardError, Refused
from fuseboard.integrations.guard import check_agent
from fuseboard.integrations.guarded_request import options_of_attempt, report_verdict
from fuseboard.integrations.http_bodies import MIN_S
from fuseboard.integrations.problem import status_of

_CODES = {
    403: grpc.StatusCode.PERMISSION_DENIED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    503: grpc.StatusCode.UNAVAILABLE,
}
_NO_BOUNDS = Parts(0.0, 0.0)
_LATE_PART = "a message of the streamed answer did not come in time"


class CallRefused(Refused, grpc.aio.AioRpcError, grpc.Call, grpc.Future):  # type: ignore[misc] # no types
    """The call was not sent. ``decision`` says why, and when to try again.

    The status is that of the HTTP answer to a refusal: ``RESOURCE_EXHAUSTED`` if the caller has used up its
    quota, ``PERMISSION_DENIED`` if it is suspended, and otherwise ``UNAVAILABLE``.

    It is also a call that has ended: another interceptor gets it from ``grpc`` as the answer of this one.
    """

    def __init__(self, decision: Decision | str) -> None:
        # A result store that writes JSON has only the text of the exception.
        text = decision
        if isinstance(decision, Decision):
            text = decision.explain()
        else:
            decision = Decision(allowed=False, message=decision)
        self.decision = decision
        code = _CODES[status_of(decision)]
        super(FuseboardError, self).__init__(code, _no_metadata(), _no_metadata(), text)

    def __str__(self) -> str:
        return str(self.details())

    def result(self, timeout: float | None = None) -> Any:
        raise self

    def exception(self, timeout: float | None = None) -> BaseException:
        return self

    def traceback(self, timeout: float | None = None) -> TracebackType | None:
        return self.__traceback__

    def done(self) -> bool:
        return True

    def add_done_callback(self, fn: Callable[[Any], None]) -> None:
        fn(self)

    def add_callback(self, callback: Callable[[], None]) -> bool:
        return False

    def cancel(self) -> bool:
        return False

    cancelled = running = is_active = cancel

    def time_remaining(self) -> None:
        return None


class _Call:
    """One call with its permit. Reports how the call ended, once, from any thread."""

    def __init__(
        self, agent: Agent | BlockingAgent, permit: Permit, *, sends_stream: bool, streams: bool
    ) -> None:
        self._agent, self._permit, self._sends_stream = agent, permit, sends_stream
        #: The caller waits for the answer, or for a message of a streamed one.
        self.waiting = not streams
        self._began = monotonic()
        self._over = False

    def message(self) -> None:
        """A message of a streamed answer has come."""
        self.waiting = False
        if self._permit.first_part_s is None:
            self._permit.first_part_s = monotonic() - self._began

    def ended(self, status: RpcStatus) -> None:
        if self._over:
            return
        self._over = True
        first_s = self._permit.first_part_s
        # A reader that is gone, or busy, lets the time of a stream pass: that is no failure of the server.
        idle = status.name == LATE and not self.waiting
        left = first_s is not None and (status.name == CANCELLED or idle)
        if status.name == OK or left:
            elapsed_s = monotonic() - self._began if first_s is None else first_s
            self._agent.report(self._permit, Outcome.OK, None if self._sends_stream else elapsed_s)
        elif idle or status.is_own_fault or (status.name == LATE and self._permit.hurried):
            # Hurried: the deadline of the caller was too short for a usual call.
            self._agent.report(self._permit, Outcome.NEUTRAL)
        else:
            report_verdict(self._agent, self._permit, classify_rpc(status))

    def dropped(self) -> None:
        self.ended(RpcStatus(CANCELLED))

    def failed(self, error: BaseException, neutral: tuple[type[BaseException], ...] = ()) -> None:
        """The call raised ``error``, or another interceptor did. ``neutral``: unless it has a status."""
        status = None if isinstance(error, Refused) else rpc_status_of(error)
        if status is not None:
            self.ended(status)
        elif not self._over:
            self._over = True
            outcome, cooldown_ms = judge_permitted(self._permit, error, neutral)
            self._agent.report(self._permit, outcome, cooldown_ms=cooldown_ms)


class _Guard:
    """The part that all interceptors share."""

    def __init__(self, agent: Any, dependency: str, options: ClientOptions) -> None:
        self._agent, self._dependency = agent, dependency
        self._options_now = options_of_attempt(options)

    def _note_retries(self) -> None:
        retries: Retries | None = getattr(self._agent, "retries", None)  # an agent of a test may have none
        if retries is not None:
            retries.note_unused(self._dependency, "each gRPC call is sent once")


# Channels for threads


class GuardedInterceptor(
    _Guard,
    grpc.UnaryUnaryClientInterceptor,  # type: ignore[misc] # the library has no types
    grpc.UnaryStreamClientInterceptor,  # type: ignore[misc]
    grpc.StreamUnaryClientInterceptor,  # type: ignore[misc]
    grpc.StreamStreamClientInterceptor,  # type: ignore[misc]
):
    """An interceptor of ``grpc.intercept_channel``, for all kinds of calls of threads.

    With a ``tenant``, that tenant's quotas on the dependency apply too. If a call would be refused, it waits,
    provided that the refusal ends within ``wait_s`` seconds. The bounds of the parts of a stream are for
    event loops. Here, a stream of such a dependency ends after 10 minutes, or by its own timeout.
    """

    @list_options()
    def __init__(self, agent: BlockingAgent, *, dependency: str, **options: Unpack[ClientOptions]) -> None:
        check_client_options(type(self).__name__, options)
        check_agent(agent, asynchronous=False)
        super().__init__(agent, dependency, options)

    def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self._unary(continuation, client_call_details, request)

    def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return self._unary(continuation, client_call_details, request_iterator, sends_stream=True)

    def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return self._stream(continuation, client_call_details, request)

    def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return self._stream(continuation, client_call_details, request_iterator, sends_stream=True)

    def _unary(self, continuation: Any, details: Any, sent: Any, *, sends_stream: bool = False) -> Any:
        call, answer = self._begin(continuation, details, sent, sends_stream, streams=False)

        def ended() -> None:
            call.ended(_status_of(answer))

        if not hasattr(answer, "add_callback"):
            # An object of another interceptor does not call back.
            call.dropped()
        # A future runs on although nobody keeps it, and ends within its time.
        elif answer.done() or not answer.add_callback(ended):
            ended()
        return answer

    def _stream(self, continuation: Any, details: Any, sent: Any, *, sends_stream: bool = False) -> Any:
        call, answer = self._begin(continuation, details, sent, sends_stream, streams=True)
        messages = _Messages(answer, call)
        if not hasattr(answer, "add_callback"):
            # An iterator of another interceptor, such as that of OpenTelemetry, does not call back.
            weakref.finalize(messages, call.dropped).atexit = False
            return messages
        # The reference is weak, so that grpc cancels a stream that nobody keeps.
        found = weakref.ref(answer)

        def ended() -> None:
            alive = found()
            if alive is None:
                call.dropped()
            else:
                call.ended(_status_of(alive))

        if not answer.add_callback(ended):
            ended()
        return messages

    def _begin(
        self, continuation: Any, details: Any, sent: Any, sends_stream: bool, *, streams: bool
    ) -> tuple[_Call, Any]:
        self._note_retries()
        try:
            permit = self._agent.admit_call(self._dependency, **self._options_now())
        except Refused as refused:
            raise CallRefused(refused.decision) from None
        call = _Call(self._agent, permit, sends_stream=sends_stream, streams=streams)
        bounded = _Details(
            details.method,
            _timeout_s(details.timeout, permit, streams),
            *(getattr(details, name, None) for name in _Details._fields[2:]),
        )
        try:
            answer = continuation(bounded, sent)
            if isinstance(answer, Refused) or (
                isinstance(answer, grpc.RpcError) and not isinstance(answer, grpc.Future)
            ):
                # Another interceptor raised it, and grpc made it the answer.
                raise answer
        except BaseException as error:
            # An error without a status is that of another interceptor, or of a closed channel.
            call.failed(error, neutral=(Exception,))
            raise
        return call, answer


class _Details(
    namedtuple("_Details", "method timeout metadata credentials wait_for_ready compression"),
    grpc.ClientCallDetails,  # type: ignore[misc] # the library has no types
):
    """The details of a call, as ``grpc`` has them. It has no public class for them."""


class _Messages:
    """A streamed answer, which notes its first message and its end. All else is that of the answer itself."""

    def __init__(self, answer: Any, call: _Call) -> None:
        self._answer, self._call = answer, call

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        self._call.waiting = True
        try:
            message = next(self._answer)
        except StopIteration:
            # Here too, as the reader may drop the answer before the thread of the channel calls back.
            self._call.ended(RpcStatus(OK))
            raise
        except Exception as error:
            self._call.failed(error)
            raise
        self._call.message()
        return message

    next = __next__

    def __getattr__(self, name: str) -> Any:
        return getattr(self._answer, name)


def _status_of(answer: Any) -> RpcStatus:
    """The status of a call that has ended. The answer of another interceptor may have none."""
    try:
        return RpcStatus(answer.code().name, answer.details() or "", answer.trailing_metadata() or ())
    except AttributeError:
        return RpcStatus(CANCELLED)


# Channels on an event loop


@list_options()
def async_interceptors(
    agent: Agent, *, dependency: str, **options: Unpack[ClientOptions]
) -> list[grpc.aio.ClientInterceptor]:
    """The interceptors of a channel of ``grpc.aio``: one for each kind of call.

    With a ``tenant``, that tenant's quotas on the dependency apply too. If a call would be refused, it waits,
    provided that the refusal ends within ``wait_s`` seconds.
    """
    check_client_options("async_interceptors", options)
    check_agent(agent, asynchronous=True)
    kinds = (_UnaryUnary, _UnaryStream, _StreamUnary, _StreamStream)
    return [kind(agent, dependency, options) for kind in kinds]


class _AsyncGuard(_Guard):
    async def _unary(self, continuation: Any, details: Any, sent: Any, *, sends_stream: bool = False) -> Any:
        _, _, answer = await self._begin(continuation, details, sent, sends_stream, streams=False)
        return answer

    async def _stream(self, continuation: Any, details: Any, sent: Any, *, sends_stream: bool = False) -> Any:
        call, permit, answer = await self._begin(continuation, details, sent, sends_stream, streams=True)
        return _messages(answer, call, permit.parts or _NO_BOUNDS)

    async def _begin(
        self, continuation: Any, details: Any, sent: Any, sends_stream: bool, *, streams: bool
    ) -> tuple[_Call, Permit, Any]:
        self._note_retries()
        try:
            permit = await self._agent.admit_call(self._dependency, **self._options_now())
        except Refused as refused:
            raise CallRefused(refused.decision) from None
        call = _Call(self._agent, permit, sends_stream=sends_stream, streams=streams)
        bounded = grpc.aio.ClientCallDetails(
            details.method,
            _timeout_s(details.timeout, permit, streams),
            details.metadata,
            details.credentials,
            details.wait_for_ready,
        )

        def ended(_: object) -> None:
            # The status is there, so the coroutines of the call do not wait.
            call.ended(run_blocking(_status_async(answer)))

        try:
            answer = await continuation(bounded, sent)
            # An answer of another interceptor has ended, and takes no callback.
            if answer.done():
                ended(answer)
            else:
                answer.add_done_callback(ended)
        except BaseException as error:
            call.failed(error)
            raise
        return call, permit, answer


class _UnaryUnary(_AsyncGuard, grpc.aio.UnaryUnaryClientInterceptor):  # type: ignore[misc] # no types
    async def intercept_unary_unary(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._unary(continuation, client_call_details, request)


class _UnaryStream(_AsyncGuard, grpc.aio.UnaryStreamClientInterceptor):  # type: ignore[misc] # no types
    async def intercept_unary_stream(self, continuation: Any, client_call_details: Any, request: Any) -> Any:
        return await self._stream(continuation, client_call_details, request)


class _StreamUnary(_AsyncGuard, grpc.aio.StreamUnaryClientInterceptor):  # type: ignore[misc] # no types
    async def intercept_stream_unary(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await self._unary(continuation, client_call_details, request_iterator, sends_stream=True)


class _StreamStream(_AsyncGuard, grpc.aio.StreamStreamClientInterceptor):  # type: ignore[misc] # no types
    async def intercept_stream_stream(
        self, continuation: Any, client_call_details: Any, request_iterator: Any
    ) -> Any:
        return await self._stream(continuation, client_call_details, request_iterator, sends_stream=True)


async def _messages(answer: Any, call: _Call, bounds: Parts) -> AsyncIterator[Any]:
    """The messages of a streamed answer, each in its time."""
    messages, left_s, late = aiter(answer), bounds.first_s, False

    def end_late() -> None:
        nonlocal late
        late = True
        call.ended(RpcStatus(LATE))
        answer.cancel()

    while True:
        timer = asyncio.get_running_loop().call_later(left_s, end_late) if left_s else None
        call.waiting = True
        try:
            message = await anext(messages)
        except StopAsyncIteration:
            # The iterator of another interceptor may end before the call does.
            call.ended(RpcStatus(OK))
            return
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if not late or (task is not None and task.cancelling()):
                raise
            raise grpc.aio.AioRpcError(
                grpc.StatusCode.DEADLINE_EXCEEDED, _no_metadata(), _no_metadata(), _LATE_PART
            ) from None
        except Exception as error:
            call.failed(error)
            raise
        finally:
            if timer is not None:
                timer.cancel()
        call.message()
        yield message
        left_s = bounds.between_s


async def _status_async(answer: Any) -> RpcStatus:
    """``_status_of`` for a call of an event loop."""
    code, details = await answer.code(), await answer.details()
    return RpcStatus(code.name, details or "", await answer.trailing_metadata() or ())


# Both


def _timeout_s(given_s: float | None, permit: Permit, streams: bool) -> float | None:
    """The timeout of the caller, or else that of the dependency. The deadline bounds both."""
    wanted = given_s
    if given_s is None:
        wanted = stream_bound_s(permit) if streams and permit.parts is not None else permit.timeout_s
    left_s = deadline.bounded(wanted)
    return None if left_s is None else max(MIN_S, left_s)


def _no_metadata() -> grpc.aio.Metadata:
    return grpc.aio.Metadata()
