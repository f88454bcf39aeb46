"""The part of the agent that a backlog needs."""

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.decision import Decision

if TYPE_CHECKING:
    from fuseboard.backlog.options import Options


class JobAgent(LoopAgent):
    @abstractmethod
    def settle(self, decision: Decision, measure: str, actual: int) -> None: ...

    @abstractmethod
    def timeout_s(self, dependency: str) -> float | None: ...


class Opener(Protocol):
    """``fuseboard.backlog.agent_backlogs.Backlogs``."""

    def get(self, dependency: str, options: "Options") -> Any: ...


class BacklogHost(JobAgent):
    backlogs: Opener
