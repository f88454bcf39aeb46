"""How one pod counts a limit alone. Times are monotonic seconds.

A limit that gets another rule gets another counter, which takes over what the first one still counts.
"""

from collections import deque
from collections.abc import Callable, Iterable
from math import ceil
from time import time
from typing import NamedTuple, Protocol

from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, Period

#: Less than this apart, two times are the same one, written in seconds and in microseconds.
SAME_MOMENT_S = 0.000_002


class Turn(NamedTuple):
    """When a pod may make its one call per period: a time slot that comes again and again."""

    every_s: float
    begins_s: float
    lasts_s: float

    def wait(self, now: float) -> float:
        """Seconds until the time slot; 0 within it."""
        into = (now - self.begins_s) % self.every_s
        return 0.0 if into < self.lasts_s else self.every_s - into


class PodPortion(NamedTuple):
    """The part of a limit that one pod may spend."""

    #: Per window. With a ``turn``, it is one call in each time slot.
    calls: float
    #: At once; token buckets only.
    burst: float
    turn: Turn | None = None


#: A time, and an amount that was spent then or before.
Entry = tuple[float, int]


class Counter(Protocol):
    def wait(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> float:
        """Seconds until ``cost`` fits into the portion; 0 when it fits now."""
        ...

    def spend(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> None: ...

    def correct(self, portion: PodPortion, limit: Limit, amount: int, at: float, now: float) -> None:
        """A call that spent at ``at`` cost ``amount`` more; less if it is negative."""
        ...

    def spent(self, portion: PodPortion, limit: Limit, now: float) -> int:
        """Units that were spent here and still count."""
        ...

    def known(self, limit: Limit, now: float) -> list[Entry]:
        """Units that still count, for a counter with another rule. ``limit`` is the rule until now."""
        ...

    def take_over(self, portion: PodPortion, limit: Limit, entries: Iterable[Entry], now: float) -> None:
        """Count what another counter knows, oldest first; this one is new."""
        ...


class Bucket:
    """GCRA, the generic cell rate algorithm."""

    __slots__ = ("arrival", "spacing")

    def __init__(self) -> None:
        self.arrival = 0.0
        #: Seconds per call when the last one was spent.
        self.spacing = 1.0

    def wait(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> float:
        spacing = limit.window_ms / 1000 / portion.calls
        free_at = self.arrival - (portion.burst - min(cost, portion.burst)) * spacing
        return max(0.0, free_at - now)

    def spend(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> None:
        self.spacing = limit.window_ms / 1000 / portion.calls
        self.arrival = max(self.arrival, now) + cost * self.spacing

    def correct(self, portion: PodPortion, limit: Limit, amount: int, at: float, now: float) -> None:
        window_s = limit.window_ms / 1000
        if amount > 0:
            self.spend(portion, limit, amount, now)
        elif now - at < window_s * max(1.0, portion.burst / portion.calls):
            self.arrival = max(min(self.arrival, now), self.arrival + amount * window_s / portion.calls)

    def spent(self, portion: PodPortion, limit: Limit, now: float) -> int:
        return int(max(0.0, self.arrival - now) * portion.calls * 1000 / limit.window_ms + 0.5)

    def known(self, limit: Limit, now: float) -> list[Entry]:
        # Rounded as in spent(), but never down by more than an error of a float.
        amount = ceil((self.arrival - now) / self.spacing - 1e-6)
        return [(now, amount)] if amount > 0 else []

    def take_over(self, portion: PodPortion, limit: Limit, entries: Iterable[Entry], now: float) -> None:
        for moment, amount in entries:
            self.spend(portion, limit, amount, moment)
        # It owes one window at most, or itself if that is more.
        most_s = max(limit.window_ms / 1000, portion.burst * self.spacing)
        self.arrival = min(self.arrival, now + most_s)


class Window:
    """An exact log of the last window."""

    __slots__ = ("log", "sum")

    def __init__(self) -> None:
        self.log: deque[tuple[float, int]] = deque()
        self.sum = 0

    def wait(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> float:
        calls, window = int(portion.calls + 1e-9), limit.window_ms / 1000
        self._forget(now - window)
        need = self.sum + min(cost, calls) - calls
        for moment, amount in self.log:
            if need <= 0:
                break
            need -= amount
            if need <= 0:
                return moment + window - now
        return 0.0

    def spend(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> None:
        self.log.append((now, cost))
        self.sum += cost

    def correct(self, portion: PodPortion, limit: Limit, amount: int, at: float, now: float) -> None:
        if amount > 0:
            self.spend(portion, limit, amount, now)
            return
        for place in range(len(self.log) - 1, -1, -1):
            moment, spent = self.log[place]
            if abs(moment - at) < SAME_MOMENT_S:
                given = min(-amount, spent)
                self.log[place] = (moment, spent - given)
                self.sum, amount = self.sum - given, amount + given
            elif moment < at:
                return

    def spent(self, portion: PodPortion, limit: Limit, now: float) -> int:
        self._forget(now - limit.window_ms / 1000)
        return self.sum

    def known(self, limit: Limit, now: float) -> list[Entry]:
        self._forget(now - limit.window_ms / 1000)
        return list(self.log)

    def take_over(self, portion: PodPortion, limit: Limit, entries: Iterable[Entry], now: float) -> None:
        for moment, amount in entries:
            self.spend(portion, limit, amount, moment)

    def _forget(self, until: float) -> None:
        while self.log and self.log[0][0] <= until:
            self.sum -= self.log.popleft()[1]


class Turns:
    """One call per time slot."""

    __slots__ = ("last", "wrapped")

    def __init__(self, wrapped: Counter) -> None:
        #: Counts instead when the portion is a whole call or more.
        self.wrapped = wrapped
        self.last = float("-inf")

    def wait(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> float:
        turn = portion.turn
        if turn is None:
            return self.wrapped.wait(portion, limit, cost, now)
        left = turn.wait(now)
        if left > 0 or now - self.last >= turn.lasts_s:
            return left
        return turn.every_s - (now - turn.begins_s) % turn.every_s

    def spend(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> None:
        if portion.turn is None:
            self.wrapped.spend(portion, limit, cost, now)
        else:
            self.last = now

    def correct(self, portion: PodPortion, limit: Limit, amount: int, at: float, now: float) -> None:
        self.wrapped.correct(portion, limit, amount, at, now)  # a turn is one call, whatever it costs

    def spent(self, portion: PodPortion, limit: Limit, now: float) -> int:
        if portion.turn is None:
            return self.wrapped.spent(portion, limit, now)
        return int(now - self.last < limit.window_ms / 1000)

    def known(self, limit: Limit, now: float) -> list[Entry]:
        entries = self.wrapped.known(limit, now)
        return [*entries, (self.last, 1)] if now - self.last < limit.window_ms / 1000 else entries

    def take_over(self, portion: PodPortion, limit: Limit, entries: Iterable[Entry], now: float) -> None:
        entries = list(entries)
        if portion.turn is None:
            self.wrapped.take_over(portion, limit, entries, now)
        elif entries:
            self.last = max(moment for moment, _ in entries)


class CalendarPeriod:
    """A calendar period by the pod's wall clock, because no other clock knows the date."""

    __slots__ = ("amount", "began", "calendar", "ends")

    def __init__(self) -> None:
        self.began = self.ends = 0
        self.amount = 0
        #: The period that ``began`` and ``ends`` belong to. Looked up once, because that costs more than the
        #: decision.
        self.calendar: tuple[Period | None, str] = (None, "")

    def wait(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> float:
        wall_us = int(time() * 1_000_000)
        ends = self._enter(limit, wall_us)
        return 0.0 if self.amount + cost <= portion.calls else (ends - wall_us) / 1_000_000

    def spend(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> None:
        self.amount += cost

    def correct(self, portion: PodPortion, limit: Limit, amount: int, at: float, now: float) -> None:
        wall_us = int(time() * 1_000_000)
        self._enter(limit, wall_us)
        if amount > 0 or wall_us - (now - at) * 1_000_000 >= self.began:
            self.amount = max(0, self.amount + amount)

    def spent(self, portion: PodPortion, limit: Limit, now: float) -> int:
        self._enter(limit, int(time() * 1_000_000))
        return self.amount

    def charged(self, amount: int) -> None:
        """Redis counts so much of it from now on."""
        self.amount = max(0, self.amount - amount)

    def known(self, limit: Limit, now: float) -> list[Entry]:
        # All of it may have been spent just now: only the period is known.
        return [(now, self.amount)] if self.amount and time() * 1_000_000 < self.ends else []

    def take_over(self, portion: PodPortion, limit: Limit, entries: Iterable[Entry], now: float) -> None:
        wall_us = int(time() * 1_000_000)
        self._enter(limit, wall_us)
        into_s = (wall_us - self.began) / 1_000_000
        self.amount = sum(amount for moment, amount in entries if now - moment <= into_s)

    def _enter(self, limit: Limit, wall_us: int) -> int:
        calendar = limit.period, limit.time_zone
        if calendar == self.calendar and self.began <= wall_us < self.ends:
            return self.ends
        assert limit.period is not None  # noqa: S101 - decode_policy saw to it
        began, self.ends = period_around(wall_us, limit.period, limit.time_zone)
        if began != self.began:
            self.began, self.amount = began, 0
        self.calendar = calendar
        return self.ends


class Slots:
    """Calls in progress. Their slots expire."""

    __slots__ = ("calls",)

    def __init__(self) -> None:
        #: When its slots expire, how many it occupies, and what it costs.
        self.calls: deque[tuple[float, int, int]] = deque()

    def wait(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> float:
        while self.calls and self.calls[0][0] <= now:
            self.calls.popleft()
        allowed = _slots(portion)
        # A call that costs more than the part of this pod waits until all of it is free.
        missing = min(cost, allowed) - allowed + sum(slots for _, slots, _ in self.calls)
        for expires, slots, _ in self.calls:
            if missing <= 0:
                break
            missing -= slots
            if missing <= 0:
                return expires - now
        return 0.0

    def spend(self, portion: PodPortion, limit: Limit, cost: int, now: float) -> None:
        self.calls.append((now + limit.window_ms / 1000, min(cost, _slots(portion)), cost))

    def correct(self, portion: PodPortion, limit: Limit, amount: int, at: float, now: float) -> None:
        """A slot has no amount."""

    def spent(self, portion: PodPortion, limit: Limit, now: float) -> int:
        return 0  # they are freed where they were taken

    def known(self, limit: Limit, now: float) -> list[Entry]:
        return []  # calls in progress are not a rate

    def take_over(self, portion: PodPortion, limit: Limit, entries: Iterable[Entry], now: float) -> None:
        """Slots start empty."""

    def free(self, cost: int) -> None:
        """A call of this cost has ended."""
        for place, (_, _, its) in enumerate(self.calls):
            if its == cost:
                del self.calls[place]
                return


def _slots(portion: PodPortion) -> int:
    return max(1, int(portion.calls + 1e-9))


KINDS: dict[Algorithm, Callable[[], Counter]] = {
    Algorithm.SLIDING_WINDOW: lambda: Turns(Window()),
    Algorithm.TOKEN_BUCKET: lambda: Turns(Bucket()),
    Algorithm.FIXED_WINDOW: CalendarPeriod,
    Algorithm.CONCURRENCY: Slots,
}
