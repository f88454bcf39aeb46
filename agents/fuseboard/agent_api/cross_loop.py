"""An agent on the event loop of another thread, used from coroutines on any loop."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TypeVar, Unpack

from fuseboard.agent_api.context_managers import ContextManagers
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.agent_api.options import CallOptions, Neutral, RequestOptions, list_options
from fuseboard.agent_api.threads import (
    Question,
    call_question,
    received,
    request_question,
    submit,
    together_question,
)
from fuseboard.calling.retries import Retries
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.subject import Ask

T = TypeVar("T", Decision, Permit)


class CrossLoopAgent(ContextManagers):
    """Offers the ``with`` blocks and decisions of ``agent`` on any loop.

    Report a permit to the agent that gave it.

    ``on_late`` is called for each decision that the agent's loop did not make in time.
    """

    def __init__(self, agent: LoopAgent, on_late: Callable[[], None]) -> None:
        self._agent = agent
        self._on_late = on_late

    @property
    def running(self) -> bool:
        return self._agent.running

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        return self._agent.loop

    @property
    def retries(self) -> Retries:
        return self._agent.retries

    @list_options()
    async def admit_request(
        self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]
    ) -> Decision:
        return await self._ask(request_question(self._agent, tenant, cost, options))

    async def admit_together(self, asks: Sequence[Ask]) -> Decision:
        return await self._ask(together_question(self._agent, asks, self._agent.admit_together))

    async def check_together(self, asks: Sequence[Ask]) -> Decision:
        return await self._ask(together_question(self._agent, asks, self._agent.check_together))

    @list_options()
    async def admit_call(self, dependency: str, **options: Unpack[CallOptions]) -> Permit:
        return await self._ask(call_question(self._agent, dependency, options))

    async def _ask(self, question: Question[T]) -> T:
        undo = self._agent.give_back
        answer = submit(self._agent, question.ask, undo)
        found = await received(answer, undo, self._on_late, timeout_s=question.timeout_s)
        return question.otherwise() if found is None else found

    def report(
        self, permit: Permit, outcome: Outcome, elapsed_s: float | None = None, *, cooldown_ms: int = 0
    ) -> None:
        self._agent.report(permit, outcome, elapsed_s, cooldown_ms=cooldown_ms)

    def report_error(self, permit: Permit, error: BaseException, neutral: Neutral = ()) -> None:
        self._agent.report_error(permit, error, neutral)

    def finish(self, decision: Decision) -> None:
        self._agent.finish(decision)

    def give_back(self, taken: Decision | Permit) -> None:
        self._agent.give_back(taken)

    def allow_unasked(self, *, tenant: str = "", dependency: str = "") -> Decision:
        """The decision that allows a call that the agent cannot decide."""
        return self._agent.allow_unasked(tenant=tenant, dependency=dependency)

    def permit_unasked(self, dependency: str) -> Permit:
        """The permit of a call that the agent cannot decide."""
        return self._agent.permit_unasked(dependency)

    def longest_wait_s(self, dependency: str = "", *, tenant: str | None = None) -> float:
        return self._agent.longest_wait_s(dependency, tenant=tenant)

    def queue_timeout_s(self, dependency: str) -> float | None:
        return self._agent.queue_timeout_s(dependency)

    def permit_late(self, dependency: str) -> Permit:
        """The permit of a call that the loop did not decide in time. Raises ``Refused`` with a bulkhead."""
        return self._agent.permit_late(dependency)
