"""Limits: as arguments of the admission script, and as this server's own share of them.

The local twins use the arithmetic of ``lua/admit.lua``; they are what is left of a limit
when Redis cannot be asked.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from time import monotonic

from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, FailurePolicy

#: Sub-buckets of a sliding window: the effective window is one tenth longer than promised.
RING_SIZE = 10

#: The part of a ``reserved`` limit that is never asked of Redis, so that it is safe to spend
#: locally when Redis is gone: shared + local never exceeds the limit.
RESERVED_PART = 0.1

#: Local counters kept at most; the longest unused goes first.
MAX_LOCAL_COUNTERS = 50_000


def shared_limit(limit: Limit) -> int:
    """The calls per window that Redis may grant."""
    if limit.failure_policy is FailurePolicy.RESERVED:
        return limit.limit - int(limit.limit * RESERVED_PART)
    return limit.limit


def script_arguments(limit: Limit, part: float) -> tuple[int, ...]:
    """What ``admit.lua`` takes per limit; ``part`` is Redis's part of it while ramping."""
    calls = max(1, int(shared_limit(limit) * part))
    window_us = limit.window_ms * 1000
    if limit.algorithm is Algorithm.SLIDING_WINDOW:
        return (1, calls, window_us, RING_SIZE, int(limit.shadow))
    return (2, calls, window_us, max(1, int(limit.burst * part)), int(limit.shadow))


class LocalBucket:
    """GCRA on the monotonic clock."""

    __slots__ = ("arrival",)

    def __init__(self) -> None:
        self.arrival = 0.0

    def wait(self, share: float, limit: Limit, cost: int, now: float) -> float:
        """Seconds until ``cost`` fits; 0 when it fits now."""
        burst = max(1.0, limit.burst * share)
        spacing = limit.window_ms / 1000 / (limit.limit * share)
        return max(0.0, max(self.arrival, now) - now - (burst - min(cost, burst)) * spacing)

    def spend(self, share: float, limit: Limit, cost: int, now: float) -> None:
        spacing = limit.window_ms / 1000 / (limit.limit * share)
        self.arrival = max(self.arrival, now) + cost * spacing


class LocalWindow:
    """Exact log of what this server admitted in the last window."""

    __slots__ = ("log", "sum")

    def __init__(self) -> None:
        self.log: deque[tuple[float, int]] = deque()
        self.sum = 0

    def wait(self, share: float, limit: Limit, cost: int, now: float) -> float:
        """Seconds until ``cost`` fits; a share below one call becomes a turn in time."""
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
        self._counters: OrderedDict[tuple[str, str], LocalBucket | LocalWindow] = OrderedDict()

    def share(self, limit: Limit, part: float) -> float:
        """This server's part of ``limit``, given that ``part`` of it is spent locally at all."""
        if limit.failure_policy is FailurePolicy.RESERVED:
            return RESERVED_PART / self._live_servers()
        return part / self._live_servers()

    def take(self, domain: str, limits: Sequence[Limit], cost: int, part: float) -> Blocked | None:
        """Spend ``cost`` from every limit, or from none and say which refused."""
        now = monotonic()
        charged: list[tuple[LocalBucket | LocalWindow, float, Limit]] = []
        worst: Blocked | None = None
        for limit in limits:
            if limit.shadow or limit.failure_policy is FailurePolicy.FAIL_OPEN:
                continue
            if limit.failure_policy is FailurePolicy.FAIL_CLOSED:
                return Blocked(limit, 1.0, unavailable=True)
            counter, share = self._counter(domain, limit), self.share(limit, part)
            wait_s = counter.wait(share, limit, cost, now)
            if wait_s > 0 and (worst is None or wait_s > worst.wait_s):
                worst = Blocked(limit, wait_s)
            charged.append((counter, share, limit))
        if worst is None:
            for counter, share, limit in charged:
                counter.spend(share, limit, cost, now)
        return worst

    def _counter(self, domain: str, limit: Limit) -> LocalBucket | LocalWindow:
        key = (domain, limit.name)
        counter = self._counters.get(key)
        wanted = LocalWindow if limit.algorithm is Algorithm.SLIDING_WINDOW else LocalBucket
        if not isinstance(counter, wanted):
            counter = self._counters[key] = wanted()
            if len(self._counters) > MAX_LOCAL_COUNTERS:
                self._counters.popitem(last=False)
        else:
            self._counters.move_to_end(key)
        return counter
