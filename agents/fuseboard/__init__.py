"""Fuseboard's agent: decides every call of a pod, with Redis or without.

::

    agent = fuseboard.from_env()
    async with agent:
        decision = await agent.admit_request("acme")
        async with agent.call("payments-api"):
            ...

For code without an event loop, ``fuseboard.blocking`` has the same without ``await``.
"""

from typing import TYPE_CHECKING

from fuseboard.contract.words import Mode, Outcome, Reason
from fuseboard.decision import Decision, LimitStatus, Permit
from fuseboard.errors import (
    AlreadyDone,
    ClaimLost,
    FuseboardError,
    InProgress,
    LockLost,
    LockTaken,
    Misconfigured,
    Refused,
    StoreUnavailable,
)

if TYPE_CHECKING:
    from fuseboard import blocking
    from fuseboard.agent import Agent, from_env
    from fuseboard.agent_api.fallbacks import Alternative, Answer, Cached, Default, Similar
    from fuseboard.agent_api.quality import Try
    from fuseboard.calling.classification import Verdict, classify
    from fuseboard.calling.current_tenant import tenant
    from fuseboard.calling.deadline import deadline
    from fuseboard.integrations.guard import guard
    from fuseboard.primitives.idempotency_key import idempotency_key
    from fuseboard.settings import AgentSettings
    from fuseboard.subject import Ask, Subject

__all__ = [
    "Agent",
    "AgentSettings",
    "AlreadyDone",
    "Alternative",
    "Answer",
    "Ask",
    "Cached",
    "ClaimLost",
    "Decision",
    "Default",
    "FuseboardError",
    "InProgress",
    "LimitStatus",
    "LockLost",
    "LockTaken",
    "Misconfigured",
    "Mode",
    "Outcome",
    "Permit",
    "Reason",
    "Refused",
    "Similar",
    "StoreUnavailable",
    "Subject",
    "Try",
    "Verdict",
    "blocking",
    "classify",
    "deadline",
    "from_env",
    "guard",
    "idempotency_key",
    "tenant",
]

_LATE = {
    "Default": "fuseboard.agent_api.fallbacks",
    "Cached": "fuseboard.agent_api.fallbacks",
    "Answer": "fuseboard.agent_api.fallbacks",
    "Alternative": "fuseboard.agent_api.fallbacks",
    "Similar": "fuseboard.agent_api.fallbacks",
    "Try": "fuseboard.agent_api.quality",
    "Agent": "fuseboard.agent",
    "AgentSettings": "fuseboard.settings",
    "Ask": "fuseboard.subject",
    "Subject": "fuseboard.subject",
    "Verdict": "fuseboard.calling.classification",
    "classify": "fuseboard.calling.classification",
    "deadline": "fuseboard.calling.deadline",
    "from_env": "fuseboard.agent",
    "guard": "fuseboard.integrations.guard",
    "idempotency_key": "fuseboard.primitives.idempotency_key",
    "tenant": "fuseboard.calling.current_tenant",
}


def __getattr__(name: str) -> object:
    # The control plane imports ``fuseboard.contract`` and must not load the agent with it.
    from importlib import import_module

    if name == "blocking":
        return import_module("fuseboard.blocking")
    if name in _LATE:
        return getattr(import_module(_LATE[name]), name)
    raise AttributeError(f"module 'fuseboard' has no attribute {name!r}")
