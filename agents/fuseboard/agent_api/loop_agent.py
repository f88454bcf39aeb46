"""The parts of an agent on an event loop that the blocks, the decorators and the blocking agent need."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Unpack

from fuseboard.agent_api.options import CallOptions, Neutral, RequestOptions
from fuseboard.calling.deadline import bounded
from fuseboard.calling.retries import Retries
from fuseboard.contract.words import Outcome
from fuseboard.decision import Decision, Permit
from fuseboard.subject import Ask


class LoopAgent(ABC):
    """``fuseboard.Agent`` implements it; see the docstrings there."""

    @property
    @abstractmethod
    def running(self) -> bool: ...

    @property
    @abstractmethod
    def loop(self) -> asyncio.AbstractEventLoop: ...

    @property
    @abstractmethod
    def retries(self) -> Retries: ...

    @abstractmethod
    async def admit_request(
        self, tenant: str | None, cost: int = 1, **options: Unpack[RequestOptions]
    ) -> Decision: ...

    @abstractmethod
    async def admit_together(self, asks: Sequence[Ask]) -> Decision: ...

    @abstractmethod
    async def check_together(self, asks: Sequence[Ask]) -> Decision: ...

    @abstractmethod
    async def admit_call(self, dependency: str, **options: Unpack[CallOptions]) -> Permit: ...

    @abstractmethod
    def report(
        self, permit: Permit, outcome: Outcome, elapsed_s: float | None = None, *, cooldown_ms: int = 0
    ) -> None: ...

    @abstractmethod
    def report_error(self, permit: Permit, error: BaseException, neutral: Neutral = ()) -> None: ...

    @abstractmethod
    def finish(self, decision: Decision) -> None: ...

    @abstractmethod
    def give_back(self, taken: Decision | Permit) -> None: ...

    @abstractmethod
    def longest_wait_s(self, dependency: str = "", *, tenant: str | None = None) -> float: ...

    @abstractmethod
    def queue_timeout_s(self, dependency: str) -> float | None: ...

    def longest_decision_s(
        self, dependency: str, wait_s: float | None = None, deadline_s: float | None = None
    ) -> float:
        """How long the decision of a call may take, because it waits for a limit or for a slot."""
        longest_s = self.longest_wait_s(dependency) if wait_s is None else wait_s
        longest_s += self.queue_timeout_s(dependency) or 0.0
        left_s = bounded(longest_s if deadline_s is None else min(longest_s, deadline_s))
        return longest_s if left_s is None else left_s

    @abstractmethod
    def allow_unasked(self, *, tenant: str = "", dependency: str = "") -> Decision: ...

    @abstractmethod
    def permit_unasked(self, dependency: str) -> Permit: ...

    @abstractmethod
    def permit_late(self, dependency: str) -> Permit: ...
