"""An adapter that guards one dependency in a ``requests`` session.

::

    session.mount("https://payments.example.com", GuardedAdapter(agent, dependency="payments-api"))

A refused request raises ``CallRefused``, which is both ``fuseboard.Refused`` and
``requests.ConnectionError``. Outcomes are those of ``fuseboard.integrations.httpx``, decided when the
headers have arrived: a body that breaks off later is not counted. Redirects are separate calls.

With ``retry=True``, a failed request is sent again as the policy of the dependency allows, see
docs/protection.md. Not repeated are requests that may have arrived and are not idempotent, unless
``idempotent=True``, requests whose body is a file or generated, and failures of ``stream=True`` that have an
answer.
"""

from time import monotonic
from typing import Any

import requests
from msgspec.structs import replace
from requests.adapters import BaseAdapter, HTTPAdapter

from fuseboard.agent_api.arguments import check_wait
from fuseboard.blocking import Agent
from fuseboard.calling import deadline
from fuseboard.calling.classification import Verdict, classify_answer, request_is_repeatable
from fuseboard.calling.codes import code_in
from fuseboard.calling.outcomes import judge_permitted, outcome_of
from fuseboard.calling.retried_call import RetriedCall
from fuseboard.decision import Decision
from fuseboard.errors import Refused
from fuseboard.integrations.guarded_http import LEAST_S, may_have_code, not_admitted, slept


class CallRefused(Refused, requests.ConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""

    def __init__(self, decision: Decision, request: requests.PreparedRequest) -> None:
        requests.ConnectionError.__init__(self, decision.explain(), request=request)
        self.decision = decision


class GuardedAdapter(BaseAdapter):
    """With a ``tenant``, that tenant's quotas on the dependency apply too.

    If a request would be refused, it waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    def __init__(
        self,
        agent: Agent,
        *,
        dependency: str,
        tenant: str = "",
        adapter: BaseAdapter | None = None,
        wait_s: float | None = None,
        retry: bool = False,
        idempotent: bool | None = None,
    ) -> None:
        super().__init__()
        check_wait(wait_s)
        self._agent, self._dependency, self._tenant, self._wait_s = agent, dependency, tenant, wait_s
        self._retry, self._idempotent = retry, idempotent
        self._adapter = adapter if adapter is not None else HTTPAdapter()

    def send(
        self,
        request: requests.PreparedRequest,
        stream: bool = False,
        timeout: Any = None,
        verify: Any = True,
        cert: Any = None,
        proxies: dict[str, str] | None = None,
    ) -> requests.Response:
        given: dict[str, Any] = {"stream": stream, "verify": verify, "cert": cert, "proxies": proxies}
        call = self._call(request)
        last: requests.Response | None = None
        while True:
            if call is not None:
                call.begin()
            try:
                permit = self._agent.admit_call(self._dependency, tenant=self._tenant, wait_s=self._wait_s)
            except Refused as refused:
                before: requests.Response | None = not_admitted(call, refused, last)
                if before is not None:
                    return before
                raise CallRefused(refused.decision, request) from None
            if call is not None:
                call.admitted()
            started = monotonic()
            bound = _bounded(permit.timeout_s if timeout is None else timeout)
            try:
                response = self._adapter.send(request, timeout=bound, **given)
            except BaseException as error:
                self._agent.report(permit, judge_permitted(permit, error)[0])
                last = None
                if call is None or not _failed(call, error):
                    raise
            else:
                verdict = classify_answer(response.status_code, response.headers, _code(response, stream))
                outcome, cooldown_ms = outcome_of(verdict), verdict.cooldown_ms
                self._agent.report(permit, outcome, monotonic() - started, cooldown_ms=cooldown_ms)
                if call is None or not self._again(call, verdict, request, stream):
                    return response
                last = response
                try:
                    # Read whole, as the session would, so that the connection is free.
                    _ = response.content
                except BaseException:
                    call.dropped()
                    raise
            if not slept(call):
                if last is not None:
                    return last
                if call.cause is not None:
                    raise call.cause

    def _call(self, request: requests.PreparedRequest) -> RetriedCall | None:
        # A body that is read from somewhere cannot be sent again.
        if not self._retry or not isinstance(_body(request), bytes | str | None):
            return None
        return RetriedCall(
            self._agent.retries,
            self._dependency,
            until=deadline.until(),
            idempotent=self._repeatable(request),
        )

    def _repeatable(self, request: requests.PreparedRequest) -> bool:
        return self._idempotent if self._idempotent is not None else request_is_repeatable(request)

    def _again(
        self, call: RetriedCall, verdict: Verdict, request: requests.PreparedRequest, stream: bool
    ) -> bool:
        if 0 < verdict.status < 400:
            call.succeeded()
            return False
        if stream:
            verdict = replace(verdict, retryable=False)
        return call.answered(verdict, f"status {verdict.status}", idempotent=self._repeatable(request))

    def close(self) -> None:
        self._adapter.close()


def _body(request: requests.PreparedRequest) -> object:
    # Wider than its declared type: also files and generators.
    return request.body


def _failed(call: RetriedCall, error: BaseException) -> bool:
    """Whether another attempt follows."""
    return isinstance(error, Exception) and call.failed(error)


def _bounded(timeout: Any) -> Any:
    """``timeout`` of a session, bounded by the deadline: one number, or those for connecting and reading."""
    left_s = deadline.left_s()
    if left_s is None:
        return timeout
    if isinstance(timeout, tuple):
        return tuple(_least(part, left_s) for part in timeout)
    return _least(timeout, left_s) if timeout is None or isinstance(timeout, int | float) else timeout


def _least(timeout_s: float | None, left_s: float) -> float:
    return max(LEAST_S, left_s if timeout_s is None else min(timeout_s, left_s))


def _code(response: requests.Response, stream: bool) -> str:
    """The vendor's code in the body of an answer. A body that the caller streams is not read."""
    if stream or not may_have_code(response):
        return ""
    try:
        return code_in(response.json())
    except (requests.RequestException, RecursionError):
        return ""
