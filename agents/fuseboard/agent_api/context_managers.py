"""Context managers that guard a whole block, built on single decisions."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from time import monotonic

from fuseboard.agent_api.decorators import Decorators, Neutral
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.agent_api.threads import ThreadCalls
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.errors import Refused
from fuseboard.subject import NOBODY, Subject


class ContextManagers(Decorators, LoopAgent):
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

    @asynccontextmanager
    async def call(
        self,
        dependency: str,
        *,
        tenant: str = "",
        cost: int = 1,
        costs: Mapping[str, int] | None = None,
        spend_quota: bool = False,
        wait_s: float | None = None,
        neutral: Neutral = (),
    ) -> AsyncIterator[Permit]:
        """Guard one call: admit it, and report how the block ended. Raises ``Refused``.

        A block that takes longer than the dependency's timeout is cancelled, and raises
        ``TimeoutError``, which is a failure.

        ``neutral`` are exceptions that say nothing about the dependency. See
        ``fuseboard.calling.outcomes`` for how the others are judged.
        """
        permit = await self.admit_call(
            dependency, tenant=tenant, cost=cost, costs=costs, spend_quota=spend_quota, wait_s=wait_s
        )
        started = monotonic()
        try:
            async with asyncio.timeout(permit.timeout_s):
                yield permit
        except BaseException as error:
            self.report_error(permit, error, neutral)
            raise
        self.report(permit, Outcome.OK, monotonic() - started)

    def _blocks(
        self, name: str
    ) -> tuple[
        Callable[..., AbstractAsyncContextManager[object]], Callable[..., AbstractContextManager[object]]
    ]:
        return getattr(self, name), getattr(ThreadCalls(lambda: self), name)
