"""Everything counted since the process started.

Written by the event loop alone, read by the sync thread. That needs no lock: each count is
one assignment, tables are copied by one call that the interpreter does not interrupt, and
totals that are a call or two apart hurt nobody, because the next beat repeats them all.
"""

from bisect import bisect_left
from collections.abc import Mapping
from heapq import nlargest

from fuseboard.contract.sync import LATENCY_EDGES_US, DependencyCounters, StoreCounters, TenantCounters
from fuseboard.contract.sync import Counters as WireCounters
from fuseboard.contract.words import Outcome, Reason

#: Tenants counted one by one; requests of further ones are counted in the totals only.
MAX_TENANTS = 10_000
MAX_DEPENDENCIES = 500
#: Tenants in a beat: the busiest of late.
BUSIEST_TENANTS = 50

#: How much of a tenant's activity one beat later still counts, so that the list is steady.
_ACTIVITY_DECAY = 0.8


class _Dependency:
    __slots__ = ("outcomes", "refused")

    def __init__(self) -> None:
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.refused = dict.fromkeys(Reason, 0)


class Counters:
    """Totals only: the gateway takes the differences, so a lost beat costs nothing."""

    def __init__(self) -> None:
        self.requests = 0
        self.unknown_tenants = 0
        self.local_decisions = 0
        self.store_answers = 0
        self.store_timeouts = 0
        self.store_errors = 0
        self.latency = [0] * (len(LATENCY_EDGES_US) + 1)
        self._refused = dict.fromkeys(Reason, 0)
        self._allowed_of: dict[str, int] = {}
        self._refused_of: dict[str, int] = {}
        self._dependencies: dict[str, _Dependency] = {}
        # Belongs to whoever calls ``wire``: total at the last call, and decayed activity.
        self._activity: dict[str, tuple[int, float]] = {}

    # Called by the event loop

    def request(self, tenant: str, allowed: bool, reason: Reason | None) -> None:
        """One request of a tenant was decided."""
        self.requests += 1
        if not allowed and reason is not None:
            self._refused[reason] += 1
        counts = self._allowed_of
        if tenant not in counts:
            if len(counts) >= MAX_TENANTS:
                return
            counts[tenant] = 0
        if allowed:
            counts[tenant] += 1
        else:
            self._refused_of[tenant] = self._refused_of.get(tenant, 0) + 1

    def requests_allowed(self, tenant: str, times: int) -> None:
        """Requests of a tenant that were allowed, counted together."""
        self.requests += times
        counts = self._allowed_of
        if tenant in counts or len(counts) < MAX_TENANTS:
            counts[tenant] = counts.get(tenant, 0) + times

    def call(self, dependency: str, outcome: Outcome) -> None:
        """One call to a dependency ended."""
        if (counts := self._of(dependency)) is not None:
            counts.outcomes[outcome] += 1

    def calls_ok(self, dependency: str, times: int) -> None:
        """Calls to a dependency that ended well, counted together."""
        if (counts := self._of(dependency)) is not None:
            counts.outcomes[Outcome.OK] += times

    def call_refused(self, dependency: str, reason: Reason) -> None:
        if (counts := self._of(dependency)) is not None:
            counts.refused[reason] += 1

    def store_answer(self, latency_us: int) -> None:
        """Redis answered, in time or late."""
        self.store_answers += 1
        self.latency[bisect_left(LATENCY_EDGES_US, latency_us)] += 1

    def store_timeout(self) -> None:
        """A question missed its deadline. Its late answer, should one come, counts as an answer too."""
        self.store_timeouts += 1

    def store_error(self) -> None:
        self.store_errors += 1

    def unknown_tenant(self, times: int = 1) -> None:
        """Requests came from a tenant nobody registered."""
        self.unknown_tenants += times

    def decided_locally(self) -> None:
        self.local_decisions += 1

    def _of(self, dependency: str) -> _Dependency | None:
        counts = self._dependencies.get(dependency)
        if counts is None and len(self._dependencies) < MAX_DEPENDENCIES:
            counts = self._dependencies[dependency] = _Dependency()
        return counts

    # Called by one reader, the sync thread

    def wire(self) -> WireCounters:
        """The totals as they travel. One caller at a time."""
        return WireCounters(
            requests=self.requests,
            refused=_without_zeros(self._refused),
            unknown_tenants=self.unknown_tenants,
            decided_locally=self.local_decisions,
            store=StoreCounters(
                asked=self.store_answers + self.store_timeouts + self.store_errors,
                timeouts=self.store_timeouts,
                errors=self.store_errors,
                latency=tuple(self.latency) if self.store_answers else (),
            ),
            dependencies=tuple(
                DependencyCounters(
                    dependency=name,
                    ok=counts.outcomes[Outcome.OK],
                    failure=counts.outcomes[Outcome.FAILURE],
                    slow=counts.outcomes[Outcome.SLOW],
                    neutral=counts.outcomes[Outcome.NEUTRAL],
                    refused=_without_zeros(counts.refused),
                )
                for name, counts in self._dependencies.copy().items()
            ),
            tenants=self._busiest(),
        )

    def _busiest(self) -> tuple[TenantCounters, ...]:
        allowed, refused = self._allowed_of.copy(), self._refused_of.copy()
        activity: dict[str, tuple[int, float]] = {}
        for tenant, count in allowed.items():
            total = count + refused.get(tenant, 0)
            seen, score = self._activity.get(tenant, (0, 0.0))
            activity[tenant] = (total, score * _ACTIVITY_DECAY + total - seen)
        self._activity = activity
        busiest = nlargest(BUSIEST_TENANTS, activity, key=lambda tenant: activity[tenant][1])
        return tuple(
            TenantCounters(tenant=tenant, allowed=allowed[tenant], refused=refused.get(tenant, 0))
            for tenant in busiest
        )


def _without_zeros(counts: Mapping[Reason, int]) -> dict[Reason, int]:
    return {reason: count for reason, count in counts.items() if count}
