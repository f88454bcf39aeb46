"""Signals that a pod measures: its requests, its event loop, and the calls that wait in it."""

from collections import deque
from collections.abc import Callable
from typing import Protocol

from fuseboard.contract.endpoints import matcher
from fuseboard.contract.protection import Route
from fuseboard.protection.latency_histogram import LatencyHistogram

#: Fewer samples say nothing about p95.
ENOUGH_SAMPLES = 20
#: The half window of what a route takes now. Its longer one has old samples for 10 s after an overload.
RECENT_S = 1.0
#: Late ticks: one alone is no evidence, because a garbage collection is one too.
LATE_TICKS = 5
#: Requests that match no configured route.
OTHER = "other"


class CallLoads(Protocol):
    """The figures of calls that leave the pod, for the signals. The admission has it."""

    def waiting(self) -> int:
        """Calls that wait for a slot of a bulkhead."""

    def refused(self) -> int:
        """Total of calls that got no slot of a bulkhead."""

    def slots(self) -> float:
        """The part of all slots that is in use; 0 while no call waits for one."""

    def resize_for_pressure(self, cpu: float | None, memory: float | None, now: float) -> None:
        """Called about once per second with parts of what the pod may use."""


class NoCalls:
    """A pod without bulkheads."""

    def waiting(self) -> int:
        return 0

    def refused(self) -> int:
        return 0

    def slots(self) -> float:
        return 0.0

    def resize_for_pressure(self, cpu: float | None, memory: float | None, now: float) -> None:
        return


class LoopLag:
    """How late the event loop runs its timers."""

    def __init__(self) -> None:
        self._late = deque[float]([0.0] * LATE_TICKS, LATE_TICKS)
        #: The mean, with more weight on the last ticks, and the most of all times.
        self.mean_s = 0.0
        self.most_s = 0.0

    def tick(self, late_s: float) -> None:
        late_s = max(0.0, late_s)
        self._late.append(late_s)
        self.mean_s += 0.3 * (late_s - self.mean_s)
        self.most_s = max(self.most_s, late_s)

    @property
    def usual_s(self) -> float:
        """The median of the last ticks."""
        late = sorted(self._late)
        middle = len(late) // 2
        return late[middle] if len(late) % 2 else (late[middle - 1] + late[middle]) / 2


class RouteLatency:
    __slots__ = ("histogram", "pattern", "recent", "sla_s")

    def __init__(self, pattern: str, sla_s: float = 0.0) -> None:
        self.pattern = pattern
        #: 0 for unknown.
        self.sla_s = sla_s
        self.histogram = LatencyHistogram()
        self.recent = LatencyHistogram(RECENT_S)

    def add(self, seconds: float, now: float) -> None:
        self.histogram.add(seconds, now)
        self.recent.add(seconds, now)

    def p95_s(self, now: float) -> float | None:
        """The 95th percentile of the last 5 to 10 s, or of the last 1 to 2 s if that is less.

        A short peak is no overload, and an overload that has ended is none either. ``None`` for few samples.
        """
        usual = self.histogram.quantile(0.95, now, at_least=ENOUGH_SAMPLES)
        recent = self.recent.quantile(0.95, now, at_least=ENOUGH_SAMPLES)
        return usual if usual is None or recent is None else min(usual, recent)


class RouteLatencies:
    """How long requests take, by configured route. A client cannot add one, so memory is bounded."""

    def __init__(self, routes: tuple[Route, ...] = ()) -> None:
        self.other = RouteLatency(OTHER)
        self._routes: list[RouteLatency] = []
        self._find = matcher(())
        self.configure(routes)

    def configure(self, routes: tuple[Route, ...]) -> None:
        """Use these routes from now on. A route that stays keeps its samples."""
        kept = {route.pattern: route for route in self._routes}
        self._routes = []
        for given in routes:
            route = kept.get(given.pattern) or RouteLatency(given.pattern)
            route.sla_s = given.sla_ms / 1000
            self._routes.append(route)
        self._find = matcher(tuple(route.pattern for route in routes))

    def of(self, endpoint: str, template: str = "") -> RouteLatency:
        """The first route that matches ``METHOD /path``, or else the name that limits know."""
        if not self._routes:
            return self.other
        found = self._find(endpoint)
        if found is None and template:
            found = self._find(template)
        return self._routes[found] if found is not None else self.other

    def worst(self, now: float) -> tuple[RouteLatency | None, float]:
        """The route whose p95 is the largest part of its SLA, and that part."""
        worst: tuple[RouteLatency | None, float] = None, 0.0
        for route in self._routes:
            p95 = route.p95_s(now)
            if p95 is not None and p95 / route.sla_s > worst[1]:
                worst = route, p95 / route.sla_s
        return worst

    def all(self) -> tuple[RouteLatency, ...]:
        return (*self._routes, self.other)


class RequestSignals:
    """The requests that the pod serves: how many, how long, and how many it fails itself.

    Not safe from several threads: ``fuseboard.protection.pod`` has a lock.
    """

    def __init__(self, routes: tuple[Route, ...] = ()) -> None:
        self.in_flight = 0
        #: Requests whose response has not begun. A long stream is in flight, and no work that waits.
        self.unanswered = 0
        #: Totals.
        self.entered = 0
        self.errors = 0
        self.routes = RouteLatencies(routes)
        self.latency = LatencyHistogram()
        self._ended = _Windowed()
        self._failed = _Windowed()
        #: Requests per second, with more weight on the last ticks.
        self.per_second = 0.0
        self._entered_before = 0

    def enter(self) -> None:
        self.in_flight += 1
        self.unanswered += 1
        self.entered += 1

    def leave(self, *, answered: bool = True) -> None:
        self.in_flight -= 1
        if not answered:
            self.unanswered -= 1

    def answered(self, route: RouteLatency, seconds: float, now: float, *, failed: bool) -> None:
        """The response has begun: what takes long after that is the length of a stream."""
        self.latency.add(seconds, now)
        route.add(seconds, now)
        self.ended(now, failed=failed)

    def ended(self, now: float, *, failed: bool) -> None:
        """``failed``: with a 5xx of the application. Refusals are no failures."""
        self._ended.add(now)
        if failed:
            self.errors += 1
            self._failed.add(now)

    def tick(self, elapsed_s: float) -> None:
        came, self._entered_before = self.entered - self._entered_before, self.entered
        self.per_second += 0.5 * (came / elapsed_s - self.per_second)

    def failed_part(self, now: float) -> float | None:
        """The part of the last seconds' requests that failed; ``None`` when they were few."""
        ended = self._ended.count(now)
        return self._failed.count(now) / ended if ended >= ENOUGH_SAMPLES else None

    def p95_s(self, now: float) -> float | None:
        return self.latency.quantile(0.95, now)


class _Windowed:
    """How often something happened in the last 5 to 10 seconds."""

    __slots__ = ("_before", "_current", "_ends")

    HALF_S = 5.0

    def __init__(self) -> None:
        self._before = self._current = 0
        self._ends = float("-inf")

    def add(self, now: float) -> None:
        self.count(now)
        self._current += 1

    def count(self, now: float) -> int:
        if now >= self._ends:
            idle = now >= self._ends + self.HALF_S
            self._before, self._current = 0 if idle else self._current, 0
            self._ends = (now if idle else self._ends) + self.HALF_S
        return self._before + self._current


#: The moment, in seconds of a monotonic clock.
Clock = Callable[[], float]
