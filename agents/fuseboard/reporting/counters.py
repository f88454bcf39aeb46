"""Everything counted since the process started.

Written by the event loop, read by the sync thread. No lock is needed: each count is one assignment,
tables are copied by one call that the interpreter does not interrupt, and totals that differ by a call
or two do no harm, because the next heartbeat repeats all totals.
"""

from bisect import bisect_left
from collections.abc import Mapping
from heapq import nlargest
from time import monotonic

from fuseboard.contract.failures import (
    MAX_CALLS,
    MAX_FAILED_DEPENDENCIES,
    MAX_KINDS,
    OTHER_KINDS,
    DependencyFailures,
    FailedCall,
)
from fuseboard.contract.sync import (
    BUSIEST_TENANTS,
    CALL_EDGES_MS,
    LATENCY_EDGES_US,
    DependencyCounters,
    StoreCounters,
    TenantCounters,
)
from fuseboard.contract.sync import Counters as WireCounters
from fuseboard.contract.words import Outcome, Reason
from fuseboard.reporting.request_tallies import MAX_TENANTS, RequestTallies, RequestTally
from fuseboard.reporting.usage_tallies import UsageTallies

MAX_DEPENDENCIES = 500
#: Failed calls that a heartbeat repeats, so that a lost one costs nothing.
FAILED_LATELY_S = 60.0
#: The busiest of those tenants, whose requests a heartbeat also reports by rule.
BUSIEST_BY_RULE = 25

#: How much of a tenant's activity still counts one heartbeat later, so that the list is steady.
_ACTIVITY_DECAY = 0.8


class _Dependency:
    __slots__ = ("failed", "kinds", "last", "latency", "outcomes", "refused", "took_s")

    def __init__(self) -> None:
        #: Failed and slow calls: how many, by kind, and the newest as number, kind, outcome, time, trace.
        self.failed = 0
        self.kinds: dict[str, int] = {}
        self.last: tuple[tuple[int, str, Outcome, float, str], ...] = ()
        self.outcomes = dict.fromkeys(Outcome, 0)
        self.refused = dict.fromkeys(Reason, 0)
        self.latency = [0] * (len(CALL_EDGES_MS) + 1)
        #: The sum of the times in ``latency``, for their mean.
        self.took_s = 0.0

    def note_failed(self, outcome: Outcome, kind: str, trace: str) -> None:
        """Note a failed or slow call, or one that the vendor refused: a neutral one, such as a 401."""
        if kind not in self.kinds and len(self.kinds) >= MAX_KINDS:
            kind = OTHER_KINDS
        self.failed += 1
        # A new tuple, and a dictionary that is copied by one call: another thread reads them.
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        self.last = (*self.last[1 - MAX_CALLS :], (self.failed, kind, outcome, monotonic(), trace))


class Counters:
    """Totals only. The gateway computes differences, so a lost heartbeat costs nothing."""

    def __init__(self, most_tenants: int = MAX_TENANTS) -> None:
        self.unknown_tenants = 0
        self.local_decisions = 0
        self.store_answers = 0
        self.store_timeouts = 0
        self.store_errors = 0
        self.latency = [0] * (len(LATENCY_EDGES_US) + 1)
        #: The sum of all response times of Redis, for its mean.
        self.latency_us = 0
        self._refused = dict.fromkeys(Reason, 0)
        self._dependencies: dict[str, _Dependency] = {}
        self._tallies = RequestTallies(most_tenants)
        #: The usage of language models. It has a lock, because calls end in any thread.
        self.usage = UsageTallies()
        # Belongs to the caller of ``wire``: the total at the last call, and decayed activity.
        self._activity: dict[str, tuple[int, float]] = {}

    # Called by the event loop

    def tally(self, tenant: str, rules: tuple[str, ...]) -> RequestTally:
        """The tally of a tenant's requests that these rules apply to. Keep it for the next requests."""
        return self._tallies.find(tenant, rules)

    def parent_tally(self, tenant: str, rules: tuple[str, ...]) -> RequestTally:
        """The tally for requests of the children of ``tenant``."""
        return self._tallies.find(tenant, rules, below=True)

    def request(
        self,
        tenant: str,
        allowed: bool,
        reason: Reason | None,
        rules: tuple[str, ...] = (),
        rule: str = "",
    ) -> None:
        """Count one decided request of a tenant. ``rules`` apply to it, and ``rule`` refused it."""
        tally = self.tally(tenant, rules)
        if allowed:
            tally.allowed += 1
        else:
            self.request_refused(tally, reason, rule)

    def request_refused(self, tally: RequestTally, reason: Reason | None, rule: str) -> None:
        if reason is not None:
            self._refused[reason] += 1
        tally.refuse(rule)

    def call(self, dependency: str, outcome: Outcome, failure: tuple[str, str] | None = None) -> None:
        """Count how one call to a dependency ended. ``failure``: of what kind, and in which trace."""
        if (counts := self._of(dependency)) is not None:
            counts.outcomes[outcome] += 1
            if failure is not None and outcome is not Outcome.OK:
                counts.note_failed(outcome, *failure)

    def calls_ok(self, dependency: str, times: int) -> None:
        """Count calls to a dependency that ended well."""
        if (counts := self._of(dependency)) is not None:
            counts.outcomes[Outcome.OK] += times

    def call_took(self, dependency: str, seconds: float) -> None:
        """Count how long a call to a dependency took."""
        if (counts := self._of(dependency)) is not None:
            counts.latency[bisect_left(CALL_EDGES_MS, seconds * 1000)] += 1
            counts.took_s += seconds

    def call_refused(self, dependency: str, reason: Reason) -> None:
        if (counts := self._of(dependency)) is not None:
            counts.refused[reason] += 1

    def store_answer(self, latency_us: int) -> None:
        """Redis answered, in time or late."""
        self.store_answers += 1
        self.latency[bisect_left(LATENCY_EDGES_US, latency_us)] += 1
        self.latency_us += latency_us

    def store_timeout(self) -> None:
        """A question missed its deadline. If a late answer comes, it is counted as an answer too."""
        self.store_timeouts += 1

    def store_error(self) -> None:
        self.store_errors += 1

    def unknown_tenant(self, times: int = 1) -> None:
        """Count requests of a tenant that is not registered."""
        self.unknown_tenants += times

    def decided_locally(self) -> None:
        self.local_decisions += 1

    def _of(self, dependency: str) -> _Dependency | None:
        counts = self._dependencies.get(dependency)
        if counts is None and len(self._dependencies) < MAX_DEPENDENCIES:
            counts = self._dependencies[dependency] = _Dependency()
        return counts

    def calls_of(self, dependency: str, reason: Reason) -> tuple[int, int]:
        """Calls to a dependency that ended, and those refused for this reason."""
        counts = self._dependencies.get(dependency)
        return (sum(counts.outcomes.values()), counts.refused[reason]) if counts is not None else (0, 0)

    # Called by one reader, the sync thread

    @property
    def requests(self) -> int:
        return self._tallies.total()

    @property
    def left_out_tenants(self) -> bool:
        """Whether there were too many tenants to count each."""
        return self._tallies.left_out

    def by_tenant(self) -> dict[str, tuple[int, int]]:
        """Tenant -> allowed and refused requests."""
        return self._tallies.by_tenant()

    def refusals(self) -> dict[tuple[str, str], int]:
        """By dependency, empty for requests, and reason."""
        found = {("", str(reason)): times for reason, times in _without_zeros(self._refused).items()}
        for name, counts in self._dependencies.copy().items():
            found |= {(name, str(reason)): times for reason, times in _without_zeros(counts.refused).items()}
        return found

    def outcomes(self) -> dict[tuple[str, str], int]:
        """Calls that ended, by dependency and outcome."""
        return {
            (name, str(outcome)): times
            for name, counts in self._dependencies.copy().items()
            for outcome, times in counts.outcomes.items()
            if times
        }

    def call_times(self) -> dict[str, tuple[tuple[int, ...], float]]:
        """Calls by how long they took, as in ``CALL_EDGES_MS``, and their sum in seconds, by dependency."""
        return {
            name: (tuple(counts.latency), counts.took_s)
            for name, counts in self._dependencies.copy().items()
            if any(counts.latency)
        }

    def wire(self) -> WireCounters:
        """The totals in wire format. One caller at a time."""
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
                    latency=_without_last_zeros(counts.latency),
                )
                for name, counts in self._dependencies.copy().items()
            ),
            tenants=self._busiest(),
            rules=self._tallies.rules_of_all(),
        )

    def failures(self) -> tuple[DependencyFailures, ...]:
        """The failures of the dependencies that failed first: the list stays the same."""
        now = monotonic()
        failed: list[DependencyFailures] = []
        for name, counts in self._dependencies.copy().items():
            if counts.failed and len(failed) < MAX_FAILED_DEPENDENCIES:
                calls = [
                    FailedCall(
                        number=number, kind=kind, outcome=outcome, ago_ms=int((now - at) * 1000), trace=trace
                    )
                    for number, kind, outcome, at, trace in counts.last
                    if now - at < FAILED_LATELY_S
                ]
                failed.append(
                    DependencyFailures(dependency=name, kinds=counts.kinds.copy(), last=tuple(calls))
                )
        return tuple(failed)

    def _busiest(self) -> tuple[TenantCounters, ...]:
        counted = self._tallies.by_tenant()
        activity: dict[str, tuple[int, float]] = {}
        for tenant, (allowed, refused) in counted.items():
            seen, score = self._activity.get(tenant, (0, 0.0))
            activity[tenant] = (allowed + refused, score * _ACTIVITY_DECAY + allowed + refused - seen)
        self._activity = activity
        busiest = nlargest(BUSIEST_TENANTS, activity, key=lambda tenant: activity[tenant][1])
        return tuple(
            TenantCounters(
                tenant=tenant,
                allowed=counted[tenant][0],
                refused=counted[tenant][1],
                rules=self._tallies.rules_of(tenant) if place < BUSIEST_BY_RULE else (),
            )
            for place, tenant in enumerate(busiest)
        )


def _without_zeros(counts: Mapping[Reason, int]) -> dict[Reason, int]:
    return {reason: count for reason, count in counts.items() if count}


def _without_last_zeros(counts: list[int]) -> tuple[int, ...]:
    length = len(counts)
    while length and not counts[length - 1]:
        length -= 1
    return tuple(counts[:length])
