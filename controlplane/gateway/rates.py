"""From counters that only rise to rates per second, summed over the fleet.

Every server contributes what it counted between its newest beat and one a few seconds older.
Contributions are whole thousandths per second, so that adding and taking away a million of
them leaves nothing behind.
"""

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from fuseboard.contract.sync import LATENCY_EDGES_US, Counters, DependencyCounters, TenantCounters

#: Seconds of counting behind a rate, and behind a latency percentile.
RATE_WINDOW_S = 4.0
LATENCY_WINDOW_S = 9.0

#: Beats closer together than this share one point.
_SPACING_S = 1.0

#: A rate over less than this is noise.
_SHORTEST_S = 0.5

#: What is counted, and of what: ``("tenant_refused", "t-17")``.
Key = tuple[str, str]


class Point(NamedTuple):
    #: Monotonic seconds at which the beat arrived.
    at: float
    counters: Counters


class Track:
    """The counters of one process, as far back as a percentile needs."""

    __slots__ = ("_points",)

    def __init__(self) -> None:
        self._points: deque[Point] = deque()

    @property
    def empty(self) -> bool:
        return not self._points

    def begin(self, at: float) -> None:
        """The process started at ``at``, and had counted nothing."""
        self._points.append(Point(at, Counters()))

    def add(self, at: float, counters: Counters) -> None:
        points = self._points
        if len(points) > 1 and at - points[-2].at < _SPACING_S:
            points.pop()
        points.append(Point(at, counters))
        # The oldest stays until another one is old enough to take its place.
        while len(points) > 2 and at - points[1].at >= LATENCY_WINDOW_S:
            points.popleft()

    def contribution(self) -> dict[Key, int]:
        """What this process adds to the fleet's rates, in thousandths per second."""
        if len(self._points) < 2:
            return {}
        newest = self._points[-1]
        found: dict[Key, int] = {}
        _add_counts(found, _point_before(self._points, RATE_WINDOW_S), newest)
        _add_latency(found, _point_before(self._points, LATENCY_WINDOW_S), newest)
        return found


class Totals:
    """The sum of all contributions."""

    def __init__(self) -> None:
        self.milli: dict[Key, int] = {}

    def replace(self, old: dict[Key, int], new: dict[Key, int]) -> None:
        """Take one server's old contribution away and put its new one in."""
        milli = self.milli
        for key, value in old.items():
            left = milli[key] - value
            if left:
                milli[key] = left
            else:
                del milli[key]
        for key, value in new.items():
            milli[key] = milli.get(key, 0) + value


def latency_counts(rates: dict[Key, int]) -> list[int]:
    """The store's answers per bucket of ``LATENCY_EDGES_US``."""
    return [rates.get(key, 0) for key in _LATENCY_KEYS]


def percentile_us(counts: list[int], share: float) -> int | None:
    """The latency below which ``share`` of the answers lie, straight lines drawn within a bucket.

    Answers beyond the last edge count as the last edge. ``None`` when there were none.
    """
    total = sum(counts)
    if total <= 0:
        return None
    wanted, below, floor = total * share, 0, 0
    for count, edge in zip(counts, LATENCY_EDGES_US, strict=False):
        if count and below + count >= wanted:
            return round(floor + (edge - floor) * (wanted - below) / count)
        below, floor = below + count, edge
    return floor


_LATENCY_KEYS = [("latency", str(bucket)) for bucket in range(len(LATENCY_EDGES_US) + 1)]
_NO_TENANT = TenantCounters(tenant="none")
_NO_DEPENDENCY = DependencyCounters(dependency="none")


def _point_before(points: deque[Point], age_s: float) -> Point:
    """The youngest point at least ``age_s`` older than the newest, or else the oldest."""
    newest = points[-1].at
    for point in reversed(points):
        if newest - point.at >= age_s:
            return point
    return points[0]


def _add_counts(found: dict[Key, int], old: Point, new: Point) -> None:
    elapsed = new.at - old.at
    if elapsed < _SHORTEST_S:
        return
    milli = 1000 / elapsed
    for key, before, after in _pairs(old.counters, new.counters):
        # A counter that fell is a process that broke its promise: it starts anew from here.
        if after > before:
            found[key] = int((after - before) * milli)


def _pairs(was: Counters, now: Counters) -> Iterable[tuple[Key, int, int]]:
    """What is counted, before and after."""
    yield ("requests", ""), was.requests, now.requests
    yield ("unknown_tenants", ""), was.unknown_tenants, now.unknown_tenants
    yield ("decided_locally", ""), was.decided_locally, now.decided_locally
    yield ("timeouts", ""), was.store.timeouts, now.store.timeouts
    yield ("errors", ""), was.store.errors, now.store.errors
    for reason, count in now.refused.items():
        yield ("reason", reason.value), was.refused.get(reason, 0), count
    before = {counted.dependency: counted for counted in was.dependencies}
    for after in now.dependencies:
        name = after.dependency
        base = before.get(name, _NO_DEPENDENCY)
        if after != base:
            yield ("calls", name), _calls(base), _calls(after)
            yield ("failures", name), base.failure, after.failure
            yield ("slow", name), base.slow, after.slow
            if after.refused:
                yield ("refused", name), sum(base.refused.values()), sum(after.refused.values())
    for name, allowed, refused in _tenant_counts(was, now):
        yield ("tenant_requests", name), 0, allowed + refused
        if refused:
            yield ("tenant_refused", name), 0, refused


def _tenant_counts(was: Counters, now: Counters) -> Iterable[tuple[str, int, int]]:
    """Tenant, allowed, refused: what was counted between two beats.

    A server lists its busiest tenants only. One that was not listed before counts from zero
    when the list was complete then, and from its next beat otherwise.
    """
    before = {counted.tenant: counted for counted in was.tenants}
    complete = sum(counted.allowed + counted.refused for counted in was.tenants) >= was.requests
    for after in now.tenants:
        base = before.get(after.tenant) or (_NO_TENANT if complete else after)
        # Postgres keeps no NUL in a document.
        if after != base and "\x00" not in after.tenant:
            yield after.tenant, max(0, after.allowed - base.allowed), max(0, after.refused - base.refused)


def _add_latency(found: dict[Key, int], old: Point, new: Point) -> None:
    elapsed = new.at - old.at
    if elapsed < _SHORTEST_S:
        return
    before = old.counters.store.latency
    for bucket, count in enumerate(new.counters.store.latency[: len(_LATENCY_KEYS)]):
        delta = count - (before[bucket] if bucket < len(before) else 0)
        if delta > 0:
            found[_LATENCY_KEYS[bucket]] = int(delta * 1000 / elapsed)


def _calls(counted: DependencyCounters) -> int:
    return counted.ok + counted.failure + counted.slow + counted.neutral
