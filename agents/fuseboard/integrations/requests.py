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
from typing import Any, Unpack

import requests
import urllib3
from requests.adapters import BaseAdapter, HTTPAdapter

from fuseboard.agent_api.options import TransportOptions, list_options
from fuseboard.blocking import Agent
from fuseboard.calling import deadline
from fuseboard.calling.vendor_codes import code_in, code_in_part
from fuseboard.calling.waits import run_blocking
from fuseboard.decision import Permit
from fuseboard.integrations.guarded_request import (
    BlockingSender,
    GuardedRequest,
    RequestRefused,
    headers_bound_s,
)
from fuseboard.integrations.http_bodies import MIN_S, Body, Kept

#: The session reads bodies in such parts.
PART_BYTES = 10_240


class CallRefused(RequestRefused, requests.ConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""


class GuardedAdapter(BlockingSender, BaseAdapter):
    """With a ``tenant``, that tenant's quotas on the dependency apply too.

    If a request would be refused, it waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    _refused = CallRefused

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
        self._configure(agent, dependency, options)
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
        given = {"stream": stream, "timeout": timeout, "verify": verify, "cert": cert, "proxies": proxies}
        # A body that is read from somewhere cannot be sent again.
        repeats = isinstance(_body(request), bytes | str | None)
        response: requests.Response = run_blocking(self._exchange(request, given, repeats=repeats))
        return response

    async def _send(self, request: requests.PreparedRequest, given: Any, permit: Permit) -> "_Begun":
        bound = _bounded(_timeout(permit) if given["timeout"] is None else given["timeout"])
        response = self._adapter.send(request, **(given | {"timeout": bound}))
        return _Begun(response, streamed=given["stream"])

    def _head(self, answer: "_Begun") -> requests.Response:
        return answer.response

    def _is_readable(self, answer: "_Begun") -> bool:
        return not answer.streamed

    def _is_final(self, answer: "_Begun") -> bool:
        return answer.streamed

    async def _code(self, answer: "_Begun") -> str:
        await answer.fill()
        if not answer.whole:
            return code_in_part(answer.begun)
        try:
            return code_in(json.loads(answer.begun))
        except (ValueError, RecursionError):
            return ""

    def _succeed(self, permit: Permit, answer: "_Begun", elapsed_s: float, request: Any, given: Any) -> None:
        # Its parts come decoded. It has no stream: the response reads, and must not be in a circle.
        headers = {"content-type": answer.response.headers.get("content-type") or ""}
        _watch(answer.response, Body(None, self._agent, permit, elapsed_s, headers, requests.ReadTimeout))

    async def _replaced(self, one: GuardedRequest, answer: "_Begun") -> bool:
        try:
            await answer.fill()
        except BaseException:
            one.dropped()
            raise
        if not one.replaces(answer.response, answer):
            return False
        if answer.error is None:
            self._response(answer)
        answer.response.close()
        return True

    def _response(self, answer: "_Begun") -> requests.Response:
        """Give the response what was read of its body, and the rest, as the session would do next."""
        if answer.begun or answer.whole or answer.error is not None:
            answer.response._content = answer.rest()
        return answer.response

    def close(self) -> None:
        self._adapter.close()


def _body(request: requests.PreparedRequest) -> object:
    # Wider than its declared type: also files and generators.
    return request.body


class _Begun(Kept):
    """An answer, and the body that the session would read next. Its beginning is enough to decide.

    ``streamed``: the caller reads the body, and nothing here does.
    """

    def __init__(self, response: requests.Response, *, streamed: bool) -> None:
        super().__init__(response, iter(()) if streamed else response.iter_content(PART_BYTES))
        self.response = response
        self.streamed = streamed

    def rest(self) -> bytes:
        """All of it. Raises what the session would raise if it broke off."""
        if self.error is not None:
            raise self.error
        return b"".join(chain((self.begun,), self._rest))


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
