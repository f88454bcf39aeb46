"""Context managers that guard a whole block, built on single decisions."""

import asyncio
from collections.abc import AsyncIterator
from contextvars import Token
from time import monotonic
from types import TracebackType
from typing import Any, Unpack

from fuseboard.admission.nesting import enter_block, leave_block
from fuseboard.agent_api.arguments import BLOCK_NAMES, check_names
from fuseboard.agent_api.blocks import AsyncBlock, async_block
from fuseboard.agent_api.decorators import Blocks, Decorators
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.agent_api.options import CallOptions, Neutral, RequestOptions, list_options
from fuseboard.agent_api.retry_api import AsyncRetries, RetryLoops
from fuseboard.agent_api.retrying import AsyncCalls
from fuseboard.agent_api.threads import ThreadCalls
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused

#: The longest block of a dependency that streams, if its parts are unknown.
LONGEST_STREAM_S = 600.0


class Block(AsyncBlock[Permit]):
    """A block for one call. Also a decorator, as in release 0.1: ``Agent.guard`` is the documented one."""


class ContextManagers(Decorators, AsyncRetries, LoopAgent):
    """The blocks of an agent on an event loop."""

    @async_block
    @list_options()
    async def request(
        self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]
    ) -> AsyncIterator[Decision]:
        """Serve one request within its limits, and ``finish`` it. Raises ``Refused``."""
        decision = await self.admit_request(tenant, cost, **options)
        if not decision.allowed:
            raise Refused(decision)
        try:
            yield decision
        finally:
            self.finish(decision)

    @list_options()
    def call(self, dependency: str, *, neutral: Neutral = (), **options: Unpack[CallOptions]) -> Block:
        """Guard one call: admit it, and report how the block ended. Raises ``Refused``.

        A block that takes longer than the call's timeout is cancelled, and raises ``TimeoutError``, which
        is a failure. A dependency with ``first_part_ms`` or ``between_parts_ms`` has no such timeout:
        call ``permit.part()`` for each part of a streamed answer, see docs/protection.md.

        ``neutral`` are exceptions that say nothing about the dependency. See
        ``fuseboard.calling.outcomes`` for how the others are judged. ``tier`` and ``deadline_s`` are as
        in ``admit_call``.
        """
        check_names("call", options.keys(), BLOCK_NAMES)
        return CallBlock(self, dependency, neutral, options)

    def _blocks(self, name: str) -> Blocks:
        return getattr(self, name), getattr(ThreadCalls(lambda: self), name)

    async def _calls(self) -> AsyncCalls:
        return self

    def _retry_loops(self) -> RetryLoops:
        return self.retrying, ThreadCalls(lambda: self).retrying


def stream_bound_s(permit: Permit) -> float:
    """The time of a block whose answer may be a stream. How long its parts take is not known yet."""
    return LONGEST_STREAM_S if permit.until is None else min(LONGEST_STREAM_S, permit.until - monotonic())


class CallBlock(Block):
    """Admits a call, and reports how it ended. A class: a generator in its place takes twice as long."""

    __slots__ = (
        "_agent",
        "_dependency",
        "_entered",
        "_neutral",
        "_options",
        "_permit",
        "_started",
        "_timeout",
    )

    def __init__(self, agent: LoopAgent, dependency: str, neutral: Neutral, options: CallOptions) -> None:
        self._agent = agent
        self._dependency = dependency
        self._neutral = neutral
        self._options = options
        self._permit: Permit | None = None
        self._timeout: asyncio.Timeout | None = None
        self._started = 0.0
        self._entered: Token[Any] | None = None

    def _recreate_cm(self) -> "CallBlock":
        """A new block for each call of a decorated function."""
        return CallBlock(self._agent, self._dependency, self._neutral, self._options)

    async def __aenter__(self) -> Permit:
        if self._permit is not None:
            raise RuntimeError("the block of a call is for one call: use agent.call() again")
        permit = await self._agent.admit_call(self._dependency, **self._options)
        self._permit = permit
        self._started = monotonic()
        permit.began_s = self._started
        if permit.timeout_s is not None:
            longest_s = permit.timeout_s if permit.parts is None else stream_bound_s(permit)
            self._timeout = permit.timer = asyncio.timeout(longest_s)
            try:
                await self._timeout.__aenter__()
            except BaseException:
                self._agent.give_back(permit)
                raise
        if permit.slot is not None:
            self._entered = enter_block(permit)
        return permit

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        permit = self._permit
        assert permit is not None  # noqa: S101 - the block was entered
        if self._entered is not None:
            leave_block(self._entered)
        if self._timeout is not None:
            permit.timer = None
            try:
                await self._timeout.__aexit__(kind, error, trace)
            except TimeoutError as late:
                self._agent.report_error(permit, late, self._neutral)
                raise
        if error is None:
            permit.end_stream()
            self._agent.report(permit, Outcome.OK, monotonic() - self._started)
        else:
            self._agent.report_error(permit, error, self._neutral)
