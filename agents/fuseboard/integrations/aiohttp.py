"""A client middleware of aiohttp that guards one dependency.

::

    guarded = GuardedMiddleware(agent, dependency="payments-api")
    session = aiohttp.ClientSession(middlewares=(guarded,))

A refused request raises ``CallRefused``, which is both ``fuseboard.Refused`` and
``aiohttp.ClientConnectionError``. Outcomes are those of ``fuseboard.integrations.httpx``, decided when the
headers have arrived: a body that breaks off later is not counted. Redirects are separate calls. The session
keeps its proxies, limits and TLS. The timeout of the dependency bounds the time until the headers.

With ``retry=True``, a failed request is sent again as the policy of the dependency allows, see
docs/protection.md. Not repeated are requests that may have arrived and are not idempotent, unless
``idempotent=True``, requests whose body is a file or generated, and requests whose answer has a body of more
than 64 KiB or of unknown length.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Unpack

import aiohttp

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_transport_options
from fuseboard.agent_api.options import TransportOptions, list_options
from fuseboard.calling import deadline
from fuseboard.calling.classification import Verdict, known_repeatable
from fuseboard.calling.outcomes import judge_permitted, outcome_of
from fuseboard.calling.retried_call import RetriedCall
from fuseboard.calling.vendor_codes import code_in
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
    paused,
    report_by_status_soon,
    reported,
)
from fuseboard.integrations.http_bodies import MAX_BYTES


class CallRefused(RequestRefused, aiohttp.ClientConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""


class GuardedMiddleware:
    """With a ``tenant``, that tenant's quotas on the dependency apply too.

    If a request would be refused, it waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    @list_options()
    def __init__(self, agent: Agent, *, dependency: str, **options: Unpack[TransportOptions]) -> None:
        check_transport_options("GuardedMiddleware", options)
        self._agent, self._dependency = agent, dependency
        self._options = call_options(options)
        self._retry, self._idempotent = options.get("retry", False), options.get("idempotent")

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        one = GuardedRequest(self._call(request))
        while True:
            one.begin()
            try:
                permit = await self._agent.admit_call(self._dependency, **self._options)
            except BaseException as error:
                before: aiohttp.ClientResponse | None = one.not_admitted(error)
                if before is not None:
                    return before
                if isinstance(error, Refused):
                    raise CallRefused(error.decision, request) from None
                raise
            one.admitted()
            started = monotonic()
            try:
                async with asyncio.timeout(headers_bound_s(permit)):
                    response = await handler(request)
            except BaseException as error:
                self._agent.report(permit, judge_permitted(permit, error)[0])
                if not one.failed(error):
                    raise
            else:
                verdict = await self._verdict(permit, response, monotonic() - started)
                if not one.answered(verdict) or not await _replaced(one, response):
                    return response
            if not await paused(one):
                last: aiohttp.ClientResponse = one.last()
                return last

    def _call(self, request: aiohttp.ClientRequest) -> RetriedCall | None:
        if not self._retry:
            note_unused_retries(self._agent, self._dependency)
        # A file or a generator cannot be sent again.
        if not self._retry or not isinstance(request.body, bytes | aiohttp.BytesPayload):
            return None
        return RetriedCall(
            self._agent.retries,
            self._dependency,
            until=deadline.until(),
            idempotent=self._idempotent if self._idempotent is not None else known_repeatable(request),
            one_request=True,
        )

    async def _verdict(self, permit: Permit, response: aiohttp.ClientResponse, elapsed_s: float) -> Verdict:
        answer = _Answer(response.status, response.headers)
        code = ""
        if may_have_code(answer) and _is_short(response):
            report_by_status_soon(self._agent, permit, answer)
            try:
                code = code_in(json.loads(await response.read()))
            except (ValueError, RecursionError):
                code = ""
            except BaseException:
                reported(self._agent, permit, answer, "")
                raise
        verdict = reported(self._agent, permit, answer, code)
        if outcome_of(verdict) is Outcome.OK:
            self._agent.report(permit, Outcome.OK, elapsed_s)
        return verdict


@dataclass(frozen=True)
class _Answer:
    """An answer, with the names that the other libraries use."""

    status_code: int
    headers: Mapping[str, str]


@dataclass
class _Read:
    whole: bool
    error: Exception | None = None


async def _replaced(one: GuardedRequest, response: aiohttp.ClientResponse) -> bool:
    """Whether the next attempt may replace this answer. It is read whole then, so the connection is free."""
    read = _Read(whole=_is_short(response))
    if read.whole:
        try:
            await response.read()
        except Exception as error:
            read.error = error
        except BaseException:
            one.dropped()
            raise
    return one.replaces(response, read)


def _is_short(response: aiohttp.ClientResponse) -> bool:
    length = response.content_length
    return length is not None and length <= MAX_BYTES
