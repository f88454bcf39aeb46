"""One demand for all calls with the same limits and costs, and what the pod remembers between them."""

from msgspec.structs import replace

from fuseboard.batching.demand import Demand, LimitRef, may_be_leased, most_in_redis
from fuseboard.batching.fleet_leases import DemandSupply
from fuseboard.contract.budget_limits import BudgetLimit
from fuseboard.contract.budgets import AtSpent
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Reason
from fuseboard.decision import LimitStatus
from fuseboard.reporting.request_tallies import RequestTally


class StandingDemand(Demand):
    """Made once for all calls with the same limits and costs, and kept until a rule changes."""

    __slots__ = (
        "_statuses",
        "_warns",
        "impossible_limit",
        "inherited",
        "leasable",
        "parent_tallies",
        "plain",
        "repeated",
        "rules",
        "supply",
    )

    def __init__(self, refs: tuple[LimitRef, ...], costs: tuple[int, ...], priority: int = 0) -> None:
        super().__init__(refs, costs, priority)
        #: A limit that cannot admit this call, however long the caller waits.
        self.impossible_limit = self._find_impossible()
        #: Its calls may be leased.
        self.leasable = bool(refs) and all(may_be_leased(ref.limit) for ref in refs)
        #: Counts how often it is asked for, and holds its lease. ``None`` until it is asked for again.
        self.supply: DemandSupply | None = None
        #: It was asked for before. Only then it gets a supply: costs that change with each call come once.
        self.repeated = False
        #: The request costs one call, and has no address, key or endpoint. Nearly all requests are this.
        self.plain = False
        #: The names of its limits, without those that a tenant inherits.
        self.rules = tuple([ref.limit.name for ref in refs])
        #: Tenant that owns limits -> the names of those that this demand inherits from it.
        self.inherited: dict[str, tuple[str, ...]] = {}
        #: Where its requests are counted for the tenants it inherits from.
        self.parent_tallies: tuple[RequestTally, ...] = ()
        self._statuses: tuple[LimitStatus, ...] | None = None
        self._warns = any(ref.limit.warn_percent or isinstance(ref.limit, BudgetLimit) for ref in refs)

    def statuses(self, left: tuple[int, ...] = (), spent_limit: str = "") -> tuple[LimitStatus, ...]:
        """The status of each limit.

        ``left`` is what Redis says is left. Without it, ``spent_limit`` is the name of a limit that is used
        up, or empty.
        """
        without_figures = self._statuses
        if without_figures is None:
            without_figures = self._statuses = tuple([LimitStatus.of(ref.limit) for ref in self.refs])
        if not left:
            return self._with_spent(without_figures, spent_limit) if spent_limit else without_figures
        if self._warns:
            return tuple(
                [
                    _with_left(status, ref.limit, calls)
                    for status, ref, calls in zip(without_figures, self.refs, left, strict=True)
                ]
            )
        return tuple(
            [replace(status, remaining=calls) for status, calls in zip(without_figures, left, strict=True)]
        )

    def _with_spent(self, statuses: tuple[LimitStatus, ...], name: str) -> tuple[LimitStatus, ...]:
        """``statuses``, in which nothing is left of the limit ``name``."""
        return tuple(
            [
                _with_left(status, ref.limit, 0) if status.name == name else status
                for status, ref in zip(statuses, self.refs, strict=True)
            ]
        )

    def _find_impossible(self) -> Limit | None:
        for ref, cost in zip(self.refs, self.costs, strict=True):
            if cost > most_in_redis(ref.limit):
                return ref.limit
        return None


def refusal_reason(limit: Limit, usual: Reason) -> Reason:
    """The reason of a refusal by ``limit``: concurrency limits and budgets have their own."""
    if limit.algorithm is Algorithm.CONCURRENCY:
        return Reason.CONCURRENCY
    return Reason.BUDGET_SPENT if is_budget(limit) else usual


def is_budget(limit: Limit) -> bool:
    """A budget is a fixed window that counts a cost other than calls."""
    return limit.algorithm is Algorithm.FIXED_WINDOW and limit.measure != "calls"


def _with_left(status: LimitStatus, limit: Limit, left: int) -> LimitStatus:
    whole, degraded = limit.limit, False
    if isinstance(limit, BudgetLimit):
        whole, left = limit.amount, limit.left_of(left)
        # A budget that stops would have refused the call.
        degraded = limit.at_spent is AtSpent.DEGRADE and left < 0
    warning = limit.warn_percent > 0 and (whole - left) * 100 >= limit.warn_percent * whole
    return replace(status, remaining=max(0, left), warning=warning, degraded=degraded)
