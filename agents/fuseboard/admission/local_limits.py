"""This server's own share of each limit: what is left of it when Redis cannot be asked."""

from collections import OrderedDict, deque
from collections.abc import Callable
from time import monotonic, time
from typing import Protocol

from fuseboard.admission.calendar import period_around
from fuseboard.admission.demand import RESERVED_PART, Demand, LimitRef
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, FailurePolicy

#: Counters kept at most; the longest unused goes first.
MAX_COUNTERS = 50_000


class Counter(Protocol):
    def wait(self, share: float, limit: Limit, cost: int, now: float) -> float:
        """Seconds until ``cost`` fits into this share of the limit; 0 when it fits now."""
        ...

    def spend(self, share: float, limit: Limit, cost: int, now: float) -> None: ...


class Bucket:
    """GCRA on the monotonic clock."""

    __slots__ = ("arrival",)

    def __init__(self) -> None:
        self.arrival = 0.0

    def wait(self, share: float, limit: Limit, cost: int, now: float) -> float:
        burst = max(1.0, limit.burst * share)
        spacing = limit.window_ms / 1000 / (limit.limit * share)
        return max(0.0, max(self.arrival, now) - now - (burst - min(cost, burst)) * spacing)

    def spend(self, share: float, limit: Limit, cost: int, now: float) -> None:
        self.arrival = max(self.arrival, now) + cost * limit.window_ms / 1000 / (limit.limit * share)


class Window:
    """Exact log of the last window; a share below one call becomes a turn in time."""

    __slots__ = ("log", "sum")

    def __init__(self) -> None:
        self.log: deque[tuple[float, int]] = deque()
        self.sum = 0

    def wait(self, share: float, limit: Limit, cost: int, now: float) -> float:
        calls, window = self._size(share, limit)
        while self.log and self.log[0][0] <= now - window:
            self.sum -= self.log.popleft()[1]
        need = self.sum + min(cost, calls) - calls
        for moment, spent in self.log:
            if need <= 0:
                break
            need -= spent
            if need <= 0:
                return moment + window - now
        return 0.0

    def spend(self, share: float, limit: Limit, cost: int, now: float) -> None:
        self.log.append((now, cost))
        self.sum += cost

    @staticmethod
    def _size(share: float, limit: Limit) -> tuple[int, float]:
        window = limit.window_ms / 1000
        calls = limit.limit * share
        return (int(calls), window) if calls >= 1 else (1, window / calls)


class CalendarPeriod:
    """The calendar is the one thing a pod's wall clock must say; Redis checks it when it is there."""

    __slots__ = ("began", "spent")

    def __init__(self) -> None:
        self.began = 0
        self.spent = 0

    def wait(self, share: float, limit: Limit, cost: int, now: float) -> float:
        assert limit.period is not None  # noqa: S101 - decode_policy saw to it
        wall_us = int(time() * 1_000_000)
        began, ends = period_around(wall_us, limit.period, limit.time_zone)
        if began != self.began:
            self.began, self.spent = began, 0
        allowed = max(1.0, limit.limit * share)
        return 0.0 if self.spent + cost <= allowed else (ends - wall_us) / 1_000_000

    def spend(self, share: float, limit: Limit, cost: int, now: float) -> None:
        self.spent += cost


class Slots:
    """Calls under way, each a lease."""

    __slots__ = ("leases",)

    def __init__(self) -> None:
        self.leases: deque[float] = deque()

    def wait(self, share: float, limit: Limit, cost: int, now: float) -> float:
        while self.leases and self.leases[0] <= now:
            self.leases.popleft()
        allowed = max(1, int(limit.limit * share))
        return 0.0 if len(self.leases) + cost <= allowed else self.leases[0] - now

    def spend(self, share: float, limit: Limit, cost: int, now: float) -> None:
        self.leases.extend([now + limit.window_ms / 1000] * cost)

    def free(self) -> None:
        if self.leases:
            self.leases.popleft()


_KINDS: dict[Algorithm, Callable[[], Counter]] = {
    Algorithm.SLIDING_WINDOW: Window,
    Algorithm.TOKEN_BUCKET: Bucket,
    Algorithm.FIXED_WINDOW: CalendarPeriod,
    Algorithm.CONCURRENCY: Slots,
}


class Blocked:
    """Which limit refused a call, and for how long."""

    __slots__ = ("limit", "unavailable", "wait_s")

    def __init__(self, limit: Limit, wait_s: float, *, unavailable: bool = False) -> None:
        self.limit = limit
        self.wait_s = wait_s
        #: Refused because the store cannot be asked, not because anything is spent.
        self.unavailable = unavailable


class LocalLimits:
    """This server's own counters, used when Redis is gone and for its part of a ramp."""

    def __init__(self, live_servers: Callable[[], int]) -> None:
        self._live_servers = live_servers
        self._counters: OrderedDict[bytes, tuple[Algorithm, Counter]] = OrderedDict()

    def take(self, demand: Demand, part: float) -> Blocked | None:
        """Spend from every limit, or from none and say which refused.

        ``part`` is what servers may spend locally at all: 1 when Redis is gone, less in a ramp.
        """
        now = monotonic()
        charged: list[tuple[Counter, float, Limit, int]] = []
        worst: Blocked | None = None
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            limit = ref.limit
            if limit.shadow or limit.failure_policy is FailurePolicy.FAIL_OPEN:
                continue
            if limit.failure_policy is FailurePolicy.FAIL_CLOSED:
                return Blocked(limit, 1.0, unavailable=True)
            counter, share = self._counter(ref), self.share(limit, part)
            wait_s = counter.wait(share, limit, cost, now)
            if wait_s > 0 and (worst is None or wait_s > worst.wait_s):
                worst = Blocked(limit, wait_s)
            charged.append((counter, share, limit, cost))
        if worst is None:
            for counter, share, limit, cost in charged:
                counter.spend(share, limit, cost, now)
        return worst

    def free(self, demand: Demand) -> None:
        """A call that took its slots here has ended."""
        for ref in demand.refs:
            if ref.is_slot and isinstance(counter := self._counter(ref), Slots):
                counter.free()

    def share(self, limit: Limit, part: float) -> float:
        """This server's share of ``limit``, 0 to 1."""
        if limit.failure_policy is FailurePolicy.RESERVED:
            return RESERVED_PART / self._live_servers()
        return part / self._live_servers()

    def _counter(self, ref: LimitRef) -> Counter:
        algorithm = ref.limit.algorithm
        known = self._counters.get(ref.key)
        if known is None or known[0] is not algorithm:
            known = self._counters[ref.key] = (algorithm, _KINDS[algorithm]())
            if len(self._counters) > MAX_COUNTERS:
                self._counters.popitem(last=False)
        else:
            self._counters.move_to_end(ref.key)
        return known[1]
