"""An adapter that guards one dependency in a ``requests`` session.

::

    session.mount("https://payments.example.com", GuardedAdapter(agent, dependency="payments-api"))

A refused request raises ``CallRefused``, which is both ``fuseboard.Refused`` and
``requests.ConnectionError``. Outcomes are those of ``fuseboard.integrations.httpx``, also while the body is
read with ``content``, ``iter_content`` or ``iter_lines``. A call of ``stream=True`` ends when its body does,
or when you close the response. Redirects are separate calls.

With ``retry=True``, a failed request is sent again as the policy of the dependency allows, see
docs/protection.md. Not repeated are requests that may have arrived and are not idempotent, unless
``idempotent=True``, requests whose body is a file or generated, requests whose answer has a body of more than
64 KiB, and failures of ``stream=True`` that have an answer.
"""

import json
import weakref
from collections.abc import Iterator
from itertools import chain
from time import monotonic
from typing import Any, Unpack

import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter

from fuseboard.agent_api.arguments import check_transport_options
from fuseboard.agent_api.options import TransportOptions, list_options
from fuseboard.blocking import Agent
from fuseboard.calling import deadline
from fuseboard.calling.classification import Verdict, known_repeatable
from fuseboard.calling.outcomes import judge_permitted, outcome_of
from fuseboard.calling.retried_call import RetriedCall
from fuseboard.calling.vendor_codes import code_in, code_in_part
from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.integrations.guarded_request import (
    GuardedRequest,
    RequestRefused,
    call_options,
    headers_bound_s,
    may_have_code,
    note_unused_retries,
    report_by_status_soon,
    reported,
    slept,
)
from fuseboard.integrations.http_bodies import MAX_BYTES, MIN_S, Body

#: The session reads bodies in such parts.
PART_BYTES = 10_240


class CallRefused(RequestRefused, requests.ConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""


class GuardedAdapter(BaseAdapter):
    """With a ``tenant``, that tenant's quotas on the dependency apply too.

    If a request would be refused, it waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    @list_options()
    def __init__(
        self,
        agent: Agent,
        *,
        dependency: str,
        adapter: BaseAdapter | None = None,
        **options: Unpack[TransportOptions],
    ) -> None:
        super().__init__()
        check_transport_options("GuardedAdapter", options)
        self._agent, self._dependency = agent, dependency
        self._options = call_options(options)
        self._retry, self._idempotent = options.get("retry", False), options.get("idempotent")
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
        one = GuardedRequest(self._call(request))
        while True:
            one.begin()
            try:
                permit = self._agent.admit_call(self._dependency, **self._options)
            except BaseException as error:
                before: requests.Response | None = one.not_admitted(error)
                if before is not None:
                    return before
                if isinstance(error, Refused):
                    raise CallRefused(error.decision, request) from None
                raise
            one.admitted()
            started = monotonic()
            bound = _bounded(_timeout(permit) if timeout is None else timeout)
            try:
                response = self._adapter.send(request, timeout=bound, **given)
            except BaseException as error:
                self._agent.report(permit, judge_permitted(permit, error)[0])
                if not one.failed(error):
                    raise
            else:
                elapsed_s = monotonic() - started
                # A body that the caller streams is not read.
                body = None if stream else _Begun(response)
                verdict = self._verdict(permit, response, body, elapsed_s)
                if not one.answered(verdict, final=stream):
                    return _finished(response, body)
                if body is not None and not _replaced(one, response, body):
                    return _finished(response, body)
            if not slept(one):
                last: requests.Response = one.last()
                return last

    def _call(self, request: requests.PreparedRequest) -> RetriedCall | None:
        if not self._retry:
            note_unused_retries(self._agent, self._dependency)
        # A body that is read from somewhere cannot be sent again.
        if not self._retry or not isinstance(_body(request), bytes | str | None):
            return None
        return RetriedCall(
            self._agent.retries,
            self._dependency,
            until=deadline.until(),
            idempotent=self._idempotent if self._idempotent is not None else known_repeatable(request),
            one_request=True,
        )

    def _verdict(
        self, permit: Permit, response: requests.Response, body: "_Begun | None", elapsed_s: float
    ) -> Verdict:
        code = ""
        if body is not None and may_have_code(response):
            report_by_status_soon(self._agent, permit, response)
            try:
                body.fill()
            except BaseException:
                reported(self._agent, permit, response, "")
                raise
            code = _code(body)
        verdict = reported(self._agent, permit, response, code)
        if outcome_of(verdict) is Outcome.OK:
            # Its parts come decoded. It has no stream: the response reads, and must not be in a circle.
            headers = {"content-type": response.headers.get("content-type") or ""}
            _watch(response, Body(None, self._agent, permit, elapsed_s, headers, requests.ReadTimeout))
        return verdict

    def close(self) -> None:
        self._adapter.close()


def _body(request: requests.PreparedRequest) -> object:
    # Wider than its declared type: also files and generators.
    return request.body


class _Begun:
    """The body of an answer that the session would read next. Its beginning is enough to decide."""

    def __init__(self, response: requests.Response) -> None:
        self._response = response
        self._parts = response.iter_content(PART_BYTES)
        self.begun = b""
        self.whole = False
        self.error: Exception | None = None

    def fill(self) -> None:
        """Read at most ``MAX_BYTES`` and a part."""
        try:
            while not self.whole and self.error is None and len(self.begun) < MAX_BYTES:
                part = next(self._parts, None)
                self.whole = part is None
                self.begun += part or b""
        except Exception as error:
            self._response.close()
            self.error = error
        except BaseException:
            self._response.close()
            raise

    def rest(self) -> bytes:
        """All of it. Raises what the session would raise if it broke off."""
        if self.error is not None:
            raise self.error
        return b"".join(chain((self.begun,), self._parts))


def _watch(response: requests.Response, body: Body) -> None:
    """End the permit with the body of ``response``: when it is read, breaks off, is closed or dropped."""
    kind: Any = type(response)
    found = weakref.ref(response)

    def owner() -> requests.Response:
        alive = found()
        assert alive is not None  # noqa: S101 - its own method was called
        return alive

    def iter_content(chunk_size: int | None = 1, decode_unicode: bool = False) -> Iterator[Any]:
        return _watched(kind.iter_content(owner(), chunk_size, decode_unicode), body)

    def close() -> None:
        body.ended()
        kind.close(owner())

    response.iter_content = iter_content  # type: ignore[method-assign]
    response.close = close  # type: ignore[method-assign]


def _watched(parts: Iterator[Any], body: Body) -> Iterator[Any]:
    try:
        for part in parts:
            body.look(part if isinstance(part, bytes) else part.encode())
            yield part
    except GeneratorExit:
        raise  # the reader has enough for now
    except BaseException as error:
        body.broke(error)
        raise
    body.ended()


def _replaced(one: GuardedRequest, response: requests.Response, body: _Begun) -> bool:
    """Whether the next attempt may replace this answer. It is read whole then, so the connection is free."""
    try:
        body.fill()
    except BaseException:
        one.dropped()
        raise
    if not one.replaces(response, body):
        return False
    if body.error is None:
        _finished(response, body)
    response.close()
    return True


def _finished(response: requests.Response, body: _Begun | None) -> requests.Response:
    """Give the response what was read of its body, and the rest, as the session would do next."""
    if body is not None and (body.begun or body.whole or body.error is not None):
        response._content = body.rest()
    return response


def _code(body: _Begun) -> str:
    """The vendor's code in the body of an answer."""
    if not body.whole:
        return code_in_part(body.begun)
    try:
        return code_in(json.loads(body.begun))
    except (ValueError, RecursionError):
        return ""


def _timeout(permit: Permit) -> float | tuple[float | None, float | None] | None:
    """The call's timeout. Streams have that between two of their parts, which is one for reading."""
    headers_s = headers_bound_s(permit)
    if permit.parts is None or headers_s is None:
        return headers_s
    return permit.timeout_s, max(headers_s, permit.parts.between_s)


def _bounded(timeout: Any) -> Any:
    """``timeout`` of a session, bounded by the deadline: one number, or those for connecting and reading."""
    left_s = deadline.left_s()
    if left_s is None:
        return timeout
    if isinstance(timeout, tuple):
        return tuple(_least(part, left_s) for part in timeout)
    if isinstance(timeout, urllib3.Timeout):
        bound = timeout.clone()
        bound.total = _least(timeout.total if isinstance(timeout.total, int | float) else None, left_s)
        return bound
    return _least(timeout, left_s) if timeout is None or isinstance(timeout, int | float) else timeout


def _least(timeout_s: float | None, left_s: float) -> float:
    return max(MIN_S, left_s if timeout_s is None else min(timeout_s, left_s))
