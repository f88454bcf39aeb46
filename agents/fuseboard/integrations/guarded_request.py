"""One request of a client, its permit and its attempts: what all transports share.

Nothing here knows a library. A transport implements the steps of ``GuardedSender``.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Protocol

from msgspec.structs import replace

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_transport_options
from fuseboard.agent_api.options import CallOptions, ClientOptions, TransportOptions
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling import deadline
from fuseboard.calling.classification import Verdict, classify_answer, classify_rpc, known_repeatable
from fuseboard.calling.failures import cooldown_of, is_noted, kind_of_answer, note_failure
from fuseboard.calling.grpc_status import OK, STATUSES, RpcStatus
from fuseboard.calling.outcomes import judge_permitted, note_account, outcome_of, settle_answered
from fuseboard.calling.retried_call import RetriedCall
from fuseboard.calling.retries import Retries
from fuseboard.calling.waits import block, pause
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import REQUESTS, FuseboardError, Refused
from fuseboard.learning.remaining import remaining_of

#: The breaker waits so long for the code in the body of an answer. After that, the status decides.
CODE_WITHIN_S = 1.0
#: Vendors answer an account that they do not serve with one of these. Only the body says so.
_MAY_NAME_THE_ACCOUNT = frozenset({400, 401, 402, 403, 429})
#: The report of another process stops the fleet for at most this time: its word is not enough for an hour. If
#: the vendor asks for more, the next 429 renews it.
MAX_REPORTED_COOLDOWN_MS = 60_000
#: The kind of failure of an error event that names none.
STREAM_KIND = "error_event"


class Beginning(Protocol):
    """The beginning of a body, which was read before its caller reads it."""

    #: Whether the part is the whole body.
    whole: bool
    #: The body broke off.
    error: Exception | None


class RequestRefused(Refused):
    """A request that was not sent. A library derives its ``CallRefused`` from this and from its own error."""

    request: Any

    def __init__(self, decision: Decision, request: Any = None) -> None:
        super().__init__(decision)
        self.request = request


class ModelCallRefused(RequestRefused):
    """A refusal in a client that passes on its own errors, and wraps all others in "Connection error."."""

    def __init__(self, decision: Decision, request: Any = None) -> None:
        # The clients of OpenAI and Anthropic have the same arguments.
        super(FuseboardError, self).__init__(message=decision.explain(), request=request)  # type: ignore[call-arg]
        self.decision, self.had_slot = decision, False


class RequestNotRepeated(FuseboardError):
    """A request that a client tried to repeat itself. A library derives its error from this and its own."""

    def _portable(self, state: Any) -> Any:
        # The request has the key of the vendor in a header.
        if isinstance(state, tuple):
            return state
        return {name: None if name in REQUESTS else one for name, one in state.items()}


class GuardedRequest:
    """``call`` is ``None`` for a request that is sent once."""

    def __init__(self, call: RetriedCall | None) -> None:
        self._call = call
        #: The answer of the attempt before. It is returned if there is no better one.
        self._last: Any = None

    def begin(self) -> None:
        if self._call is not None:
            self._call.begin()

    def admitted(self) -> None:
        if self._call is not None:
            self._call.admitted()

    def not_admitted(self, error: BaseException) -> Any:
        """The answer of the attempt before, or ``None`` for the first. Raises what that attempt raised."""
        call = self._call
        if call is None or call.num == 1:
            return None
        if not isinstance(error, Refused):
            call.dropped()
            return None
        call.refused(error.decision.explain())
        return self.last()

    def failed(self, error: BaseException) -> bool:
        """Whether another attempt follows."""
        self._last = None
        return self._call is not None and isinstance(error, Exception) and self._call.failed(error)

    def answered(self, verdict: Verdict, *, final: bool = False) -> bool:
        """Judge an answer. ``final``: its body belongs to the caller already."""
        call = self._call
        if call is None:
            return False
        if 0 < verdict.status < 400:
            call.succeeded()
            return False
        if final:
            verdict = replace(verdict, retryable=False)
        return call.answered(verdict, f"status {verdict.status}")

    def replaces(self, response: Any, read: Beginning) -> bool:
        """Whether the next attempt may replace this answer: not if its body is too long to keep."""
        if read.error is None and not read.whole:
            self.dropped()
            return False
        self._last = response if read.error is None else None
        if self._call is not None:
            self._call.cause = read.error
        return True

    @property
    def wait_s(self) -> float:
        return self._call.next_wait_s if self._call is not None else 0.0

    def resumes(self) -> bool:
        """After the wait: whether the next attempt may begin."""
        return self._call is not None and self._call.resumes()

    def dropped(self) -> None:
        """The next attempt is not made."""
        if self._call is not None:
            self._call.dropped()

    def last(self) -> Any:
        """The last answer. Raises the last error if there is none."""
        error = self._call.last_error() if self._call is not None else None
        if self._last is None and error is not None:
            raise error from error.__cause__
        return self._last


async def paused(one: GuardedRequest) -> bool:
    """Wait on the event loop. Whether the next attempt may begin."""
    try:
        await pause(one.wait_s)
    except BaseException:
        one.dropped()
        raise
    return one.resumes()


async def slept(one: GuardedRequest) -> bool:
    """Wait in a thread, without an event loop. Whether the next attempt may begin."""
    try:
        block(one.wait_s)
    except BaseException:
        one.dropped()
        raise
    return one.resumes()


def headers_bound_s(permit: Permit) -> float | None:
    """How long the headers of an answer may take: those of a stream, as long as its first part."""
    if permit.timeout_s is None or permit.parts is None:
        return permit.timeout_s
    return max(permit.timeout_s, permit.parts.first_s)


def report_verdict(agent: Agent | BlockingAgent, permit: Permit, verdict: Verdict) -> None:
    """Report an answer that is no success, or an error event in the stream of a good one."""
    outcome = outcome_of(verdict)
    note_account(permit, verdict)
    settle_answered(permit, verdict)
    if outcome is Outcome.FAILURE or is_noted(verdict):
        note_failure(permit, kind_of_answer(verdict) if verdict.code or verdict.status else STREAM_KIND)
    agent.report(permit, outcome, cooldown_ms=cooldown_of(verdict))


def report_answer(
    agent: Agent,
    permit: Permit,
    status: int,
    *,
    retry_after: str = "",
    code: str = "",
    elapsed_s: float | None = None,
) -> None:
    """Report the answer to a call that another process has made, such as an application or a proxy.

    ``retry_after``: the header of the answer. ``code``: the vendor's own word in its body.
    """
    _report_judged(agent, permit, classify_answer(status, {"retry-after": retry_after}, code), elapsed_s)


def report_rpc(agent: Agent, permit: Permit, ended: RpcStatus, elapsed_s: float | None = None) -> None:
    """Report how a gRPC call ended that another process has made."""
    verdict = classify_answer(STATUSES[OK], {}) if ended.name == OK else classify_rpc(ended)
    _report_judged(agent, permit, verdict, elapsed_s)


def _report_judged(agent: Agent, permit: Permit, verdict: Verdict, elapsed_s: float | None) -> None:
    if outcome_of(verdict) is Outcome.OK:
        agent.report(permit, Outcome.OK, elapsed_s)
    else:
        report_verdict(
            agent, permit, replace(verdict, cooldown_ms=min(verdict.cooldown_ms, MAX_REPORTED_COOLDOWN_MS))
        )


def options_of_attempt(options: ClientOptions) -> Callable[[], CallOptions]:
    """Returns the options of the attempt that is about to be made, in the task or thread that makes it."""
    tenant = options.get("tenant", "")
    always: CallOptions = {"wait_s": options.get("wait_s")}
    if (tier := options.get("tier")) is not None:
        always["tier"] = tier
    if callable(tenant):
        return lambda: {**always, "tenant": tenant() or ""}
    always["tenant"] = tenant
    return lambda: always


class GuardedSender(ABC):
    """Sends the requests of a client: admits each attempt, and reports how it ended, exactly once.

    The steps are coroutines, so that they are written once for both kinds of clients. Those of a
    ``BlockingSender`` block, and never wait for a loop: ``run_blocking`` runs them.
    """

    #: The error of a refused request.
    _refused: type[RequestRefused]
    _agent: Any
    _pause: Callable[[GuardedRequest], Awaitable[bool]] = staticmethod(paused)

    def _configure(self, agent: Agent | BlockingAgent, dependency: str, options: TransportOptions) -> None:
        check_transport_options(type(self).__name__, options)
        self._agent, self._dependency = agent, dependency
        self._retry, self._idempotent = options.get("retry", False), options.get("idempotent")
        self._options_of_attempt = options_of_attempt(options)

    async def _exchange(self, request: Any, given: Any, *, repeats: bool) -> Any:
        """Send a request, and return the answer. ``repeats``: its body can be sent again."""
        one = GuardedRequest(self._retried_call(request, repeats))
        while True:
            one.begin()
            try:
                permit = await self._admit(request)
            except BaseException as error:
                if (before := one.not_admitted(error)) is not None:
                    return before
                if isinstance(error, Refused):
                    raise self._refused(error.decision, request) from None
                raise
            one.admitted()
            started = monotonic()
            try:
                answer = await self._send(request, given, permit)
            except BaseException as error:
                self._agent.report(permit, judge_permitted(permit, error)[0])
                if not one.failed(error):
                    raise
            else:
                elapsed_s = monotonic() - started
                verdict = await self._judge(permit, answer)
                self._note_limits(permit, answer, verdict, monotonic() - started)
                if outcome_of(verdict) is Outcome.OK:
                    self._succeed(permit, answer, elapsed_s, request, given)
                if not one.answered(verdict, final=self._is_final(answer)):
                    return self._response(answer)
                if not await self._replaced(one, answer):
                    return self._response(answer)
            if not await self._pause(one):
                return one.last()

    def _retried_call(self, request: Any, repeats: bool) -> RetriedCall | None:
        """The attempts of a request; ``None`` for one that is sent once."""
        dependency, _ = self._call_of(request)
        retries: Retries | None = getattr(self._agent, "retries", None)  # an agent of a test may have none
        if not self._retry and retries is not None:
            # Each request is sent once, whatever the policy allows.
            retries.note_unused(dependency, "each request is sent once; pass retry=True")
        if not self._retry or not repeats:
            return None
        return RetriedCall(
            self._agent.retries,
            dependency,
            until=deadline.until(),
            idempotent=self._idempotent if self._idempotent is not None else known_repeatable(request),
            one_request=True,
        )

    async def _judge(self, permit: Permit, answer: Any) -> Verdict:
        """Judge an answer, and report it unless it is a success, whose body may still break off."""
        code, response = "", self._head(answer)
        # A 429 for an account without money must not stop the fleet: only its body says so.
        named = response.status_code in _MAY_NAME_THE_ACCOUNT
        if named and "json" in (response.headers.get("content-type") or "") and self._is_readable(answer):
            _report_by_status_soon(self._agent, permit, response)
            try:
                code = await self._code(answer)
            except BaseException:
                _reported(self._agent, permit, response, "")
                raise
        return _reported(self._agent, permit, response, code)

    def _note_limits(self, permit: Permit, answer: Any, verdict: Verdict, elapsed_s: float) -> None:
        """The headers of an answer may say what the vendor has left of its limits."""
        head = self._head(answer)
        remaining_of(self._agent).record(
            self._agent, permit, head.status_code, head.headers, code=verdict.code, elapsed_s=elapsed_s
        )

    def _call_of(self, request: Any) -> tuple[str, CallOptions]:
        """The dependency that a request belongs to, and the options of each attempt."""
        return self._dependency, self._options_now()

    def _options_now(self) -> CallOptions:
        return self._options_of_attempt()

    async def _admit(self, request: Any) -> Permit:
        dependency, options = self._call_of(request)
        permit: Permit = await self._agent.admit_call(dependency, **options)
        return permit

    @abstractmethod
    async def _send(self, request: Any, given: Any, permit: Permit) -> Any:
        """Send one attempt, within the time of its permit. ``given``: what the client passed beside it."""

    @abstractmethod
    async def _code(self, answer: Any) -> str:
        """Read the vendor's code in the body of an answer; empty when there is none."""

    @abstractmethod
    async def _replaced(self, one: GuardedRequest, answer: Any) -> bool:
        """Whether the next attempt may replace this answer. Its connection is free then."""

    @abstractmethod
    def _succeed(self, permit: Permit, answer: Any, elapsed_s: float, request: Any, given: Any) -> None:
        """The answer is a success: report it, at once or at the end of its body."""

    def _head(self, answer: Any) -> Any:
        """The ``status_code`` and ``headers`` of an answer."""
        return answer

    def _is_readable(self, answer: Any) -> bool:
        """The body is short, and belongs to no reader yet."""
        return True

    def _is_final(self, answer: Any) -> bool:
        """The body belongs to the caller already."""
        return False

    def _response(self, answer: Any) -> Any:
        """The answer for the caller."""
        return answer


class BlockingSender(GuardedSender):
    """Sends the requests of a client for threads."""

    _pause = staticmethod(slept)

    async def _admit(self, request: Any) -> Permit:
        dependency, options = self._call_of(request)
        permit: Permit = self._agent.admit_call(dependency, **options)
        return permit


def _reported(agent: Agent | BlockingAgent, permit: Permit, response: Any, code: str) -> Verdict:
    verdict = classify_answer(response.status_code, response.headers, code)
    if outcome_of(verdict) is not Outcome.OK:
        report_verdict(agent, permit, verdict)
    return verdict


def _report_by_status_soon(agent: Agent | BlockingAgent, permit: Permit, response: Any) -> None:
    """Report a failure while its body is read, unless that is over in time: only the first report counts."""

    def by_status() -> None:
        if not permit.reported:
            _reported(agent, permit, response, "")

    def later() -> None:
        asyncio.get_running_loop().call_later(CODE_WITHIN_S, by_status)

    agent.soon(later)
