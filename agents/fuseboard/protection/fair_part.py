"""Divides a part of the requests among those who ask, in bounded memory."""

import random

#: Sources are sorted into this many groups, by a hash whose seed changes.
GROUPS = 64
RESEED_S = 600.0
#: The weight of the last tick in a group's rate.
WEIGHT = 0.5


class FairPart:
    """Water-filling: a group that asks for less than the water line gets everything, the others the line."""

    def __init__(self, draw: random.Random) -> None:
        self._random = draw
        self._seed = draw.getrandbits(32)
        self._seeded_at: float | None = None
        self._asked = [0] * GROUPS
        self._rates = [0.0] * GROUPS
        self._left = [0.0] * GROUPS
        self._line = float("inf")
        #: Requests that all of them may take until the next tick.
        self._budget = float("inf")

    def take(self, source: str) -> bool:
        """Whether this request of ``source`` is among those that pass."""
        group = hash((self._seed, source)) % GROUPS
        self._asked[group] += 1
        if self._left[group] < 1 or self._budget < 1:
            return False
        self._left[group] -= 1
        self._budget -= 1
        return True

    def tick(self, rate: float, elapsed: float, now: float, *, forget: bool) -> None:
        """From now on, ``rate`` requests per second pass. ``forget``: other requests than before ask."""
        if self._seeded_at is None or now - self._seeded_at >= RESEED_S:
            # Two sources in one group share its line. Not forever.
            self._seeded_at, self._seed, forget = now, self._random.getrandbits(32), True
        if forget:
            self.forget()
        for group, asked in enumerate(self._asked):
            self._rates[group] += WEIGHT * (asked / elapsed - self._rates[group])
        self._asked = [0] * GROUPS
        if rate == float("inf"):
            self._budget, self._line, self._left = rate, rate, [rate] * GROUPS
            return
        self._budget = _carried(self._budget) + rate * elapsed
        self._line = _water_line(self._rates, rate)
        # At least as much as one group gets if all ask: one that asks for the first time is not refused.
        gain = max(self._line, rate / GROUPS) * elapsed
        self._left = [_carried(left) + gain for left in self._left]

    def forget(self) -> None:
        self._asked, self._rates, self._left = [0] * GROUPS, [0.0] * GROUPS, [0.0] * GROUPS
        self._budget = 0.0


def _carried(left: float) -> float:
    """The rest of a tick. At most one request: a quiet time is not saved up."""
    return min(left, 1.0)


def _water_line(rates: list[float], most: float) -> float:
    """The rate for each group so that together they get ``most``, or everything if they ask for less."""
    left = most
    ordered = sorted(rate for rate in rates if rate > 0)
    for at, rate in enumerate(ordered):
        line = left / (len(ordered) - at)
        if rate >= line:
            return line
        left -= rate
    return float("inf")
