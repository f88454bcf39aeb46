"""The agent's answers: a decision for every call, a permit for every call that may be made."""

from dataclasses import dataclass, field
from typing import Any

from fuseboard.contract.words import BreakerState, Mode, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitStatus:
    """One limit that was checked, for response headers and ``explain``."""

    name: str
    limit: int
    window_ms: int
    #: Calls left, a lower bound; ``None`` when this decision did not learn it.
    remaining: int | None = None
    #: The limit's ``warn_percent`` is spent.
    warning: bool = False


@dataclass(frozen=True, slots=True)
class Charge:
    """What an allowed call was charged, and where: for settling it when its real cost is known."""

    domain: str
    #: A ``fuseboard.admission.demand.Demand``; for the agent alone.
    demand: Any
    #: Store time of the admission.
    at_us: int
    token: str
    #: Charged to this server's share, not in Redis.
    local: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Allowed or refused, and everything needed to say why."""

    allowed: bool
    #: Set exactly when refused.
    reason: Reason | None = None
    #: When asking again can succeed, in milliseconds; 0 when allowed or unknown.
    retry_after_ms: int = 0
    #: The quota, vendor limit or dependency that decided.
    rule: str = ""
    tenant: str = ""
    dependency: str = ""
    #: The configuration it was decided by.
    revision: int = 0
    mode: Mode = Mode.SHARED
    server: str = ""
    limits: tuple[LimitStatus, ...] = ()
    #: What was spent; give the decision to ``Agent.settle`` or ``Agent.finish``.
    charges: tuple[Charge, ...] = field(default=(), repr=False, compare=False)
    #: Decided from memory, with calls leased from Redis in advance.
    leased: bool = False

    def explain(self) -> str:
        """One sentence for a log line or a support ticket."""
        subject = f"tenant {self.tenant!r}" if self.tenant else f"dependency {self.dependency!r}"
        by = f"by {self.server or 'this server'} in mode {self.mode}, revision {self.revision}"
        if self.allowed:
            return f"{subject}: allowed {by}"
        again = f", try again in {self.retry_after_ms} ms" if self.retry_after_ms else ""
        return f"{subject}: refused ({self.reason}) by {self.rule or 'no rule'}{again}, decided {by}"


@dataclass(slots=True, kw_only=True)
class Permit:
    """Leave to make one call to a dependency. Report its outcome exactly once."""

    decision: Decision
    dependency: str
    #: The breaker's generation at admission: outcomes of an older one change nothing.
    generation: int
    #: The half-open lease, or empty when the breaker was closed.
    token: str = ""
    state: BreakerState = BreakerState.CLOSED
    reported: bool = False
