"""Server time by the pod's monotonic clock.

Overrides expire at a moment of server time. A pod's own clock may be hours off, or step. Its monotonic
clock does neither, so it is read with an offset that is learned from answers with the server's time.
"""

import time
from collections.abc import Callable

#: A better sample (a shorter round trip) is used for this time before any other sample replaces it.
_SAMPLE_AGE_US = 600_000_000


class ServerClock:
    """Until a server has answered, the pod's wall clock at start is the best estimate."""

    def __init__(
        self,
        *,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
        wall_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self._monotonic_ns = monotonic_ns
        self.offset_us = (wall_ns() - monotonic_ns()) // 1000
        self._round_trip_us: int | None = None
        self._sampled_us = 0

    @property
    def learned(self) -> bool:
        """Whether a server has said the time yet."""
        return self._round_trip_us is not None

    def now_us(self) -> int:
        """Microseconds since the epoch, in server time."""
        return self._monotonic_ns() // 1000 + self.offset_us

    def observe(self, server_us: int, *, asked_ns: int, answered_ns: int) -> None:
        """Learn from an answer: the server read its clock between question and answer."""
        round_trip_us = max(0, answered_ns - asked_ns) // 1000
        offset_us = server_us + round_trip_us // 2 - answered_ns // 1000
        if self._round_trip_us is not None:
            fresh = answered_ns // 1000 - self._sampled_us < _SAMPLE_AGE_US
            # Two samples whose error bars do not overlap: a clock stepped, or the pod was suspended.
            agree = abs(offset_us - self.offset_us) <= (round_trip_us + self._round_trip_us) // 2 + 1000
            if fresh and agree and round_trip_us > self._round_trip_us:
                return
        self.offset_us = offset_us
        self._round_trip_us = round_trip_us
        self._sampled_us = answered_ns // 1000


def lease_clock() -> float:
    """Seconds on a clock that is never set, and that runs while the machine sleeps where that is possible."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()
