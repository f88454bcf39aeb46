"""Lanes decide the usual calls and requests: prepared once, and kept until a rule changes."""

from msgspec import Struct

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


class CallLane(Struct, eq=False):
    """The calls of one tenant, or without a tenant, to one dependency."""

    decisions: DecisionBuilder
    snapshot: Snapshot
    breaker: FleetBreaker
    demand: StandingDemand
    #: ``Configuration.changes`` when the lane was prepared. The lane is valid while that is the same.
    changes: int
    #: The protection of this pod from the dependency; ``None`` for none.
    guard: CallGuard | None = None
    costs: Costs = ONE_CALL
    tenant: str = ""
    #: Nothing protects this pod from the dependency, and its callers do not wait for a refusal's end.
    direct: bool = False

    def __post_init__(self) -> None:
        self.direct = self.guard is None and not self.breaker.dependency.wait_ms

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


class RequestLane(Struct, eq=False):
    """The requests of one tenant, or of one subject when ``tenant`` is empty."""

    snapshot: Snapshot
    domain: LimitDomain
    demand: StandingDemand
    tenant: str = ""
    #: The tenant is registered.
    known: bool = True
    suspended: bool = False
    #: Its requests wait for a refusal that ends soon, unless the caller says otherwise.
    waits: bool = False
    changes: int = 0
    #: The limits of all callers, where another question decides them: on a Cluster.
    beside: "RequestLane | None" = None
