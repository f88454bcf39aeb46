"""The pod as a whole: measures it on a timer, sheds its requests, and describes it.

Requests enter and leave in any thread. Everything else belongs to the event loop that runs the timer.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from threading import Lock
from time import monotonic

from fuseboard.contract.load import PodLoad
from fuseboard.contract.protection import PodProtection, Shedding
from fuseboard.contract.words import LoadLevel
from fuseboard.protection.cgroup import ResourceReader, Usage
from fuseboard.protection.pressure import Pressure, PressureGauge, Signal, signal
from fuseboard.protection.readiness import Readiness, Ready
from fuseboard.protection.shedding import Load, Shed, Shedder
from fuseboard.protection.signals import CallLoads, Clock, LoopLag, NoCalls, RequestSignals, RouteLatency

logger = logging.getLogger("fuseboard.pod")

TICK_S = 0.25
#: Ticks come a little early or late, so that they do not run together with other timers.
TICK_JITTER = 0.1
#: CPU, memory and p95 are read this often.
SLOW_TICK_S = 1.0
#: Calls that bulkheads refused in this time count as waiting.
DEMAND_S = 1.0
#: The longest cause in a heartbeat, in letters.
LONGEST_CAUSE = 200
#: Signals that limit the rate of what a pod admits. If they refused tiers too, a pod whose p95 is a little
#: over its limit would refuse all but the highest.
STEERED = ("queue", "latency")
#: Used to score the queue when shedding is not configured.
_DEFAULTS = Shedding()


class ServedRequest:
    """One request that the pod serves. ``leave`` it exactly once; more often does nothing.

    A middleware that replaces the response without closing it never leaves. Then the finalizer does.
    """

    __slots__ = ("_pod", "began", "has_left", "is_answered", "route")

    def __init__(self, pod: "Pod", route: RouteLatency, began: float) -> None:
        self._pod, self.route, self.began = pod, route, began
        #: The pod sets them, under its lock: two threads may end one request.
        self.is_answered = self.has_left = False

    def answered(self, status: int) -> None:
        """The application began its response, or failed: then ``status`` is 500. Nothing after ``leave``."""
        self._pod.answered(self, status)

    def leave(self) -> None:
        self._pod.leave(self)

    def __del__(self) -> None:
        if not self.has_left:
            self._pod.forgotten.append(self.is_answered)


class Pod:
    """``configure`` it when the policy changes, and ``start`` and ``stop`` its timer.

    ``server_us`` is the time of the control plane, by which observe mode ends. ``on_tick`` is called after
    each tick.
    """

    def __init__(
        self,
        settings: PodProtection,
        priorities: tuple[int, ...],
        *,
        calls: CallLoads | None = None,
        clock: Clock = monotonic,
        server_us: Callable[[], int] = lambda: 0,
        on_tick: Callable[[], None] | None = None,
        resources: Callable[[], ResourceReader] = ResourceReader,
    ) -> None:
        self.settings = settings
        self.calls: CallLoads = calls or NoCalls()
        self._clock, self._server_us, self._open_resources = clock, server_us, resources
        self._on_tick = on_tick
        self._lock = Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._resources: ResourceReader | None = None
        self._ticked: float | None = None
        self._slow_ticked = float("-inf")
        self._latency: tuple[RouteLatency | None, float] = None, 0.0
        self._level_since = clock()
        self._gauge = PressureGauge()
        #: The gauge of tiers leaves out what the shedder steers.
        self._tier_gauge = PressureGauge()
        self._observing = False
        #: Calls that bulkheads refused: in all, since the last tick, and per second.
        self._refused_before = self._refused = 0
        self._refused_per_s = 0.0
        self.usage = Usage()
        self.lag = LoopLag()
        self.requests = RequestSignals()
        self.shedder: Shedder | None = None
        self.readiness = Readiness(None)
        self.pressure = Pressure()
        #: Total of requests that observe mode let pass.
        self.observed = 0
        #: Requests that were never left, and whether they were answered. A finalizer runs at any moment, also
        #: while its thread has the lock, so the next tick counts them.
        self.forgotten: deque[bool] = deque()
        self.never_left = 0
        self.configure(settings, priorities)

    def configure(self, settings: PodProtection, priorities: tuple[int, ...]) -> None:
        """Use these settings, and the priorities of these tiers, from now on. Counts continue."""
        with self._lock:
            self.settings = settings
            self.requests.routes.configure(settings.routes)
            self.readiness.configure(settings.readiness)
            if settings.shedding is None:
                self.shedder = None
            elif self.shedder is None:
                self.shedder = Shedder(settings.shedding, priorities)
            else:
                self.shedder.configure(settings.shedding, priorities)
            self._observing = self._server_us() < settings.observe.shedding_until_us

    # Requests, in any thread

    def enter(self, endpoint: str, priority: int, source: str, template: str = "") -> ServedRequest | Shed:
        """Serve a request, or refuse it. ``endpoint`` is like ``GET /orders/1``; ``source`` is who asks;
        ``template`` is the endpoint as limits know it.
        """
        with self._lock:
            if self.shedder is not None:
                shed = self.shedder.enter(priority, source)
                if shed is not None:
                    if not self._observing:
                        return shed
                    self.observed += 1
            self.requests.enter()
            return ServedRequest(self, self.requests.routes.of(endpoint, template), self._clock())

    def answered(self, visit: ServedRequest, status: int) -> None:
        now = self._clock()
        with self._lock:
            if visit.is_answered or visit.has_left:
                return
            visit.is_answered = True
            self.requests.unanswered -= 1
            self.requests.answered(visit.route, now - visit.began, now, failed=status >= 500)

    def leave(self, visit: ServedRequest) -> None:
        with self._lock:
            if not visit.has_left:
                visit.has_left = True
                self._leave(answered=visit.is_answered)

    def _leave(self, *, answered: bool) -> None:
        self.requests.leave(answered=answered)
        if self.shedder is not None:
            self.shedder.leave()

    def _leave_forgotten(self) -> None:
        while self.forgotten:
            answered = self.forgotten.popleft()
            self.never_left += 1
            if self.never_left == 1:
                logger.warning(
                    "pod.request_never_left: a middleware replaced a response without closing it; "
                    "further ones are only counted, in agent.resilience()"
                )
            self._leave(answered=answered)

    # The timer

    def start(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._timer is None:
            self._resources = self._open_resources()
            self._wait(loop)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._resources is not None:
            self._resources.close()
            self._resources = None

    def _wait(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + TICK_S * random.uniform(1 - TICK_JITTER, 1 + TICK_JITTER)

        def run() -> None:
            late_s = loop.time() - due
            self._wait(loop)
            self.tick(self._clock(), late_s)

        self._timer = loop.call_at(due, run)

    def tick(self, now: float, late_s: float = 0.0) -> None:
        """Measure, and decide what is refused until the next tick. ``late_s``: how late the timer was."""
        with self._lock:
            self._leave_forgotten()
            before, self._ticked = self._ticked, now
            if before is None or now <= before:
                return
            self.lag.tick(late_s)
            self.requests.tick(now - before)
            self._count_refused(now - before)
            if now - self._slow_ticked >= SLOW_TICK_S:
                self._slow_ticked = now
                self._latency = self.requests.routes.worst(now)
                if self._resources is not None:
                    self.usage = self._resources.read(now)
            waiting = self.waiting
            signals = self._signals(now, waiting)
            value = self._gauge.measure(signals, now)
            self._observing = self._server_us() < self.settings.observe.shedding_until_us
            if self.shedder is not None:
                route, latency = self._latency
                others = tuple(one for one in signals if one.name not in STEERED)
                pressure = self._tier_gauge.measure(others, now)
                load = Load(
                    waiting,
                    refused=self._refused,
                    unanswered=self.requests.unanswered,
                    pressure=pressure,
                )
                if route is not None:
                    load = load._replace(latency=latency, route=route.pattern, sla_s=route.sla_s)
                self.shedder.tick(now, load)
            self._describe(value, signals, now)
        if self._slow_ticked == now:
            self.calls.resize_for_pressure(self.usage.cpu, self.usage.memory, now)
        self.readiness.tick(value, now)
        if self._on_tick is not None:
            self._on_tick()

    def _count_refused(self, elapsed_s: float) -> None:
        total = self.calls.refused()
        # A dependency that lost its protection takes its total with it.
        self._refused, self._refused_before = max(0, total - self._refused_before), total
        self._refused_per_s += 0.5 * (self._refused / elapsed_s - self._refused_per_s)

    @property
    def waiting(self) -> float:
        """Calls that wait for a slot, and requests that wait for the event loop.

        A call that a bulkhead refuses is demand, too: with a longer queue it would wait. Without it, a pod
        whose bulkhead refuses at once would never shed, and its bulkheads know no tiers of tenants.
        """
        late = self.requests.per_second * self.lag.usual_s
        return self.calls.waiting() + late + self._refused_per_s * DEMAND_S

    def _describe(self, value: float, signals: tuple[Signal, ...], now: float) -> None:
        level = self.shedder.level if self.shedder is not None else LoadLevel.NORMAL
        if level is not self.pressure.level:
            self._level_since = now
            logger.log(
                logging.INFO if level is LoadLevel.NORMAL else logging.WARNING,
                "pod.level level=%s before=%s pressure=%.2f cause=%r observed_only=%s",
                *(level, self.pressure.level, value, self._gauge.cause, self._observing),
            )
        self.pressure = Pressure(value, level, self._gauge.cause, signals, now - self._level_since)

    def _signals(self, now: float, waiting: float) -> tuple[Signal, ...]:
        usage, lag_s = self.usage, self.lag.usual_s
        most = (self.settings.shedding or _DEFAULTS).queue_max
        slots = self.calls.slots()
        failed = self.requests.failed_part(now)
        route, part = self._latency
        p95_text = ""
        if route is not None:
            sla_ms = route.sla_s * 1000
            p95_text = f"p95 of {route.pattern} is {part * sla_ms:.0f} ms (SLA {sla_ms:.0f} ms)"
        return (
            signal("loop_lag", lag_s, f"the event loop is {lag_s * 1000:.0f} ms late"),
            signal("queue", waiting / most, f"{waiting:.0f} calls wait (limit {most})"),
            signal("slots", slots, f"{slots:.0%} of the slots are in use and calls wait"),
            signal("latency", part if route is not None else None, p95_text),
            signal("errors", failed, f"{failed or 0:.0%} of the requests fail"),
            signal("cpu", usage.cpu, f"CPU is at {usage.cpu or 0:.0%} of {_cores(usage.cores)}"),
            signal(
                "throttling",
                usage.throttled,
                f"the CPU limit stops the pod in {usage.throttled or 0:.0%} of the periods",
            ),
            signal("memory", usage.memory, f"memory is at {usage.memory or 0:.0%} of its limit"),
        )

    # Figures that others read

    def grant(self, unready_ms: int, asked_at: float) -> None:
        """Apply the answer of a gateway to a heartbeat."""
        self.readiness.grant(unready_ms, asked_at, self._clock())

    def ready(self) -> Ready:
        return self.readiness.state(self._clock())

    def load(self) -> PodLoad:
        """The load of the pod for the next heartbeat."""
        now = self._clock()
        with self._lock:
            p95_s = self.requests.p95_s(now)
            priorities = self.shedder.priorities() if self.shedder is not None else ()
        usage, pressure = self.usage, self.pressure
        return PodLoad(
            pressure=round(pressure.value * 1000),
            level=pressure.level,
            cause=pressure.cause[:LONGEST_CAUSE],
            cpu=_per_mille(usage.cpu),
            throttled=_per_mille(usage.throttled),
            memory=_per_mille(usage.memory),
            lag_ms=int(self.lag.usual_s * 1000),
            in_flight=self.requests.in_flight,
            waiting=int(self.waiting),
            p95_ms=None if p95_s is None else int(p95_s * 1000),
            errors=self.requests.errors,
            observed=self.observed,
            asks_unready=self.readiness.asks,
            unready=not self.readiness.state(now).ready,
            late=None if self._latency[0] is None else _per_mille(self._latency[1]),
            priorities=priorities,
            shares_idle=True,
        )

    def as_dict(self) -> dict[str, object]:
        """The answer of ``/resilience``: figures only, without tenants and without secrets."""
        now, shedder, usage = self._clock(), self.shedder, self.usage
        with self._lock:
            routes = self._routes_as_dict(now)
            p95_s = self.requests.p95_s(now)
        return {
            "pressure": self.pressure.as_dict(),
            "requests": {
                "in_flight": self.requests.in_flight,
                "entered": self.requests.entered,
                "never_left": self.never_left,
                "errors": self.requests.errors,
                "p95_ms": _ms(p95_s),
                "waiting": int(self.waiting),
            },
            "routes": routes,
            "resources": {
                "cpu": usage.cpu,
                "cores": usage.cores,
                "throttled": usage.throttled,
                "memory": usage.memory,
                "stalled": usage.stalled,
                "cpu_from": usage.cpu_from,
                "memory_from": usage.memory_from,
                "loop_lag_ms": round(self.lag.mean_s * 1000, 1),
            },
            "shedding": None if shedder is None else self._shedding_as_dict(shedder),
            "readiness": {
                "ready": self.ready().ready,
                "why": self.ready().why,
                "asks_unready": self.readiness.asks,
                "changes": self.readiness.changes,
            },
        }

    def _routes_as_dict(self, now: float) -> dict[str, object]:
        return {
            route.pattern: {
                "p95_ms": _ms(route.p95_s(now)),
                "mean_ms": _ms(route.histogram.mean(now)),
                "sla_ms": round(route.sla_s * 1000) or None,
            }
            for route in self.requests.routes.all()
        }

    def _shedding_as_dict(self, shedder: Shedder) -> dict[str, object]:
        return {
            "active": shedder.active,
            "observe_only": self._observing,
            "refused": dict(shedder.refused),
            "priorities": [
                {"priority": one.priority, "asked": one.asked, "shed": one.shed}
                for one in shedder.priorities()
            ],
            "observed": self.observed,
            "changes": shedder.changes,
            "finished_per_s": round(shedder.rate, 1),
        }


def _cores(number: float) -> str:
    return f"{number:g} core" if number == 1 else f"{number:g} cores"


def _per_mille(part: float | None) -> int | None:
    return None if part is None else min(1_000_000, round(part * 1000))


def _ms(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
