"""Metrics of a process, read from what its agents count anyway: a decision pays for one histogram only.

No attribute has a value that a client chooses. An agent has at most 500 dependencies. No tenant is named.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from threading import Lock
from typing import TypeAlias

from msgspec import Struct
from opentelemetry.metrics import CallbackOptions, Meter, Observation

from fuseboard.admission.call_guard import CallGuards
from fuseboard.calling.retries import Retries
from fuseboard.protection.bulkhead import UNLIMITED, Tier
from fuseboard.reporting.counters import Counters
from fuseboard.telemetry import words

#: The values of a metric's attributes -> its value. An empty one is left out.
Series: TypeAlias = "Counter[tuple[str, ...]]"

#: From a decision in memory to a call that waits for a slot.
DURATION_EDGES_S = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0)


class Source(Struct, frozen=True, eq=False):
    """One run of an agent."""

    counters: Counters
    retries: Retries
    guards: CallGuards


class _Metric(Struct, frozen=True):
    name: str
    unit: str
    text: str
    attributes: tuple[str, ...]
    read: Callable[[Source], Series]


def _requests(source: Source) -> Series:
    return Counter({(): source.counters.requests})


def _refusals(source: Source) -> Series:
    return Counter(
        {
            (words.CALL if dependency else words.REQUEST, reason, dependency): times
            for (dependency, reason), times in source.counters.refusals().items()
        }
    )


def _calls(source: Source) -> Series:
    return Counter(source.counters.outcomes())


def _retries(source: Source) -> Series:
    return Counter({(name,): totals.retries for name, totals in source.retries.totals().items()})


def _no_budget(source: Source) -> Series:
    return Counter({(name,): totals.no_budget for name, totals in source.retries.totals().items()})


def _local(source: Source) -> Series:
    return Counter({(): source.counters.local_decisions})


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
            (guard.name,): sum(min(pool.limit, UNLIMITED) for pool in guard.bulkhead.pools)
            for guard in source.guards.every()
            if guard.bulkhead is not None
        }
    )


TOTALS = (
    _Metric("fuseboard.requests", "{request}", "Requests that were decided.", (), _requests),
    _Metric(
        "fuseboard.refusals",
        "{refusal}",
        "Requests and calls that were refused.",
        (words.KIND, words.REASON, words.DEPENDENCY),
        _refusals,
    ),
    _Metric("fuseboard.calls", "{call}", "Calls that ended.", (words.DEPENDENCY, words.OUTCOME), _calls),
    _Metric("fuseboard.retries", "{retry}", "Attempts after the first.", (words.DEPENDENCY,), _retries),
    _Metric(
        "fuseboard.retries.no_budget",
        "{retry}",
        "Retries that the budget refused.",
        (words.DEPENDENCY,),
        _no_budget,
    ),
    _Metric("fuseboard.decisions.local", "{decision}", "Decisions without Redis.", (), _local),
)

_TIERS = (words.DEPENDENCY, words.TIER)
NOW = (
    _Metric(
        "fuseboard.bulkhead.in_use",
        "{call}",
        "Calls that have a slot of a bulkhead.",
        _TIERS,
        _of_tiers(lambda tier: tier.active),
    ),
    _Metric(
        "fuseboard.bulkhead.size",
        "{call}",
        "Slots of a bulkhead, of all tiers.",
        (words.DEPENDENCY,),
        _sizes,
    ),
    _Metric(
        "fuseboard.bulkhead.waiting",
        "{call}",
        "Calls that wait for a slot.",
        _TIERS,
        _of_tiers(lambda tier: len(tier.waiters)),
    ),
)


class PodMetrics:
    """The sum over the agents of this process. What an agent counted stays in the sum when it stops."""

    def __init__(self, meter: Meter) -> None:
        self.duration = meter.create_histogram(
            "fuseboard.decision.duration",
            "s",
            "How long a decision took, with every wait for a slot or for the end of a refusal.",
            explicit_bucket_boundaries_advisory=DURATION_EDGES_S,
        )
        self._forget()
        for metric in TOTALS:
            meter.create_observable_counter(metric.name, [self._reader(metric)], metric.unit, metric.text)
        for metric in NOW:
            meter.create_observable_up_down_counter(
                metric.name, [self._reader(metric)], metric.unit, metric.text
            )
        # A child of a fork starts agents of its own. What its parent counted is in the parent's metrics.
        os.register_at_fork(after_in_child=self._forget)

    def add(self, source: Source) -> None:
        with self._lock:
            self._sources.append(source)

    def remove(self, source: Source) -> None:
        """This run has ended."""
        with self._lock:
            if source in self._sources:
                self._sources.remove(source)
                for metric in TOTALS:
                    self._ended[metric.name].update(metric.read(source))

    def _forget(self) -> None:
        self._lock = Lock()
        self._sources: list[Source] = []
        self._ended: dict[str, Series] = {metric.name: Counter() for metric in TOTALS}

    def _reader(self, metric: _Metric) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def read(_: CallbackOptions) -> Iterator[Observation]:
            with self._lock:
                values: Series = Counter(self._ended.get(metric.name))
                for source in self._sources:
                    values.update(metric.read(source))
            for series, value in values.items():
                named = zip(metric.attributes, series, strict=True)
                yield Observation(value, {name: text for name, text in named if text})

        return read
