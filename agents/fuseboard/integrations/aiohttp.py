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
from typing import Any, Unpack

import aiohttp

from fuseboard.agent import Agent
from fuseboard.agent_api.options import TransportOptions, list_options
from fuseboard.calling.vendor_codes import code_in
from fuseboard.contract.words import Outcome
from fuseboard.decision import Permit
from fuseboard.integrations.guarded_request import (
    GuardedRequest,
    GuardedSender,
    RequestRefused,
    headers_bound_s,
)
from fuseboard.integrations.http_bodies import MAX_BYTES


class CallRefused(RequestRefused, aiohttp.ClientConnectionError):
    """The request was not sent. ``decision`` says why, and when to try again."""


class GuardedMiddleware(GuardedSender):
    """With a ``tenant``, that tenant's quotas on the dependency apply too.

    If a request would be refused, it waits, provided that the refusal ends within ``wait_s`` seconds.
    """

    _refused = CallRefused

    @list_options()
    def __init__(self, agent: Agent, *, dependency: str, **options: Unpack[TransportOptions]) -> None:
        self._configure(agent, dependency, options)

    async def __call__(
        self, request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        # A file or a generator cannot be sent again.
        repeats = isinstance(request.body, bytes | aiohttp.BytesPayload)
        response: aiohttp.ClientResponse = await self._exchange(request, handler, repeats=repeats)
        return response

    async def _send(
        self, request: aiohttp.ClientRequest, given: aiohttp.ClientHandlerType, permit: Permit
    ) -> aiohttp.ClientResponse:
        async with asyncio.timeout(headers_bound_s(permit)):
            return await given(request)

    def _head(self, answer: aiohttp.ClientResponse) -> "_Answer":
        return _Answer(answer.status, answer.headers)

    def _is_readable(self, answer: aiohttp.ClientResponse) -> bool:
        return _is_short(answer)

    async def _code(self, answer: aiohttp.ClientResponse) -> str:
        try:
            return code_in(json.loads(await answer.read()))
        except (ValueError, RecursionError):
            return ""

    def _succeed(self, permit: Permit, answer: Any, elapsed_s: float, request: Any, given: Any) -> None:
        self._agent.report(permit, Outcome.OK, elapsed_s)

    async def _replaced(self, one: GuardedRequest, answer: aiohttp.ClientResponse) -> bool:
        read = _Read(whole=_is_short(answer))
        if read.whole:
            try:
                await answer.read()
            except Exception as error:
                read.error = error
            except BaseException:
                one.dropped()
                raise
        return one.replaces(answer, read)


@dataclass(frozen=True)
class _Answer:
    """An answer, with the names that the other libraries use."""

    status_code: int
    headers: Mapping[str, str]


@dataclass
class _Read:
    whole: bool
    error: Exception | None = None


def _is_short(response: aiohttp.ClientResponse) -> bool:
    length = response.content_length
    return length is not None and length <= MAX_BYTES
