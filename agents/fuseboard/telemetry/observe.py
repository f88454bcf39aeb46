"""The instruments that show one run of an agent in OpenTelemetry."""

from functools import cache

from opentelemetry.metrics import get_meter

from fuseboard.admission.call_guard import CallGuards
from fuseboard.calling.retries import Retries
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.primitive_figures import PrimitiveFigures
from fuseboard.telemetry.figures import Source
from fuseboard.telemetry.model_spans import ModelSpans
from fuseboard.telemetry.pod_metrics import PodMetrics
from fuseboard.telemetry.span_events import SpanEvents


class Telemetry(SpanEvents, ModelSpans):
    """Metrics count the run from ``start`` until ``close``, in the process that started it."""

    def __init__(
        self, counters: Counters, retries: Retries, guards: CallGuards, primitives: PrimitiveFigures
    ) -> None:
        self._metrics = pod_metrics()
        SpanEvents.__init__(self, self._metrics.duration, self._metrics.call_duration)
        ModelSpans.__init__(self)
        self._source = Source(counters, retries, guards, primitives)
        primitives.locks.waits.record = self._metrics.lock_wait.record
        primitives.locks.holds.record = self._metrics.lock_hold.record

    def start(self) -> None:
        self._metrics.add(self._source)

    def close(self) -> None:
        self._metrics.remove(self._source)


@cache
def pod_metrics() -> PodMetrics:
    """Instruments exist once per process: a second one with the same name would be counted twice."""
    return PodMetrics(get_meter("fuseboard"))
