"""An agent on the event loop of another thread, used from coroutines on any loop."""

import asyncio
from collections.abc import Callable, Mapping

from fuseboard.agent_api.arguments import check_deadline, check_tier, check_wait
from fuseboard.agent_api.context_managers import ContextManagers
from fuseboard.agent_api.decorators import Neutral
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.agent_api.threads import LATE_S, received, submit
from fuseboard.calling.retries import Retries
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.subject import NOBODY, Subject


class AnyLoop(ContextManagers):
    """The blocks and decisions of ``agent``. One agent gives a permit and gets its report.

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

    async def admit_request(
        self,
        tenant: str | None,
        cost: int = 1,
        *,
        costs: Mapping[str, int] | None = None,
        subject: Subject = NOBODY,
        wait_s: float | None = None,
    ) -> Decision:
        check_wait(wait_s)
        agent = self._agent
        answer = submit(
            agent,
            lambda: agent.admit_request(tenant, cost, costs=costs, subject=subject, wait_s=wait_s),
            agent.give_back,
        )
        timeout_s = LATE_S + (agent.longest_wait_s(tenant=tenant) if wait_s is None else wait_s)
        decision = await received(answer, agent.give_back, self._on_late, timeout_s=timeout_s)
        return decision or agent.allow_unasked(tenant=tenant or "")

    async def admit_call(
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
    ) -> Permit:
        check_wait(wait_s)
        check_tier(tier)
        check_deadline(deadline_s)
        agent = self._agent
        answer = submit(
            agent,
            lambda: agent.admit_call(
                dependency,
                tenant=tenant,
                cost=cost,
                costs=costs,
                spend_quota=spend_quota,
                wait_s=wait_s,
                tier=tier,
                deadline_s=deadline_s,
            ),
            agent.give_back,
        )
        timeout_s = LATE_S + agent.longest_decision_s(dependency, wait_s, deadline_s)
        permit = await received(answer, agent.give_back, self._on_late, timeout_s=timeout_s)
        return permit or agent.permit_late(dependency)

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
        return self._agent.allow_unasked(tenant=tenant, dependency=dependency)

    def permit_unasked(self, dependency: str) -> Permit:
        return self._agent.permit_unasked(dependency)

    def longest_wait_s(self, dependency: str = "", *, tenant: str | None = None) -> float:
        return self._agent.longest_wait_s(dependency, tenant=tenant)

    def queue_timeout_s(self, dependency: str) -> float | None:
        return self._agent.queue_timeout_s(dependency)

    def permit_late(self, dependency: str) -> Permit:
        return self._agent.permit_late(dependency)
