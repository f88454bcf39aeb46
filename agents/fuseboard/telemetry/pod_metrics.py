"""Metrics of a process, read from what its agents count anyway.

A decision pays for one histogram only, as does a call that is reported, and a lock for two.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from threading import Lock

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from fuseboard.contract.pod_figures import CALL_SECONDS, EDGES, LOCK_HOLD, LOCK_WAIT, SUMS, TOTALS, PodFigure
from fuseboard.telemetry.figures import Series, Source, read
from fuseboard.telemetry.words import attribute

#: Edges from a decision in memory to a call that waits for a slot.
DURATION_EDGES_S = (0.00001, 0.00005, 0.0001, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0)


class PodMetrics:
    """The sum over the agents of this process. What an agent counted stays in the sum when it stops."""

    def __init__(self, meter: Meter) -> None:
        self.duration = meter.create_histogram(
            "fuseboard.decision.duration",
            "s",
            "How long a decision took, with every wait for a slot or for the end of a refusal.",
            explicit_bucket_boundaries_advisory=DURATION_EDGES_S,
        )
        self.lock_wait, self.lock_hold, self.call_duration = (
            meter.create_histogram(
                figure.name,
                figure.unit,
                figure.text,
                explicit_bucket_boundaries_advisory=EDGES[figure],
            )
            for figure in (LOCK_WAIT, LOCK_HOLD, CALL_SECONDS)
        )
        self._forget()
        for figure in TOTALS:
            meter.create_observable_counter(figure.name, [self._reader(figure)], figure.unit, figure.text)
        for figure in SUMS:
            meter.create_observable_up_down_counter(
                figure.name, [self._reader(figure)], figure.unit, figure.text
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
                for figure in TOTALS:
                    self._ended[figure.name].update(read(figure, source))

    def _forget(self) -> None:
        self._lock = Lock()
        self._sources: list[Source] = []
        self._ended: dict[str, Series] = {figure.name: Counter() for figure in TOTALS}

    def _reader(self, figure: PodFigure) -> Callable[[CallbackOptions], Iterable[Observation]]:
        attributes = tuple(map(attribute, figure.labels))

        def observe(_: CallbackOptions) -> Iterator[Observation]:
            with self._lock:
                values: Series = Counter(self._ended.get(figure.name))
                for source in self._sources:
                    values.update(read(figure, source))
            for series, value in values.items():
                named = zip(attributes, series, strict=True)
                yield Observation(value, {name: text for name, text in named if text})

        return observe
