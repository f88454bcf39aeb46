"""Metrics that a pod exports by itself, if its service mounts ``metrics``. The agent defines the figures."""

from controlplane.metric_catalogue.metric import POD, Counter, Gauge, Histogram, Metric
from controlplane.metric_catalogue.traffic import MAX_DEPENDENCIES
from fuseboard.contract import pod_figures
from fuseboard.contract.pod_figures import EDGES, SERVER, PodFigure
from fuseboard.contract.primitives import LOCK_EVENTS, ONCE_EVENTS
from fuseboard.contract.words import CallTier, Mode, Outcome, Reason

#: Values of each label at most. What is refused is a request, or a call to a dependency.
_VALUES = {
    pod_figures.DEPENDENCY: MAX_DEPENDENCIES,
    pod_figures.MODE: len(Mode),
    pod_figures.OUTCOME: len(Outcome),
    pod_figures.REASON: len(Reason),
    pod_figures.TIER: len(CallTier),
}
#: A request is refused for no dependency. A question to Redis fails in two ways.
_MAX_SERIES = {
    pod_figures.REFUSALS.name: (MAX_DEPENDENCIES + 1) * len(Reason),
    pod_figures.REDIS_FAILURES.name: 2,
    pod_figures.LOCKS.name: len(LOCK_EVENTS),
    pod_figures.ONCE.name: len(ONCE_EVENTS),
}


def _metric(figure: PodFigure) -> Metric:
    of = Counter if figure.total else Gauge
    return of(figure.series, figure.text, by=(POD,), labels=(SERVER, *figure.labels), most=_most(figure))


def _most(figure: PodFigure) -> int:
    most = _MAX_SERIES.get(figure.name, 1)
    if figure.name not in _MAX_SERIES:
        for label in figure.labels:
            most *= _VALUES.get(label, 1)
    return most


def _histogram(figure: PodFigure, edges: tuple[float, ...]) -> Histogram:
    return Histogram(
        figure.series,
        figure.text,
        by=(POD,),
        labels=(SERVER, *figure.labels),
        # Buckets, the one without an edge, the sum and the count.
        most=(pod_figures.MAX_IN_HISTOGRAMS if figure.labels else 1) * (len(edges) + 3),
        buckets=edges,
    )


METRICS: tuple[Metric, ...] = (
    *(_metric(figure) for figure in pod_figures.EVERY if figure not in EDGES),
    *(_histogram(figure, edges) for figure, edges in EDGES.items()),
)
