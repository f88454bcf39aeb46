"""The figures of an agent in the text format of Prometheus, version 0.0.4.

Written here and not by ``prometheus_client``: every pod of every user would install and load it.
"""

from collections.abc import Iterable, Iterator
from heapq import nlargest
from typing import TypeAlias

from msgspec import Struct

from fuseboard.admission.call_guard import CallGuards
from fuseboard.calling.retries import Retries
from fuseboard.contract import pod_figures
from fuseboard.contract.pod_figures import (
    ATTEMPTS,
    CALL_SECONDS,
    EDGES,
    LOCK_HOLD,
    LOCK_WAIT,
    MAX_IN_HISTOGRAMS,
    REDIS_SECONDS,
    SERVER,
    PodFigure,
)
from fuseboard.contract.sync import BreakerView
from fuseboard.contract.words import BreakerState, Mode, OverrideMode
from fuseboard.reporting.counters import Counters
from fuseboard.reporting.primitive_figures import PrimitiveFigures
from fuseboard.telemetry.figures import Source, read

_STATES = {BreakerState.CLOSED: 0, BreakerState.OPEN: 1, BreakerState.HALF_OPEN: 2}
_FORCED_OPEN = 3
_ESCAPED = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})

_Samples = Iterable[tuple[tuple[str, ...], float]]
#: Values of the labels, counts by edge, and the sum of what was measured.
_Measured: TypeAlias = tuple[tuple[str, ...], tuple[int, ...], float]


class Pod(Struct, frozen=True, kw_only=True):
    """The state of an agent at this moment."""

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


def prometheus_text(
    counters: Counters, retries: Retries, guards: CallGuards, primitives: PrimitiveFigures, pod: Pod
) -> str:
    """All figures of one run of an agent. Any thread can call it."""
    source = Source(counters, retries, guards, primitives)
    lines: list[str] = []
    for figure in (*pod_figures.TOTALS, *pod_figures.SUMS):
        lines += family(figure, read(figure, source).items(), pod.server)
    for figure, samples in _of_pod(pod):
        lines += family(figure, samples, pod.server)
    locks = primitives.locks
    lines += family(pod_figures.LOCK_LONGEST, [((), round(locks.longest_s, 3))], pod.server)
    for figure, measured in (
        (REDIS_SECONDS, [((), tuple(counters.latency), counters.latency_us / 1_000_000)]),
        (CALL_SECONDS, _busiest((((name,), *times) for name, times in counters.call_times().items()))),
        (ATTEMPTS, _busiest(_attempts(retries))),
        (LOCK_WAIT, [((), tuple(locks.waits.counts), locks.waits.total_s)]),
        (LOCK_HOLD, [((), tuple(locks.holds.counts), locks.holds.total_s)]),
    ):
        lines += _histogram(figure, measured, pod.server)
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


def _attempts(retries: Retries) -> Iterator[_Measured]:
    for name, totals in retries.totals().items():
        ended = tuple(totals.attempts)
        if any(ended):
            yield (name,), (*ended, 0), sum(number * calls for number, calls in enumerate(ended, 1))


def _busiest(measured: Iterable[_Measured]) -> list[_Measured]:
    return nlargest(MAX_IN_HISTOGRAMS, measured, key=lambda one: sum(one[1]))


def _histogram(figure: PodFigure, measured: Iterable[_Measured], server: str) -> Iterator[str]:
    name = figure.series
    yield from _head(figure, "histogram")
    for values, counts, total in measured:
        labels, below = _labels(figure, (server, *values)), 0
        for edge, count in zip((*map(str, EDGES[figure]), "+Inf"), counts, strict=True):
            below += count
            yield f'{name}_bucket{{{labels},le="{edge}"}} {below}'
        yield f"{name}_sum{{{labels}}} {total}"
        yield f"{name}_count{{{labels}}} {below}"


def family(figure: PodFigure, samples: _Samples, server: str) -> Iterator[str]:
    """The lines of one figure, by the values of its labels."""
    yield from _head(figure, "counter" if figure.total else "gauge")
    for values, value in samples:
        yield f"{figure.series}{{{_labels(figure, (server, *values))}}} {value}"


def _labels(figure: PodFigure, values: tuple[str, ...]) -> str:
    pairs = zip((SERVER, *figure.labels), values, strict=True)
    return ",".join(f'{name}="{text.translate(_ESCAPED)}"' for name, text in pairs if text)


def _head(figure: PodFigure, kind: str) -> Iterator[str]:
    yield f"# HELP {figure.series} {figure.text}"
    yield f"# TYPE {figure.series} {kind}"
