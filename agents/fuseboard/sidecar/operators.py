"""Answers people: the state of each dependency, and why a call would be refused."""

import asyncio
from math import ceil
from time import monotonic

import msgspec

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import INVALID, check_costs
from fuseboard.contract.protection import LocalRate as Rate
from fuseboard.contract.sidecar import AskExplanation, DependencyState, ExplainedDecision
from fuseboard.contract.words import is_subject
from fuseboard.errors import Misconfigured
from fuseboard.explain.explain_decision import explain
from fuseboard.primitives.store_thread import StoreThread
from fuseboard.protection.local_rate import LocalRate
from fuseboard.serving.exchange import Answer
from fuseboard.settings import OFF
from fuseboard.sidecar import answers
from fuseboard.subject import Subject, costs_of

#: An explanation reads the whole configuration. It takes seconds without Redis.
MAX_PER_S, MAX_AT_ONCE = 5, 5


class Operators:
    """Charges nothing."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._rate = LocalRate(Rate(limit=MAX_PER_S, window_ms=1000))
        # Decisions do not wait while it decodes the whole configuration. Each explanation has its own store.
        self._thread = StoreThread(OFF)
        #: Explanations that are worked on.
        self.under_way = 0

    def dependencies(self) -> Answer:
        """List the dependencies of the configuration and those that were called, from memory."""
        agent = self._agent
        return answers.json_answer(
            [
                DependencyState(
                    name=view.dependency,
                    state=view.state,
                    generation=view.generation,
                    override=view.override,
                    retry_after_ms=ceil(agent.refused_for_s(view.dependency) * 1000),
                )
                for view in sorted(agent.views(), key=lambda view: view.dependency)
            ]
        )

    async def explain(self, asked: AskExplanation, subject: Subject) -> Answer:
        """Answer what ``fuseboard explain`` prints here. Raises ``Misconfigured`` for invalid costs."""
        check_costs(asked.costs)
        if self.under_way >= MAX_AT_ONCE or self._rate.take(monotonic()) > 0:
            return answers.problem(503, "busy", f"{MAX_PER_S} explanations per second, {MAX_AT_ONCE} at once")
        self.under_way += 1
        tenant = asked.tenant or ""
        question = explain(
            self._agent.settings,
            tenant=tenant if not tenant or is_subject(tenant) else INVALID,
            dependency=asked.dependency or "",
            subject=subject,
            costs=costs_of(asked.cost, asked.costs),
        )
        try:
            explanation = await asyncio.wrap_future(self._thread.submit(question))
        except Misconfigured as error:
            return answers.problem(503, "no-configuration", str(error))
        finally:
            self.under_way -= 1
        content = msgspec.Raw(msgspec.json.encode(explanation))
        return answers.json_answer(ExplainedDecision(text=explanation.text(), explanation=content))

    async def stop(self) -> None:
        """End the thread of the explanations, with those that are worked on."""
        await self._thread.stop()
