"""The shape of an entry of the catalogue, and what Prometheus' library makes of it."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from math import prod
from types import MappingProxyType
from typing import ClassVar, TypeVar

import prometheus_client
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

# A second series for each counter, of its creation, doubles what Prometheus stores.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call] # untyped in prometheus_client

WEB, WORKER, GATEWAY = "web", "worker", "gateway"
#: A process of a service, with the agent in it.
POD = "pod"


@dataclass(frozen=True)
class Panel:
    """A panel of the dashboard of Grafana. ``monitoring/grafana.py`` makes its query from the metric."""

    #: The row of the dashboard that it belongs to.
    row: str
    title: str
    _: KW_ONLY
    #: The labels that have a line each, if not all of them.
    lines: tuple[str, ...] | None = None
    #: The selector of the series that it shows, such as ``kind="p95"``.
    only: str = ""
    #: Whether it leaves out lines at zero.
    above_zero: bool = False
    #: Whether it shows a counter per second, not in 5 minutes.
    per_second: bool = False
    #: A query instead of the usual one.
    promql: str = ""
    #: The name of a line instead of the values of its labels.
    legend: str = ""


@dataclass(frozen=True)
class Metric:
    #: The scraped name: with its unit, and with ``_total`` if it is a counter.
    name: str
    help: str
    #: The processes that export it.
    by: tuple[str, ...] = ()
    labels: tuple[str, ...] = ()
    #: Series that one process exports at most, with 100,000 tenants and 200 dependencies.
    most: int = 1
    panel: Panel | None = None

    type: ClassVar[str]


@dataclass(frozen=True)
class Counter(Metric):
    type = "counter"

    def make(self) -> prometheus_client.Counter:
        """A counter in the registry of this process."""
        return prometheus_client.Counter(self.name, self.help, self.labels)

    def family(self, value: float | None = None) -> CounterMetricFamily:
        """A family for a collector that reads values at each scrape."""
        return CounterMetricFamily(self.name, self.help, value, labels=_labels(self, value))


@dataclass(frozen=True)
class Gauge(Metric):
    type = "gauge"

    def make(self) -> prometheus_client.Gauge:
        """A gauge in the registry of this process. Of several child processes, the newest value counts."""
        return prometheus_client.Gauge(self.name, self.help, self.labels, multiprocess_mode="mostrecent")

    def family(self, value: float | None = None) -> GaugeMetricFamily:
        return GaugeMetricFamily(self.name, self.help, value, labels=_labels(self, value))


@dataclass(frozen=True)
class Histogram(Metric):
    buckets: tuple[float, ...] = ()

    type = "histogram"

    def make(self) -> prometheus_client.Histogram:
        return prometheus_client.Histogram(self.name, self.help, self.labels, buckets=self.buckets)

    def family(self, cumulative: Sequence[tuple[str, float]], total: float) -> HistogramMetricFamily:
        """One series without labels: each edge and the values up to it, and the sum of all values."""
        return HistogramMetricFamily(self.name, self.help, buckets=cumulative, sum_value=total)


M = TypeVar("M", bound=Metric)


def per_environment(
    name: str,
    kind: type[M],
    text: str,
    by: str,
    labels: Mapping[str, int] = MappingProxyType({}),
    *,
    most: int | None = None,
    panel: Panel | None = None,
) -> M:
    """A metric of one process with a series for each environment, and for the values of other labels.

    ``labels``: how many values each has at most. ``most``: the number of series, where it is smaller than the
    product of these numbers.
    """
    every = prod(labels.values()) if most is None else most
    return kind(name, text, (by,), ("environment", *labels), every, panel)


def _labels(metric: Metric, value: float | None) -> tuple[str, ...] | None:
    return metric.labels if value is None else None
