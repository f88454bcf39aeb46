"""How many retries a pod may make, so that a fleet whose vendor is down does not call it twice as often.

Each pod retries at most a part of its own first calls. Then so does the fleet, and no pod has to ask
another. The floor, for a pod with few calls, is the only part that adds up over the fleet: the control plane
lowers it.
"""

import contextlib
from collections import deque

from msgspec import Struct

from fuseboard.contract.protection import Retry

#: First calls and retries are counted in slots of a second.
SLOTS = 10
#: A dependency is judged by this many calls, and none older.
WINDOW_CALLS, WINDOW_S = 100, 30.0
#: Fewer say nothing.
ENOUGH = 10
#: In trouble, retries are so many times as far apart as the budget allows on average. Calls come at random:
#: with 1.0, a pod that makes many of the fleet's next 100 calls retries twice among them.
SPACING = 1.5


def allowance(*, closed: bool, mean_wait_s: float | None, saturation: float, error_rate: float | None) -> int:
    """The most retries of a call now. ``None`` is unknown, and forbids nothing."""
    if not closed or (mean_wait_s is not None and mean_wait_s > 2.0) or saturation > 0.9:
        return 0
    if error_rate is None or error_rate <= 0.2:
        return 3
    return 1 if error_rate > 0.5 else 2


class ErrorWindow:
    """The share of attempts that failed: of the last hundred, and of the last 30 s."""

    __slots__ = ("_ended", "_failed")

    def __init__(self) -> None:
        self._ended: deque[tuple[float, bool]] = deque()
        self._failed = 0

    def add(self, now: float, failed: bool) -> None:
        self._ended.append((now, failed))
        self._failed += failed
        if len(self._ended) > WINDOW_CALLS:
            self._drop()

    def rate(self, now: float) -> float | None:
        while self._ended and self._ended[0][0] <= now - WINDOW_S:
            self._drop()
        return self._failed / len(self._ended) if len(self._ended) >= ENOUGH else None

    def _drop(self) -> None:
        self._failed -= self._ended.popleft()[1]


class Withdrawal(Struct, frozen=True):
    """One retry that was allowed."""

    at: float
    #: The slot that counts it, by the calls of the last 10 s; ``None`` for the floor.
    slot: int | None
    #: When the retry before it was allowed.
    before_s: float | None


class RetryBudget:
    """The retries of one pod to one dependency.

    ``budget_percent`` of the first calls of the last 10 s. Besides, a floor: a bucket of one retry, which
    starts full, so that a lone failure of a young pod is retried. It fills only as far as the calls alone
    would not allow its rate. Without a rate, it allows nothing.

    When the call before failed too, retries are spaced by the rate of the budget (``SPACING``): in an outage
    all pods fail at once, and what they have saved until then must not come together.
    """

    __slots__ = ("_calls", "_floor", "_last_s", "_retries", "_seen_s", "_slot")

    def __init__(self, now: float) -> None:
        self._calls = [0] * SLOTS
        self._retries = [0] * SLOTS
        self._slot = int(now)
        self._seen_s = now
        self._floor = 1.0
        #: When the last retry was allowed.
        self._last_s: float | None = None

    def first_call(self, now: float) -> None:
        """A call begins. Its first attempt is never refused by a budget."""
        self._advance(now)
        self._calls[self._slot % SLOTS] += 1

    def withdraw(self, now: float, retry: Retry, floor_per_s: float, *, troubled: bool) -> Withdrawal | None:
        """Take one retry; ``None`` when there is none. ``troubled``: the call before failed too."""
        self._advance(now)
        by_all = sum(self._calls) * retry.budget_percent / 100
        self._fill(now, floor_per_s, by_all)
        # Less than one retry in the window is none at all, like in the floor.
        per_s = max(by_all / SLOTS if by_all >= 1.0 else 0.0, floor_per_s)
        before_s = self._last_s
        if troubled and before_s is not None and (now - before_s) * per_s < SPACING:
            return None
        # Less than 1 by a rounding error is 1.
        by_calls = by_all - sum(self._retries) >= 1.0 - 1e-9
        if not by_calls and (self._floor < 1.0 or floor_per_s <= 0.0):
            return None
        if by_calls:
            self._retries[self._slot % SLOTS] += 1
        else:
            self._floor -= 1.0
        self._last_s = now
        return Withdrawal(now, self._slot if by_calls else None, before_s)

    def give_back(self, now: float, taken: Withdrawal) -> None:
        """A retry that was allowed is not made."""
        self._advance(now)
        if self._last_s == taken.at:
            self._last_s = taken.before_s
        if taken.slot is None:
            self._floor = min(1.0, self._floor + 1.0)
        elif self._slot - taken.slot < SLOTS:
            self._retries[taken.slot % SLOTS] -= 1

    def left(self, now: float, retry: Retry) -> float:
        """Retries that may be made now."""
        self._advance(now)
        by_calls = sum(self._calls) * retry.budget_percent / 100 - sum(self._retries)
        return max(0.0, by_calls) + max(0.0, self._floor)

    def _advance(self, now: float) -> None:
        slot = int(now)
        if slot <= self._slot:
            return
        for passed in range(self._slot + 1, min(slot, self._slot + SLOTS) + 1):
            self._calls[passed % SLOTS] = self._retries[passed % SLOTS] = 0
        self._slot = slot

    def _fill(self, now: float, floor_per_s: float, by_calls: float) -> None:
        # Less than one retry in the window is none at all.
        rate = floor_per_s if by_calls < 1.0 else max(0.0, floor_per_s - by_calls / SLOTS)
        self._floor = min(1.0, self._floor + rate * max(0.0, now - self._seen_s))
        self._seen_s = now


class ProcessBudget:
    """The retries of a process to all dependencies together: at most so many in any second."""

    __slots__ = ("_made",)

    def __init__(self) -> None:
        self._made: deque[float] = deque()

    def withdraw(self, now: float, per_s: int) -> bool:
        while self._made and self._made[0] <= now - 1.0:
            self._made.popleft()
        if len(self._made) >= per_s:
            return False
        self._made.append(now)
        return True

    def give_back(self, taken: Withdrawal) -> None:
        """A retry that was allowed is not made."""
        with contextlib.suppress(ValueError):  # older than a second
            self._made.remove(taken.at)
