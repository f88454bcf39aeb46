"""What a counter knows when its limit gets another rule, in exact numbers and without sharing code with the
scripts.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from math import ceil, floor

from fuseboard.batching.demand import RING_SIZE
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm

#: A time, and an amount that was spent then or before.
Charge = tuple[int, int]


@dataclass
class Ring:
    limit: Limit
    head: int = 0
    spent: dict[int, int] = field(default_factory=dict)

    @property
    def width(self) -> int:
        return ceil(Fraction(self.limit.window_ms * 1000, RING_SIZE))

    def known(self, now: int) -> list[Charge]:
        oldest = max(self.head, now // self.width) - RING_SIZE
        return [
            (min(now, (index + 1) * self.width - 1), amount)
            for index, amount in sorted(self.spent.items())
            if index >= oldest
        ]

    def take_over(self, charges: list[Charge], now: int) -> None:
        for at, amount in charges:
            self.spend(at, amount)

    def room(self, now: int) -> int:
        return self.limit.limit - sum(amount for _, amount in self.known(now))

    def spend(self, now: int, amount: int) -> None:
        self.head = max(self.head, now // self.width)
        self.spent[now // self.width] = self.spent.get(now // self.width, 0) + amount


@dataclass
class Bucket:
    limit: Limit
    arrival: Fraction = Fraction(0)

    @property
    def spacing(self) -> Fraction:
        return Fraction(self.limit.window_ms * 1000, self.limit.limit)

    def known(self, now: int) -> list[Charge]:
        return [(now, ceil((self.arrival - now) / self.spacing))] if self.arrival > now else []

    def take_over(self, charges: list[Charge], now: int) -> None:
        for at, amount in charges:
            self.spend(at, amount)
        self.arrival = min(self.arrival, now + max(self.limit.burst, self.limit.limit) * self.spacing)

    def room(self, now: int) -> int:
        return floor(self.limit.burst - max(self.arrival - now, Fraction(0)) / self.spacing)

    def spend(self, now: int, amount: int) -> None:
        self.arrival = max(self.arrival, Fraction(now)) + amount * self.spacing


@dataclass
class Calendar:
    limit: Limit
    began: int = 0
    ends: int = 0
    amount: int = 0

    def around(self, now: int) -> tuple[int, int]:
        assert self.limit.period is not None
        return period_around(now, self.limit.period, self.limit.time_zone)

    def known(self, now: int) -> list[Charge]:
        # The key stays for another second.
        return [(now, self.amount)] if now < self.ends + 1_000_000 else []

    def take_over(self, charges: list[Charge], now: int) -> None:
        self.began, self.ends = self.around(now)
        self.amount = sum(amount for at, amount in charges if at >= self.began)

    def room(self, now: int) -> int:
        return self.limit.limit - (self.amount if now < self.ends else 0)

    def spend(self, now: int, amount: int) -> None:
        if now >= self.ends:
            (self.began, self.ends), self.amount = self.around(now), 0
        self.amount += amount


@dataclass
class Slots:
    limit: Limit
    until: list[int] = field(default_factory=list)

    def known(self, now: int) -> list[Charge]:
        return []  # how many calls are in progress says nothing of a rate

    def take_over(self, charges: list[Charge], now: int) -> None:
        pass

    def room(self, now: int) -> int:
        return self.limit.limit - sum(until > now for until in self.until)

    def spend(self, now: int, amount: int) -> None:
        self.until += [now + self.limit.window_ms * 1000] * amount


Counter = Ring | Bucket | Calendar | Slots

_KINDS: dict[Algorithm, Callable[[Limit], Counter]] = {
    Algorithm.SLIDING_WINDOW: Ring,
    Algorithm.TOKEN_BUCKET: Bucket,
    Algorithm.FIXED_WINDOW: Calendar,
    Algorithm.CONCURRENCY: Slots,
}


def counter(limit: Limit, now: int = 0) -> Counter:
    made = _KINDS[limit.algorithm](limit)
    made.take_over([], now)
    return made


def changed(old: Counter, limit: Limit, now: int) -> Counter:
    """The counter under the new rule, with all that the old one still counts."""
    made = counter(limit, now)
    if isinstance(old, Slots) and isinstance(made, Slots):
        made.until = old.until
    elif isinstance(old, Bucket) and isinstance(made, Bucket):
        calls = max(old.arrival - now, Fraction(0)) / old.spacing
        most = max(limit.burst, limit.limit)
        if (calls - limit.burst - most) * made.spacing > 1_000_000:
            calls = Fraction(most)
        made.arrival = now + calls * made.spacing
    elif isinstance(old, Calendar) and isinstance(made, Calendar):
        overlaps = old.ends > made.began and old.began < made.ends
        made.amount = old.amount if overlaps and old.known(now) else 0
    else:
        made.take_over(old.known(now), now)
    return made
