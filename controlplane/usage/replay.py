"""Replays one tenant's demand through limits, minute by minute.

This is an estimate. Within a minute, requests are assumed to arrive evenly, so a shorter burst is not
seen. Costs and users are not known, so limits by those are left out. A limit of some endpoints
is replayed only on what it bound itself, where that is known.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from controlplane.policies.fields import Fields
from controlplane.policies.limits import OPTIONAL

STEP_S = 60


@dataclass(frozen=True)
class Outcome:
    asked: int
    refused: int
    #: Start of the minute -> allowed requests.
    allowed: dict[int, int]


def counts_requests(columns: Fields) -> bool:
    """Whether it can be replayed: a limit of all requests, each counted once."""
    return counts_some(columns) and not columns.get("endpoints")


def counts_some(columns: Fields) -> bool:
    """Whether it can be replayed on what it bound itself: requests, each counted once."""
    full = {**OPTIONAL, **columns}
    return (
        full["measure"] == "calls"
        and not full["dependency"]
        and not full["per"]
        and full["algorithm"] in _KINDS
    )


def replay(
    minutes: Iterable[tuple[int, int]], limits: Sequence[Fields], *, suspended: bool = False
) -> Outcome:
    """Send demand (start of the minute, requests) through limits, all of which must allow a request."""
    simulated = [_KINDS[{**OPTIONAL, **columns}["algorithm"]](columns) for columns in limits]
    asked = refused = 0
    allowed: dict[int, int] = {}
    for at, count in minutes:
        room = min([limit.room(at) for limit in simulated], default=float("inf"))
        taken = 0 if suspended else int(min(count, max(0.0, room)))
        for limit in simulated:
            limit.take(taken)
        asked, refused = asked + count, refused + count - taken
        allowed[at] = taken
    return Outcome(asked, refused, allowed)


class _Bucket:
    def __init__(self, columns: Fields) -> None:
        self._rate = columns["limit"] / columns["window_s"]
        self._burst = float(columns.get("burst", 1))
        self._tokens, self._at = self._burst, 0
        self._room = 0.0

    def room(self, at: int) -> float:
        if self._at:
            idle_s = max(0, at - self._at - STEP_S)
            self._tokens = min(self._burst, self._tokens + idle_s * self._rate)
        self._at = at
        # Tokens that become available during the minute can be spent in it.
        self._room = self._tokens + STEP_S * self._rate
        return self._room

    def take(self, count: float) -> None:
        self._tokens = min(self._burst, self._room - count)


class _Sliding:
    def __init__(self, columns: Fields) -> None:
        self._limit, self._window_s = columns["limit"], columns["window_s"]
        self._taken: deque[tuple[int, float]] = deque()
        self._sum, self._at = 0.0, 0

    def room(self, at: int) -> float:
        self._at = at
        if self._window_s <= STEP_S:
            return float(self._limit * STEP_S / self._window_s)
        while self._taken and self._taken[0][0] <= at + STEP_S - self._window_s - 1:
            self._sum -= self._taken.popleft()[1]
        return float(self._limit - self._sum)

    def take(self, count: float) -> None:
        if self._window_s > STEP_S and count:
            self._taken.append((self._at, count))
            self._sum += count


class _Calendar:
    """Periods start at multiples of their length in UTC: close enough to compare two limits."""

    def __init__(self, columns: Fields) -> None:
        self._limit, self._window_s = columns["limit"], columns["window_s"]
        self._period, self._sum = -1, 0.0

    def room(self, at: int) -> float:
        if at // self._window_s != self._period:
            self._period, self._sum = at // self._window_s, 0.0
        if self._window_s < STEP_S:
            return float(self._limit * STEP_S / self._window_s)
        return float(self._limit - self._sum)

    def take(self, count: float) -> None:
        self._sum += count


_KINDS: dict[str, Any] = {"token_bucket": _Bucket, "sliding_window": _Sliding, "fixed_window": _Calendar}
