"""The figures of an agent in the text format of Prometheus, version 0.0.4.

Written here and not by ``prometheus_client``: every pod of every user would install and load it.
"""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from fuseboard.admission.call_guard import CallGuards
from fuseboard.calling.retries import Retries
from fuseboard.contract import pod_figures
from fuseboard.contract.pod_figures import REDIS_EDGES_S, REDIS_SECONDS, SERVER, PodFigure
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import BreakerState, Mode, OverrideMode
from fuseboard.reporting.counters import Counters
from fuseboard.telemetry.figures import Source, read

_STATES = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}
_FORCED_OPEN = 3
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_Samples = Iterable[tuple[tuple[str, ...], float]]


class Pod(Struct, frozen=True, kw_only=True):
    """What an agent knows of itself at this moment."""

    server: str
    environment: str
    service: str
    zone: str
    version: str
    ready: bool
    pressure: float
    mode: Mode
    revision: int
    breakers: tuple[BreakerView, ...]


def prometheus_text(counters: Counters, retries: Retries, guards: CallGuards, pod: Pod) -> str:
    """All figures of one run of an agent. Any thread can call it."""
    source = Source(counters, retries, guards)
    lines: list[str] = []
    for figure in (*pod_figures.TOTALS, *pod_figures.SUMS):
        lines += _family(figure, read(figure, source).items(), pod.server)
    for figure, samples in _of_pod(pod):
        lines += _family(figure, samples, pod.server)
    lines += _redis_seconds(counters, pod.server)
    return "\n".join(lines) + "\n"


def _of_pod(pod: Pod) -> Iterator[tuple[PodFigure, _Samples]]:
    yield pod_figures.INFO, [((pod.environment, pod.service, pod.zone, pod.version), 1)]
    yield pod_figures.READY, [((), int(pod.ready))]
    yield pod_figures.PRESSURE, [((), pod.pressure)]
    yield pod_figures.IN_MODE, [((str(mode),), int(mode is pod.mode)) for mode in Mode]
    yield pod_figures.REVISION, [((), pod.revision)]
    yield pod_figures.BREAKER, [((view.dependency,), _state(view)) for view in pod.breakers]


def _state(view: BreakerView) -> int:
    if view.override is OverrideMode.FORCED_OPEN:
        return _FORCED_OPEN
    return _STATES[view.state] if view.override is None else 0


def _redis_seconds(counters: Counters, server: str) -> Iterator[str]:
    name, labels = REDIS_SECONDS.series, f'{SERVER}="{server.translate(_ESCAPED)}"'
    yield from _head(REDIS_SECONDS, "histogram")
    below, sum_us, counts = 0, counters.latency_us, tuple(counters.latency)
    for edge, count in zip((*map(str, REDIS_EDGES_S), "+Inf"), counts, strict=True):
        below += count
        yield f'{name}_bucket{{{labels},le="{edge}"}} {below}'
    yield f"{name}_sum{{{labels}}} {sum_us / 1_000_000}"
    yield f"{name}_count{{{labels}}} {below}"


def _family(figure: PodFigure, samples: _Samples, server: str) -> Iterator[str]:
    yield from _head(figure, "counter" if figure.total else "gauge")
    names = (SERVER, *figure.labels)
    for values, value in samples:
        pairs = zip(names, (server, *values), strict=True)
        labels = ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in pairs if text)
        yield f"{figure.series}{{{labels}}} {value}"


def _head(figure: PodFigure, kind: str) -> Iterator[str]:
    yield f"# HELP {figure.series} {figure.text}"
    yield f"# TYPE {figure.series} {kind}"
