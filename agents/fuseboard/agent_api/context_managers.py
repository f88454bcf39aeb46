"""Context managers that guard a whole block, built on single decisions."""

import asyncio
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    AsyncContextDecorator,
    asynccontextmanager,
)
from contextvars import Token
from time import monotonic
from types import TracebackType
from typing import Any

from fuseboard.admission.nesting import enter_block, leave_block
from fuseboard.agent_api.decorators import Decorators, Neutral
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.agent_api.retry_api import AsyncRetries
from fuseboard.agent_api.retrying import AsyncCalls, Attempt, BlockingAttempt
from fuseboard.agent_api.threads import ThreadCalls
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.subject import NOBODY, Subject


class Block(AbstractAsyncContextManager[Permit], AsyncContextDecorator):
    """A block for one call. Also a decorator, as in release 0.1: ``Agent.guard`` is the documented one."""


class ContextManagers(Decorators, AsyncRetries, LoopAgent):
    """The blocks of an agent on an event loop."""

    @asynccontextmanager
    async def request(
        self,
        tenant: str | None,
        cost: int = 1,
        *,
        costs: Mapping[str, int] | None = None,
        subject: Subject = NOBODY,
        wait_s: float | None = None,
    ) -> AsyncIterator[Decision]:
        """Serve one request within its limits, and ``finish`` it. Raises ``Refused``."""
        decision = await self.admit_request(tenant, cost, costs=costs, subject=subject, wait_s=wait_s)
        if not decision.allowed:
            raise Refused(decision)
        try:
            yield decision
        finally:
            self.finish(decision)

    def call(
        self,
        dependency: str,
        *,
        tenant: str = "",
        cost: int = 1,
        costs: Mapping[str, int] | None = None,
        spend_quota: bool = False,
        wait_s: float | None = None,
        tier: str | None = None,
        deadline_s: float | None = None,
        neutral: Neutral = (),
    ) -> Block:
        """Guard one call: admit it, and report how the block ended. Raises ``Refused``.

        A block that takes longer than the dependency's timeout is cancelled, and raises
        ``TimeoutError``, which is a failure.

        ``neutral`` are exceptions that say nothing about the dependency. See
        ``fuseboard.calling.outcomes`` for how the others are judged. ``tier`` and ``deadline_s`` are as
        in ``admit_call``.
        """
        return CallBlock(
            self, dependency, tenant, cost, costs, spend_quota, wait_s, tier, deadline_s, neutral
        )

    def _blocks(
        self, name: str
    ) -> tuple[
        Callable[..., AbstractAsyncContextManager[object]], Callable[..., AbstractContextManager[object]]
    ]:
        return getattr(self, name), getattr(ThreadCalls(lambda: self), name)

    async def _calls(self) -> AsyncCalls:
        return self

    def _retry_loops(
        self,
    ) -> tuple[Callable[..., AsyncIterable[Attempt]], Callable[..., Iterable[BlockingAttempt]]]:
        return self.retrying, ThreadCalls(lambda: self).retrying


class CallBlock(Block):
    """Admits a call, and reports how it ended. A class: a generator in its place takes twice as long."""

    __slots__ = (
        "_agent",
        "_cost",
        "_costs",
        "_deadline_s",
        "_dependency",
        "_entered",
        "_neutral",
        "_permit",
        "_spend_quota",
        "_started",
        "_tenant",
        "_tier",
        "_timeout",
        "_wait_s",
    )

    def __init__(
        self,
        agent: LoopAgent,
        dependency: str,
        tenant: str,
        cost: int,
        costs: Mapping[str, int] | None,
        spend_quota: bool,
        wait_s: float | None,
        tier: str | None,
        deadline_s: float | None,
        neutral: Neutral,
    ) -> None:
        self._agent = agent
        self._dependency = dependency
        self._tenant = tenant
        self._cost = cost
        self._costs = costs
        self._spend_quota = spend_quota
        self._wait_s = wait_s
        self._tier = tier
        self._deadline_s = deadline_s
        self._neutral = neutral
        self._permit: Permit | None = None
        self._timeout: asyncio.Timeout | None = None
        self._started = 0.0
        self._entered: Token[Any] | None = None

    def _recreate_cm(self) -> "CallBlock":
        """A new block for each call of a decorated function."""
        return CallBlock(
            self._agent,
            self._dependency,
            self._tenant,
            self._cost,
            self._costs,
            self._spend_quota,
            self._wait_s,
            self._tier,
            self._deadline_s,
            self._neutral,
        )

    async def __aenter__(self) -> Permit:
        if self._permit is not None:
            raise RuntimeError("the block of a call is for one call: use agent.call() again")
        permit = await self._agent.admit_call(
            self._dependency,
            tenant=self._tenant,
            cost=self._cost,
            costs=self._costs,
            spend_quota=self._spend_quota,
            wait_s=self._wait_s,
            tier=self._tier,
            deadline_s=self._deadline_s,
        )
        self._permit = permit
        self._started = monotonic()
        if permit.timeout_s is not None:
            self._timeout = asyncio.timeout(permit.timeout_s)
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
            try:
                await self._timeout.__aexit__(kind, error, trace)
            except TimeoutError as late:
                self._agent.report_error(permit, late, self._neutral)
                raise
        if error is None:
            self._agent.report(permit, Outcome.OK, monotonic() - self._started)
        else:
            self._agent.report_error(permit, error, self._neutral)
