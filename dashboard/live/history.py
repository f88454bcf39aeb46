"""The figures of the last day in this process's memory: by the second for 40 minutes, else by the minute."""

import math
from array import array
from collections import deque
from dataclasses import dataclass, field

from controlplane.alerts.thresholds import UNCOUNTED_SHARE
from controlplane.fleet.live import DependencyFigures, FleetFigures
from controlplane.status.facts import Facts

POINTS = 40
#: Seconds per point. A short history has finer points, so that ten minutes are more than one dot.
STEPS = (3, 15, 60)
#: Points of a plot, whatever time it covers.
PLOTTED = 60
_MINUTES = 24 * 60
_NOTHING = math.nan
#: Failures above this share of the calls in a second make a tall mark.
_BAD_SHARE = 0.2


@dataclass
class _Series:
    """One value per second, the newest last."""

    values: deque[tuple[float, float]] = field(default_factory=lambda: deque(maxlen=POINTS * STEPS[-1]))

    def add(self, now: float, value: float) -> None:
        self.values.append((now, value))


class _Day:
    """The mean of each minute of the last day, in six kilobytes."""

    def __init__(self) -> None:
        self._means = array("f", [_NOTHING]) * _MINUTES
        self._minute = 0
        self._sum = 0.0
        self._count = 0

    def add(self, now: float, value: float) -> None:
        minute = int(now // 60)
        if minute != self._minute:
            # The minutes in between, in which nothing was measured, still have the values of a day ago.
            for skipped in range(max(self._minute + 1, minute - _MINUTES + 1), minute):
                self._means[skipped % _MINUTES] = _NOTHING
            self._minute, self._sum, self._count = minute, 0.0, 0
        self._sum += value
        self._count += 1
        self._means[minute % _MINUTES] = self._sum / self._count

    def mean(self, start: int, end: int) -> float | None:
        """Of the minutes from ``start`` to before ``end``; ``None`` when none of them was measured."""
        earliest, end = self._minute - _MINUTES + 1, min(end, self._minute + 1)
        found = [self._means[minute % _MINUTES] for minute in range(max(start, earliest), end)]
        known = [value for value in found if not math.isnan(value)]
        return sum(known) / len(known) if known else None


def rates_known(figures: FleetFigures) -> bool:
    """Whether the rates are those of the fleet: not without a gateway, and not while most pods of one that
    has just started are in no rate yet.
    """
    return figures.gateways > 0 and figures.uncounted <= figures.live_servers * UNCOUNTED_SHARE


class History:
    """Samples by name, at most one a second."""

    def __init__(self) -> None:
        self._series: dict[str, _Series] = {}
        self._days: dict[str, _Day] = {}
        self._marks: dict[str, deque[str]] = {}
        self._began: float | None = None
        self._last = 0.0

    def add(self, facts: Facts, samples: dict[str, float]) -> None:
        if facts.now - self._last < 0.9:
            return
        self._last = facts.now
        self._began = self._began or facts.now
        for name, value in samples.items():
            self._series.setdefault(name, _Series()).add(facts.now, value)
        traffic: dict[str, DependencyFigures] = {}
        if rates_known(facts.figures):
            # Gateways list a dependency while it is called. One that was called before has no calls now.
            traffic = dict.fromkeys(self._marks, DependencyFigures()) | facts.figures.dependencies
        for name in self._marks.keys() - traffic.keys():
            self._marks[name].append(" ")
        for name, t in traffic.items():
            sent = {"calls": t.calls_per_s, "failures": t.failures_per_s, "slow": t.slow_per_s}
            for what, value in {**sent, "refused": t.refused_per_s}.items():
                self._series.setdefault(f"{what}:{name}", _Series()).add(facts.now, value)
                self._days.setdefault(f"{what}:{name}", _Day()).add(facts.now, value)
            self._marks.setdefault(name, deque(maxlen=POINTS)).append(
                mark(t.calls_per_s, t.failures_per_s, t.slow_per_s, t.refused_per_s)
            )

    @property
    def step_s(self) -> int:
        lived = self._last - (self._began or self._last)
        return next((step for step in STEPS if lived <= step * POINTS), STEPS[-1])

    @property
    def span(self) -> str:
        """The time that a sparkline covers, in words."""
        return f"last {self.step_s * POINTS // 60} minutes"

    def points(self, name: str) -> list[float | None]:
        """``known`` from its first value on, for a line from the left edge."""
        values = self.known(name)
        first = next((place for place, value in enumerate(values) if value is not None), len(values))
        return values[first:]

    def known(self, name: str) -> list[float | None]:
        """One value per step up to now, the mean of its seconds; ``None`` where none was measured.

        It changes once per step, not every second.
        """
        series = self._series.get(name)
        step, buckets = self.step_s, dict[int, list[float]]()
        for at, value in list(series.values) if series is not None else ():
            buckets.setdefault(int(at // step), []).append(value)
        now = int(self._last // step)
        steps = (buckets.get(one) for one in range(now - POINTS + 1, now + 1))
        return [sum(bucket) / len(bucket) if bucket else None for bucket in steps]

    def over(self, name: str, span_s: int) -> list[float | None]:
        """The last ``span_s`` seconds of a dependency's figure, as ``PLOTTED`` points, the newest last.

        A point is ``None`` where nothing was measured, as before this process started.
        """
        step = span_s // PLOTTED
        newest = int(self._last // step)
        steps = range(newest - PLOTTED + 1, newest + 1)
        if step >= 60:
            day = self._days.get(name, _Day())
            return [day.mean(at * step // 60, (at + 1) * step // 60) for at in steps]
        buckets: dict[int, list[float]] = {}
        for at, value in list(self._series.get(name, _Series()).values):
            buckets.setdefault(int(at // step), []).append(value)
        means = {at: sum(bucket) / len(bucket) for at, bucket in buckets.items()}
        return [means.get(at) for at in steps]

    def marks(self, dependency: str, *, count: int = POINTS) -> str:
        """The last seconds of calls, oldest first, padded with silence."""
        marks = "".join(list(self._marks.get(dependency, ())))[-count:]
        return " " * (count - len(marks)) + marks


def mark(calls: float, failures: float, slow: float, refused: float) -> str:
    """The mark of one second of calls: see ``plots.strip``."""
    sent = calls
    if refused > 4 * sent:
        return "c"
    if sent < 0.05:
        return " "
    if failures / sent > _BAD_SHARE:
        return "b"
    if slow / sent > _BAD_SHARE:
        return "s"
    return "o"
