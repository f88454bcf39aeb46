"""The length of a queue that bounds how long calls wait.

A queue is as long as the calls that the slots complete within the target wait. It depends on the measured
time that a call uses its slot, and on the number of slots, and on nothing else. A queue that grows because
calls wait longer makes them wait longer still.
"""

LONGEST = 10_000
#: The fewest places before anything is measured.
FEWEST_AT_FIRST = 8

#: How often the size is adjusted, by at least so many calls. With fewer, the window is longer.
ADJUST_S = 1.0
ADJUST_CALLS = 5
LONGEST_WINDOW_S = 10.0
#: How much a measurement counts against those before it.
WEIGHT = 0.3
#: The size stays while the wanted one is this near.
DEAD_BAND = 0.10
#: How far it goes towards the wanted one.
STEP = 0.5
#: Without a completed call for this time, measurements say nothing any more.
IDLE_S = 60.0
#: Little's law is computed over this time.
PREDICTION_S = 10.0


class AdaptiveQueue:
    """``expected_s`` is how long a call probably takes, until that is measured."""

    __slots__ = (
        "_begun",
        "_busy_s",
        "_calls",
        "_last",
        "_last_waits",
        "_limit",
        "_rate",
        "_waited_s",
        "_waits_begun",
        "expected_s",
        "size",
        "target_s",
    )

    def __init__(self, target_s: float, expected_s: float) -> None:
        self.target_s = target_s
        self.expected_s = expected_s
        self._limit = 1
        self.size = 0
        #: Calls that one slot completes per second; 0 for not measured.
        self._rate = 0.0
        # The window of the next measurement.
        self._begun = self._last = 0.0
        self._busy_s, self._calls = 0.0, 0
        # Seconds waited in this window of Little's law, and per second in the last one.
        self._waits_begun, self._waited_s, self._last_waits = 0.0, 0.0, 0.0

    def resize(self, limit: int) -> int:
        """The number of slots is ``limit``: the new size, at once."""
        if limit != self._limit or not self.size:
            self._limit = limit
            self.size = self._wanted() if self._rate else self._at_first()
        return self.size

    def completed(self, busy_s: float, now: float) -> int:
        """A call used its slot for ``busy_s``, which does not contain its wait: the size from now on."""
        if now - self._last > IDLE_S:
            self._begin_again(now)
        self._last = now
        self._busy_s += busy_s
        self._calls += 1
        passed = now - self._begun
        if (passed >= ADJUST_S and self._calls >= ADJUST_CALLS) or passed >= LONGEST_WINDOW_S:
            self._adjust(now)
        return self.size

    def size_at(self, now: float) -> int:
        """The size when a call arrives."""
        if self._rate and now - self._last > IDLE_S:
            self._begin_again(now)
        return self.size

    def _adjust(self, now: float) -> None:
        rate = self._calls / max(self._busy_s, 1e-6)
        self._rate = rate if not self._rate else self._rate + WEIGHT * (rate - self._rate)
        self._begun, self._busy_s, self._calls = now, 0.0, 0
        away = self._wanted() - self.size
        if abs(away) > max(1.0, DEAD_BAND * self.size):
            self.size += round(STEP * away)

    def _wanted(self) -> int:
        return max(1, min(LONGEST, int(self._limit * self._rate * self.target_s)))

    def _at_first(self) -> int:
        return max(FEWEST_AT_FIRST, min(LONGEST, int(self._limit * self.target_s / self.expected_s)))

    def _begin_again(self, now: float) -> None:
        self._rate = 0.0
        self._begun, self._busy_s, self._calls = now, 0.0, 0
        self._last = now
        self.size = self._at_first()

    # Little's law

    def waited(self, wait_s: float, now: float) -> None:
        """A call left the queue after ``wait_s``, with a slot or without one."""
        self._roll(now)
        self._waited_s += wait_s

    def predicted(self, now: float) -> float:
        """How many calls wait at a time: arrivals per second, times how long each waits."""
        self._roll(now)
        return self._last_waits

    def _roll(self, now: float) -> None:
        passed = now - self._waits_begun
        if passed >= PREDICTION_S:
            # Arrivals / time x waits / arrivals. After a longer time, nothing has come since.
            self._last_waits = self._waited_s / PREDICTION_S if passed < 2 * PREDICTION_S else 0.0
            self._waits_begun, self._waited_s = now, 0.0
