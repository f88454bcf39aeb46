"""Lanes decide the usual calls and requests: prepared once, and kept until a rule changes."""

from fuseboard.admission.call_guard import CallGuard
from fuseboard.admission.decisions import DecisionBuilder
from fuseboard.batching.domains import LimitDomain
from fuseboard.batching.redis_question import RedisAnswer
from fuseboard.batching.standing_demand import StandingDemand
from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.words import Mode
from fuseboard.decision import Decision
from fuseboard.subject import ONE_CALL, Costs

#: Lanes kept for calls, and for requests. When there are more, all are prepared again.
MAX_LANES = 50_000


class CallLane:
    """The calls of one tenant, or without a tenant, to one dependency."""

    __slots__ = (
        "breaker",
        "changes",
        "costs",
        "decisions",
        "demand",
        "direct",
        "guard",
        "snapshot",
        "tenant",
    )

    def __init__(
        self,
        decisions: DecisionBuilder,
        snapshot: Snapshot,
        breaker: FleetBreaker,
        demand: StandingDemand,
        changes: int,
        *,
        guard: CallGuard | None = None,
        costs: Costs = ONE_CALL,
        tenant: str = "",
    ) -> None:
        self.decisions = decisions
        self.snapshot = snapshot
        self.breaker = breaker
        self.demand = demand
        #: ``Configuration.changes`` when the lane was prepared. The lane is valid while that is the same.
        self.changes = changes
        #: The protection of this pod from the dependency; ``None`` for none.
        self.guard = guard
        #: Nothing protects this pod from the dependency, and its callers do not wait for a refusal's end.
        self.direct = guard is None and not breaker.dependency.wait_ms
        self.costs = costs
        self.tenant = tenant

    def decision_of(self, answer: RedisAnswer, mode: Mode) -> Decision:
        """The decision of all callers that share ``answer``; ``mode`` is that of the answer."""
        charge = self.decisions.charge(self.breaker.domain, self.demand, answer)
        return self.decisions.allow(
            self.snapshot,
            self.demand.statuses(answer.left),
            mode,
            dependency=self.breaker.name,
            charges=(charge,),
        )

    def lease_decision(self, answer: RedisAnswer) -> Decision:
        """The one decision of all calls in a fleet lease."""
        charge = self.decisions.charge(self.breaker.domain, self.demand, answer)
        return self.decisions.allow(
            self.snapshot,
            self.demand.statuses(answer.left),
            dependency=self.breaker.name,
            charges=(charge,),
            leased=True,
        )


class RequestLane:
    """The requests of one tenant, or of one subject when ``tenant`` is empty."""

    __slots__ = ("beside", "changes", "demand", "domain", "known", "snapshot", "suspended", "tenant", "waits")

    def __init__(
        self,
        snapshot: Snapshot,
        domain: LimitDomain,
        demand: StandingDemand,
        tenant: str = "",
        *,
        known: bool = True,
        suspended: bool = False,
        waits: bool = False,
        changes: int = 0,
        beside: "RequestLane | None" = None,
    ) -> None:
        self.snapshot = snapshot
        self.domain = domain
        self.demand = demand
        self.tenant = tenant
        #: The tenant is registered.
        self.known = known
        self.suspended = suspended
        #: Its requests wait for a refusal that ends soon, unless the caller says otherwise.
        self.waits = waits
        self.changes = changes
        #: The limits of all callers, where another question decides them: on a Cluster.
        self.beside = beside
