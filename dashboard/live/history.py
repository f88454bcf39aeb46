"""The figures of the last 40 minutes in this process's memory, for sparklines. Charts read stored series."""

from collections import deque

from controlplane.fleet.live import DependencyFigures
from controlplane.status.facts import Facts
from dashboard.live.episode import Episode
from dashboard.live.known import rates_known

POINTS = 40
#: Seconds per point. A short history has finer points, so that ten minutes are more than one dot.
STEPS = (3, 15, 60)
#: Rates are smoothed over 5 s: what is read describes as many seconds before it, if none of them was read.
_SMOOTHED_S = 5.0
#: Failures above this share of the calls in a second make a tall mark.
_BAD_SHARE = 0.2
#: An episode that no tick has continued for this time dates nothing of now.
_EPISODE_KEPT_S = 120.0


class History:
    """Samples by name, at most one a second."""

    def __init__(self) -> None:
        #: One value per second with its time, the newest last.
        self._series: dict[str, deque[tuple[float, float]]] = {}
        self._marks: dict[str, deque[str]] = {}
        self._began: float | None = None
        self._last = 0.0
        self._episode = Episode()

    def add(self, facts: Facts, samples: dict[str, float]) -> None:
        passed = facts.now - self._last
        if passed < 0.9:
            return
        # The hub reads less often what no page shows. After a longer break, nothing is known of the seconds.
        seconds = min(POINTS, round(passed)) if self._began else 1
        missed, read = (seconds - 1, 1) if passed > _SMOOTHED_S else (0, seconds)
        self._last = facts.now
        self._began = self._began or facts.now
        for name, value in samples.items():
            self._series.setdefault(name, deque(maxlen=POINTS * STEPS[-1])).append((facts.now, value))
        traffic: dict[str, DependencyFigures] = {}
        if rates_known(facts):
            # Gateways list a dependency while it is called. One that was called before has no calls now.
            traffic = dict.fromkeys(self._marks, DependencyFigures()) | facts.figures.dependencies
        for name in self._marks.keys() - traffic.keys():
            self._marks[name].extend(" " * seconds)
        for name, t in traffic.items():
            now = mark(t.calls_per_s, t.failures_per_s, t.slow_per_s, t.refused_per_s)
            self._marks.setdefault(name, deque(maxlen=POINTS)).extend(" " * missed + now * read)

    def last_episode(self, now: float) -> Episode:
        """The episode of the last moment, so that the beginning of an incident stays."""
        return self._episode if now - self._last <= _EPISODE_KEPT_S else Episode()

    def add_episode(self, episode: Episode) -> None:
        self._episode = episode

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
        step, buckets = self.step_s, dict[int, list[float]]()
        for at, value in list(self._series.get(name, ())):
            buckets.setdefault(int(at // step), []).append(value)
        now = int(self._last // step)
        steps = (buckets.get(one) for one in range(now - POINTS + 1, now + 1))
        return [sum(bucket) / len(bucket) if bucket else None for bucket in steps]

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
