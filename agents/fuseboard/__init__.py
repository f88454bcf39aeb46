"""Fuseboard's agent: decides every call of a pod, with Redis or without.

::

    agent = fuseboard.from_env()
    async with agent:
        decision = await agent.admit_request("acme")
        async with agent.call("payments-api"):
            ...
"""

from typing import TYPE_CHECKING

from fuseboard.contract.words import Mode, Outcome, Reason
from fuseboard.decision import Decision, LimitStatus, Permit
from fuseboard.errors import FuseboardError, Misconfigured, Refused

if TYPE_CHECKING:
    from fuseboard.agent import Agent, from_env
    from fuseboard.settings import AgentSettings

__all__ = [
    "Agent",
    "AgentSettings",
    "Decision",
    "FuseboardError",
    "LimitStatus",
    "Misconfigured",
    "Mode",
    "Outcome",
    "Permit",
    "Reason",
    "Refused",
    "from_env",
]

_LATE = {
    "Agent": "fuseboard.agent",
    "AgentSettings": "fuseboard.settings",
    "from_env": "fuseboard.agent",
}


def __getattr__(name: str) -> object:
    # The control plane imports ``fuseboard.contract`` and must not load the agent with it.
    if name in _LATE:
        from importlib import import_module

        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'fuseboard' has no attribute {name!r}")
