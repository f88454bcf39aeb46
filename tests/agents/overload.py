"""A pod under load in virtual time: requests with priorities, a few slots, one queue, and a shedder."""

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from fuseboard.protection.latency_histogram import LatencyHistogram
from fuseboard.protection.shedding import Load, Shedder

TICK_S = 0.25


@dataclass
class Result:
    offered: dict[int, int] = field(default_factory=dict)
    admitted: dict[int, int] = field(default_factory=dict)
    #: By second of arrival.
    offered_in: dict[int, int] = field(default_factory=dict)
    admitted_in: dict[int, int] = field(default_factory=dict)
    finished_in: dict[int, int] = field(default_factory=dict)
    #: (second of arrival, wait and service)
    latencies: list[tuple[float, float]] = field(default_factory=list)
    asked_by: dict[str, int] = field(default_factory=dict)
    admitted_by: dict[str, int] = field(default_factory=dict)
    #: When shedding began and ended.
    switches: list[float] = field(default_factory=list)

    def part(self, level: int) -> float:
        return self.admitted.get(level, 0) / self.offered[level]

    def drop_rate(self, first: float = 0, last: float = 1e9) -> float:
        offered = sum(count for second, count in self.offered_in.items() if first <= second < last)
        admitted = sum(count for second, count in self.admitted_in.items() if first <= second < last)
        return 1 - admitted / offered

    def throughput(self, first: float, last: float) -> float:
        return sum(n for second, n in self.finished_in.items() if first <= second < last) / (last - first)

    def quantile(self, part: float, first: float = 0, last: float = 1e9) -> float:
        waits = sorted(latency for at, latency in self.latencies if first <= at < last)
        return waits[int(part * (len(waits) - 1))]


def simulate(
    shedder: Shedder | None,
    *,
    rate: Callable[[float], float],
    who: Callable[[random.Random], tuple[int, str]],
    seconds: float,
    slots: int = 10,
    service_s: Callable[[float], float] = lambda now: 0.020,
    pressure: Callable[[float], float] = lambda now: 0.0,
    sla_s: float = 0.0,
    takes: Callable[[random.Random, float], float] = lambda draw, mean_s: draw.expovariate(1 / mean_s),
    seed: int = 1,
) -> Result:
    """Poisson arrivals of ``rate`` per second; ``who`` draws priority and source of each.

    ``takes`` draws how long one is served, by the mean.

    With an ``sla_s`` the shedder sees no queue, only p95.
    """
    histogram = LatencyHistogram()
    draw, result = random.Random(seed), Result()
    queue: deque[float] = deque()
    ends: list[tuple[float, float]] = []
    now, busy = 0.0, 0
    arrival, tick = draw.expovariate(rate(0.0)), TICK_S
    was_active = False

    def start(arrived: float) -> None:
        nonlocal busy
        busy += 1
        heapq.heappush(ends, (now + takes(draw, service_s(now)), arrived))

    while now < seconds:
        now = min(arrival, tick, ends[0][0] if ends else 1e9)
        if ends and ends[0][0] == now:
            _, arrived = heapq.heappop(ends)
            busy -= 1
            result.latencies.append((arrived, now - arrived))
            histogram.add(now - arrived, now)
            result.finished_in[int(now)] = result.finished_in.get(int(now), 0) + 1
            if shedder is not None:
                shedder.leave()
            if queue:
                start(queue.popleft())
        elif now == tick:
            tick += TICK_S
            if shedder is not None:
                p95 = histogram.quantile(0.95, now, at_least=20) if sla_s else None
                late = p95 / sla_s if p95 is not None else None
                waiting, in_flight = 0 if sla_s else len(queue), busy + len(queue)
                shedder.tick(now, Load(waiting, late, "route", sla_s, in_flight, pressure(now)))
                if shedder.active != was_active:
                    was_active = shedder.active
                    result.switches.append(now)
        else:
            arrival = now + draw.expovariate(rate(now))
            priority, source = who(draw)
            result.offered[priority] = result.offered.get(priority, 0) + 1
            result.offered_in[int(now)] = result.offered_in.get(int(now), 0) + 1
            result.asked_by[source] = result.asked_by.get(source, 0) + 1
            if shedder is None or shedder.enter(priority, source) is None:
                result.admitted[priority] = result.admitted.get(priority, 0) + 1
                result.admitted_in[int(now)] = result.admitted_in.get(int(now), 0) + 1
                result.admitted_by[source] = result.admitted_by.get(source, 0) + 1
                if busy < slots:
                    start(now)
                else:
                    queue.append(now)
    return result
