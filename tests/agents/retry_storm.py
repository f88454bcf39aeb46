"""Twenty processes whose vendor is down for 30 s, in virtual time."""

import heapq
from collections.abc import Callable
from itertools import count
from random import Random

from fuseboard.calling.retried_call import RetriedCall
from fuseboard.calling.retries import Retries
from fuseboard.contract.protection import Retry

PROCESSES = 20
#: The vendor is down from here on, and the processes call on for ``DOWN_S``.
WARM_S, DOWN_S = 60.0, 30.0
LOAD_FACTOR = 1.2
#: How long an attempt takes.
TAKES_S = 0.05
RETRY = Retry(idempotent=True)
DOWN = ConnectionRefusedError("down")
#: Calls per second of one process -> the retries per 1,000 s that the control plane allows it, besides its
#: budget. The experiments compare this with the control plane, which the agent's tests do not have.
CAPS = {0.2: 20, 0.5: 50, 1.0: 100, 10.0: None}


class Storm:
    """``attempts``: when each one was made, and whether it was a first call."""

    def __init__(
        self,
        per_s: float,
        *,
        cap: int | None = None,
        seed: int = 1,
        naive: bool = False,
        down_from: float = WARM_S,
    ) -> None:
        self.now = 0.0
        self.random = Random(seed)
        self.attempts: list[tuple[float, bool]] = []
        self._naive = naive
        self._down_from = down_from
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()
        self._pods = [self._pod() for _ in range(PROCESSES)]
        self._cap = cap
        for pod in self._pods:
            at = self.random.expovariate(per_s)
            while at < WARM_S + DOWN_S:
                self._at(at, lambda pod=pod: self._attempt(pod, self._call(pod)))  # type: ignore[misc]
                at += self.random.expovariate(per_s)

    def _pod(self) -> Retries:
        return Retries(
            settings=lambda _: RETRY,
            protection=lambda: None,
            now_us=lambda: 0,
            live_servers=lambda: PROCESSES,
            clock=lambda: self.now,
            random=self.random,
        )

    def run(self) -> "Storm":
        while self._events:
            self.now, _, happens = heapq.heappop(self._events)
            happens()
        self.attempts.sort()
        return self

    def _at(self, moment: float, happens: Callable[[], None]) -> None:
        heapq.heappush(self._events, (moment, next(self._numbers), happens))

    def _call(self, pod: Retries) -> RetriedCall:
        if self._cap is not None:
            pod.cap({"vendor": self._cap}, valid_s=30)
        return RetriedCall(pod, "vendor")

    def _attempt(self, pod: Retries, call: RetriedCall) -> None:
        call.begin()
        call.admitted()
        self.attempts.append((self.now, call.num == 1))
        down = self.now >= self._down_from
        self._at(self.now + TAKES_S, (lambda: self._failed(pod, call)) if down else call.succeeded)

    def _failed(self, pod: Retries, call: RetriedCall) -> None:
        again = call.failed(DOWN)
        if self._naive and call.num < RETRY.attempts:
            again, call.next_wait_s = True, self.random.uniform(0, 0.5 * 2 ** (call.num - 1))
        if again:
            self._at(self.now + call.next_wait_s, lambda: self._attempt(pod, call))

    def whole(self) -> float:
        """Attempts per call while the vendor is down."""
        made = [first for at, first in self.attempts if at >= WARM_S]
        return len(made) / sum(made)

    def worst(self, calls: int = 100) -> float:
        """The most attempts per call in any window of at least so many calls."""
        return worst_window(self.attempts, calls)


def worst_window(attempts: list[tuple[float, bool]], calls: int) -> float:
    """The most attempts per call in any window of at least so many calls. ``attempts`` are sorted."""
    firsts = [0]
    for _, first in attempts:
        firsts.append(firsts[-1] + first)
    worst, end = 0.0, 0
    for begin in range(len(attempts)):
        while end < len(firsts) and firsts[end] - firsts[begin] < calls:
            end += 1
        # A window that ends with the retries before the next call has the most of them. Longer windows
        # are made of windows that are at most twice as long.
        last = end
        while last < len(firsts) and firsts[last] - firsts[begin] <= 2 * calls:
            worst = max(worst, (last - begin) / (firsts[last] - firsts[begin]))
            last += 1
    return worst
