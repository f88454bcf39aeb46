"""The demand of all like calls, with what is remembered from one call to the next."""

from msgspec.structs import replace

from fuseboard.batching.demand import Demand, LimitRef, may_be_leased, most_in_redis
from fuseboard.batching.fleet_leases import LeasedDemand
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Reason
from fuseboard.decision import LimitStatus
from fuseboard.reporting.request_tallies import RequestTally


class StandingDemand(Demand):
    """Made once for all like calls, and kept until a rule changes."""

    __slots__ = (
        "_statuses",
        "_warns",
        "above",
        "inherited",
        "leasable",
        "never",
        "plain",
        "repeated",
        "rules",
        "supply",
    )

    def __init__(self, refs: tuple[LimitRef, ...], costs: tuple[int, ...], priority: int = 0) -> None:
        super().__init__(refs, costs, priority)
        #: A limit that cannot admit this call, however long the caller waits.
        self.never = self._never_fits()
        #: Whether its calls may be leased, and the lease it has.
        self.leasable = bool(refs) and all(may_be_leased(ref.limit) for ref in refs)
        self.supply: LeasedDemand | None = None
        #: It has been asked for before. Costs that differ from call to call are asked for once, and need no
        #: supply.
        self.repeated = False
        #: One call of a tenant, without a subject: nearly all requests are this.
        self.plain = False
        #: The names of the limits that bind it. Those it inherits are listed under the tenant that owns them.
        self.rules = tuple([ref.limit.name for ref in refs])
        self.inherited: dict[str, tuple[str, ...]] = {}
        #: Where its requests are counted for the tenants it inherits from.
        self.above: tuple[RequestTally, ...] = ()
        self._statuses: tuple[LimitStatus, ...] | None = None
        self._warns = any(ref.limit.warn_percent for ref in refs)

    def statuses(self, left: tuple[int, ...] = (), spent: str = "") -> tuple[LimitStatus, ...]:
        """Each limit: ``left`` is what Redis says is left, ``spent`` names a limit that is used up."""
        unknown = self._statuses
        if unknown is None:
            unknown = self._statuses = tuple([LimitStatus.of(ref.limit) for ref in self.refs])
        if not left:
            if not spent:
                return unknown
            return tuple(
                [
                    replace(status, remaining=0, warning=_warns(ref.limit, 0))
                    if status.name == spent
                    else status
                    for status, ref in zip(unknown, self.refs, strict=True)
                ]
            )
        if self._warns:
            return tuple(
                [
                    replace(status, remaining=calls, warning=_warns(ref.limit, calls))
                    for status, ref, calls in zip(unknown, self.refs, left, strict=True)
                ]
            )
        return tuple([replace(status, remaining=calls) for status, calls in zip(unknown, left, strict=True)])

    def _never_fits(self) -> Limit | None:
        for ref, cost in zip(self.refs, self.costs, strict=True):
            if cost > most_in_redis(ref.limit):
                return ref.limit
        return None


def refusal_reason(limit: Limit, usual: Reason) -> Reason:
    """The reason of a refusal by ``limit``: concurrency limits and budgets have reasons of their own."""
    if limit.algorithm is Algorithm.CONCURRENCY:
        return Reason.CONCURRENCY
    if limit.algorithm is Algorithm.FIXED_WINDOW and limit.measure != "calls":
        return Reason.BUDGET_SPENT
    return usual


def _warns(limit: Limit, left: int) -> bool:
    return limit.warn_percent > 0 and (limit.limit - left) * 100 >= limit.warn_percent * limit.limit
