"""What the transports for httpx and httpx2 share: one request, its permit and its attempts.

Both libraries have the same classes under the same names, so this knows neither.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from time import monotonic
from typing import Any

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_wait
from fuseboard.blocking import Agent as BlockingAgent
from fuseboard.calling import deadline
from fuseboard.calling.classification import Verdict, classify_answer, request_is_repeatable
from fuseboard.calling.codes import code_in
from fuseboard.calling.outcomes import judge_permitted, outcome_of
from fuseboard.calling.pauses import block, pause
from fuseboard.calling.retried_call import RetriedCall
from fuseboard.calling.retries import Retries
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.integrations.http_bodies import AsyncKept, Body, Kept

#: A timeout of 0 s has other meanings.
LEAST_S = 0.001


class Guard(ABC):
    """What does not wait."""

    def __init__(
        self,
        dependency: str,
        tenant: str,
        transport: Any,
        wait_s: float | None,
        retry: bool,
        idempotent: bool | None,
    ) -> None:
        check_wait(wait_s)
        self._dependency, self._tenant, self._wait_s = dependency, tenant, wait_s
        self._retry, self._idempotent = retry, idempotent
        self._transport = transport

    def _call(self, request: Any, retries: Retries | None) -> RetriedCall | None:
        """``None`` for a request that is sent once."""
        # A body that is generated cannot be sent again.
        if retries is None or not isinstance(request.stream, self._library.ByteStream):
            return None
        return RetriedCall(retries, self._dependency, until=deadline.until())

    def _again(self, call: RetriedCall | None, request: Any, verdict: Verdict, what: str) -> bool:
        if call is None:
            return False
        if 0 < verdict.status < 400:
            call.succeeded()
            return False
        idempotent = self._idempotent if self._idempotent is not None else request_is_repeatable(request)
        return call.answered(verdict, what, idempotent=idempotent)

    def _failed(self, call: RetriedCall, request: Any, error: Exception) -> bool:
        call.assume(
            idempotent=self._idempotent if self._idempotent is not None else request_is_repeatable(request)
        )
        return call.failed(error)

    def _code(self, response: Any, body: bytes) -> str:
        """The vendor's code in the body of an answer; empty when there is none."""
        try:
            copied = self._library.Response(response.status_code, headers=response.headers, content=body)
            return code_in(copied.json())
        except (ValueError, RuntimeError, self._library.DecodingError):
            return ""

    @property
    @abstractmethod
    def _library(self) -> Any:
        """httpx or httpx2."""

    @abstractmethod
    def _refusal(self, decision: Decision, request: Any) -> Exception:
        """What a refused request raises."""

    @abstractmethod
    def _stream(self, body: "Body | AsyncKept | Kept") -> Any:
        """``body`` as a stream of the library."""


class AsyncGuard(Guard):
    """``handle_async_request``."""

    _agent: Agent

    async def handle_async_request(self, request: Any) -> Any:
        call = self._call(request, self._agent.retries if self._retry else None)
        own = request.extensions.get("timeout")
        last: Any = None
        while True:
            if call is not None:
                call.begin()
            try:
                permit = await self._agent.admit_call(
                    self._dependency, tenant=self._tenant, wait_s=self._wait_s
                )
            except BaseException as error:
                if (before := not_admitted(call, error, last)) is not None:
                    return before
                if isinstance(error, Refused):
                    raise self._refusal(error.decision, request) from None
                raise
            if call is not None:
                call.admitted()
            _bound(request, own, permit.timeout_s)
            started = monotonic()
            try:
                response = await self._transport.handle_async_request(request)
            except BaseException as error:
                self._agent.report(permit, judge_permitted(permit, error)[0])
                last = None
                if call is None or not isinstance(error, Exception) or not self._failed(call, request, error):
                    raise
            else:
                verdict = await self._verdict(permit, response)
                if not self._again(call, request, verdict, f"status {response.status_code}"):
                    return self._answer(permit, verdict, response, monotonic() - started)
                try:
                    kept = await self._keep(response)
                except BaseException:
                    _dropped(call)
                    raise
                if not kept:
                    _dropped(call)
                    return response
                last = response
            if call is not None and not await _waited(call):
                if last is not None:
                    return last
                if call.cause is not None:
                    raise call.cause

    async def _verdict(self, permit: Permit, response: Any) -> Verdict:
        code = ""
        if may_have_code(response):
            try:
                await self._keep(response)
            except BaseException:
                # The status is known, and for how long the vendor asked not to be called.
                _reported(self._agent, permit, response, "")
                raise
            code = self._code(response, response.stream.kept.begun)
        return _reported(self._agent, permit, response, code)

    async def _keep(self, response: Any) -> bool:
        """Read the beginning of a body, so that it can be read again. Whether that is all of it."""
        if not hasattr(response.stream, "kept"):
            response.stream = self._stream(AsyncKept(response.stream))
        kept: AsyncKept = response.stream.kept
        return await kept.fill()

    def _answer(self, permit: Permit, verdict: Verdict, response: Any, elapsed_s: float) -> Any:
        if outcome_of(verdict) is Outcome.OK:
            response.stream = self._stream(Body(response.stream, self._agent, permit, elapsed_s))
        return response


class BlockingGuard(Guard):
    """``handle_request``: the same for threads."""

    _agent: BlockingAgent

    def handle_request(self, request: Any) -> Any:
        call = self._call(request, self._agent.retries if self._retry else None)
        own = request.extensions.get("timeout")
        last: Any = None
        while True:
            if call is not None:
                call.begin()
            try:
                permit = self._agent.admit_call(self._dependency, tenant=self._tenant, wait_s=self._wait_s)
            except BaseException as error:
                if (before := not_admitted(call, error, last)) is not None:
                    return before
                if isinstance(error, Refused):
                    raise self._refusal(error.decision, request) from None
                raise
            if call is not None:
                call.admitted()
            _bound(request, own, permit.timeout_s)
            started = monotonic()
            try:
                response = self._transport.handle_request(request)
            except BaseException as error:
                self._agent.report(permit, judge_permitted(permit, error)[0])
                last = None
                if call is None or not isinstance(error, Exception) or not self._failed(call, request, error):
                    raise
            else:
                verdict = self._verdict(permit, response)
                if not self._again(call, request, verdict, f"status {response.status_code}"):
                    return self._answer(permit, verdict, response, monotonic() - started)
                try:
                    kept = self._keep(response)
                except BaseException:
                    _dropped(call)
                    raise
                if not kept:
                    _dropped(call)
                    return response
                last = response
            if call is not None and not slept(call):
                if last is not None:
                    return last
                if call.cause is not None:
                    raise call.cause

    def _verdict(self, permit: Permit, response: Any) -> Verdict:
        code = ""
        if may_have_code(response):
            try:
                self._keep(response)
            except BaseException:
                # The status is known, and for how long the vendor asked not to be called.
                _reported(self._agent, permit, response, "")
                raise
            code = self._code(response, response.stream.kept.begun)
        return _reported(self._agent, permit, response, code)

    def _keep(self, response: Any) -> bool:
        if not hasattr(response.stream, "kept"):
            response.stream = self._stream(Kept(response.stream))
        kept: Kept = response.stream.kept
        return kept.fill()

    def _answer(self, permit: Permit, verdict: Verdict, response: Any, elapsed_s: float) -> Any:
        if outcome_of(verdict) is Outcome.OK:
            response.stream = self._stream(Body(response.stream, self._agent, permit, elapsed_s))
        return response


def not_admitted(call: RetriedCall | None, error: BaseException, last: Any) -> Any:
    """The answer of the attempt before, or ``None`` when there is none. Raises what that attempt raised."""
    if call is None or call.num == 1:
        return None
    if not isinstance(error, Refused):
        call.dropped()
        return None
    call.refused(error.decision.explain())
    if last is None and call.cause is not None:
        raise call.cause from call.cause.__cause__
    return last


async def _waited(call: RetriedCall) -> bool:
    try:
        await pause(call.next_wait_s)
    except BaseException:
        call.dropped()
        raise
    return call.resumes()


def slept(call: RetriedCall) -> bool:
    try:
        block(call.next_wait_s)
    except BaseException:
        call.dropped()
        raise
    return call.resumes()


def _dropped(call: RetriedCall | None) -> None:
    if call is not None:
        call.dropped()


def _bound(request: Any, own: Mapping[str, float | None] | None, timeout_s: float | None) -> None:
    """Set the dependency's timeout for each part of a request that has none, and the deadline for all."""
    left_s = deadline.left_s()
    if timeout_s is None and left_s is None:
        return
    timeouts = {}
    for part in ("connect", "read", "write", "pool"):
        given = (own or {}).get(part)
        wanted = timeout_s if given is None else given
        if left_s is not None:
            wanted = max(LEAST_S, left_s if wanted is None else min(wanted, left_s))
        timeouts[part] = wanted
    request.extensions = {**request.extensions, "timeout": timeouts}


def may_have_code(response: Any) -> bool:
    """A 429 for an account without money must not stop the fleet: only its body says so."""
    return response.status_code == 429 and "json" in (response.headers.get("content-type") or "")


def _reported(agent: Agent | BlockingAgent, permit: Permit, response: Any, code: str) -> Verdict:
    """Report what the status alone decides: the body may never be read, and the breaker must not wait for
    it.
    """
    verdict = classify_answer(response.status_code, response.headers, code)
    outcome = outcome_of(verdict)
    if outcome is not Outcome.OK:
        agent.report(permit, outcome, cooldown_ms=verdict.cooldown_ms)
    return verdict
