"""Reads the figures of a run of an agent from what it counts anyway. Any thread can read them.

No label has a value that a client chooses. An agent has at most 500 dependencies. No tenant is named.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeAlias

from msgspec import Struct

from fuseboard.admission.call_guard import CallGuards
from fuseboard.calling.retries import CallTotals, Retries
from fuseboard.contract import pod_figures
from fuseboard.contract.pod_figures import PodFigure
from fuseboard.protection.bulkhead import UNLIMITED, Tier
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.primitive_figures import PrimitiveFigures

#: The values of a figure's labels -> its value. An empty one is left out.
Series: TypeAlias = "Counter[tuple[str, ...]]"

REQUEST, CALL = "request", "call"


class Source(Struct, frozen=True, eq=False):
    """One run of an agent."""

    counters: Counters
    retries: Retries
    guards: CallGuards
    primitives: PrimitiveFigures


def _refusals(source: Source) -> Series:
    return Counter(
        {
            (CALL if dependency else REQUEST, reason, dependency): times
            for (dependency, reason), times in source.counters.refusals().items()
        }
    )


def _events(events: Mapping[str, int]) -> Series:
    return Counter({(name,): count for name, count in events.items()})


def _of_calls(read: Callable[[CallTotals], int]) -> Callable[[Source], Series]:
    def values(source: Source) -> Series:
        return Counter({(name,): read(totals) for name, totals in source.retries.totals().items()})

    return values


def _of_tiers(read: Callable[[Tier], int]) -> Callable[[Source], Series]:
    def values(source: Source) -> Series:
        found: Series = Counter()
        for guard in source.guards.every():
            for tier in guard.bulkhead.tiers if guard.bulkhead is not None else ():
                found[guard.name, str(tier.name)] = read(tier)
        return found

    return values


def _sizes(source: Source) -> Series:
    return Counter(
        {
            (guard.name,): sum(min(pool.share, UNLIMITED) for pool in guard.bulkhead.pools)
            for guard in source.guards.every()
            if guard.bulkhead is not None
        }
    )


_READERS: Mapping[PodFigure, Callable[[Source], Series]] = MappingProxyType(
    {
        pod_figures.REQUESTS: lambda source: Counter({(): source.counters.requests}),
        pod_figures.REFUSALS: _refusals,
        pod_figures.CALLS: lambda source: Counter(source.counters.outcomes()),
        pod_figures.RETRIES: _of_calls(lambda totals: totals.retries),
        pod_figures.HELPED: _of_calls(lambda totals: totals.helped),
        pod_figures.EXHAUSTED: _of_calls(lambda totals: totals.exhausted),
        pod_figures.NO_BUDGET: _of_calls(lambda totals: totals.no_budget),
        pod_figures.LOCAL: lambda source: Counter({(): source.counters.local_decisions}),
        pod_figures.REDIS_FAILURES: lambda source: Counter(
            {("timeout",): source.counters.store_timeouts, ("error",): source.counters.store_errors}
        ),
        pod_figures.LOCKS: lambda source: _events(source.primitives.locks.events()),
        pod_figures.ONCE: lambda source: _events(source.primitives.once.events()),
        pod_figures.LOCKS_HELD: lambda source: Counter({(): len(source.primitives.locks.held)}),
        pod_figures.IN_USE: _of_tiers(lambda tier: tier.active),
        pod_figures.SIZE: _sizes,
        pod_figures.WAITING: _of_tiers(lambda tier: len(tier.waiters)),
    }
)


def read(figure: PodFigure, source: Source) -> Series:
    """One of ``TOTALS`` or ``SUMS``."""
    return _READERS[figure](source)
