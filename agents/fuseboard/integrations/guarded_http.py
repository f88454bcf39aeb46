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
from fuseboard.calling.classification import Verdict, known_repeatable
from fuseboard.calling.codes import code_in, code_in_part
from fuseboard.calling.outcomes import judge_permitted, outcome_of
from fuseboard.calling.pauses import pause
from fuseboard.calling.retried_call import RetriedCall
from fuseboard.calling.retries import Retries
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.integrations.guarded_request import (
    GuardedRequest,
    may_have_code,
    report_by_status_soon,
    reported,
    slept,
)
from fuseboard.integrations.http_bodies import AsyncKept, Body, Kept

#: A timeout of 0 s has other meanings.
LEAST_S = 0.001


class Guard(ABC):
    """What does not wait."""

    _agent: Agent | BlockingAgent

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

    def _begun(self, request: Any, retries: Retries | None) -> GuardedRequest:
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

    def _answer(self, permit: Permit, verdict: Verdict, response: Any, elapsed_s: float) -> Any:
        """The response for the client. The permit of a success ends with its body."""
        if outcome_of(verdict) is Outcome.OK:
            response.stream = self._stream(Body(response.stream, self._agent, permit, elapsed_s))
        return response

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
        one = self._begun(request, self._agent.retries if self._retry else None)
        own = request.extensions.get("timeout")
        while True:
            one.begin()
            try:
                permit = await self._agent.admit_call(
                    self._dependency, tenant=self._tenant, wait_s=self._wait_s
                )
            except BaseException as error:
                if (before := one.not_admitted(error)) is not None:
                    return before
                if isinstance(error, Refused):
                    raise self._refusal(error.decision, request) from None
                raise
            one.admitted()
            _bound(request, own, permit.timeout_s)
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
                    return self._answer(permit, verdict, response, elapsed_s)
                if not await self._replaced(one, response):
                    return response
            if not await self._paused(one):
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

    async def _paused(self, one: GuardedRequest) -> bool:
        try:
            await pause(one.wait_s)
        except BaseException:
            one.dropped()
            raise
        return one.resumes()


class BlockingGuard(Guard):
    """``handle_request``: the same for threads."""

    _agent: BlockingAgent

    def handle_request(self, request: Any) -> Any:
        one = self._begun(request, self._agent.retries if self._retry else None)
        own = request.extensions.get("timeout")
        while True:
            one.begin()
            try:
                permit = self._agent.admit_call(self._dependency, tenant=self._tenant, wait_s=self._wait_s)
            except BaseException as error:
                if (before := one.not_admitted(error)) is not None:
                    return before
                if isinstance(error, Refused):
                    raise self._refusal(error.decision, request) from None
                raise
            one.admitted()
            _bound(request, own, permit.timeout_s)
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
                    return self._answer(permit, verdict, response, elapsed_s)
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
