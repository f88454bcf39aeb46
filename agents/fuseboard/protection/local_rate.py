"""The most calls of one pod to one dependency: a token bucket that refuses, and that no call waits for."""

from fuseboard.contract.protection import LocalRate as Settings


class LocalRate:
    """GCRA: one number, the moment when the bucket is full again. ``now`` is of a monotonic clock."""

    __slots__ = ("_full_at", "_gap_s", "observed", "settings", "window_s")

    def __init__(self, settings: Settings) -> None:
        self._full_at = 0.0
        #: Calls that observe mode let pass, although they would have been refused.
        self.observed = 0
        self._use(settings)

    def _use(self, settings: Settings) -> None:
        self.settings = settings
        self.window_s = settings.window_ms / 1000
        self._gap_s = self.window_s / settings.limit

    def resize(self, settings: Settings, now: float) -> None:
        """Use these settings from now on. The share of the bucket that was spent stays spent."""
        # Below 0 for a bucket that is full for some time, and more than 1 if ``now`` was read before others.
        spent = min(1.0, (self._full_at - now) / self.window_s)
        self._use(settings)
        self._full_at = now + spent * self.window_s

    def peek(self, now: float) -> float:
        """Seconds until a call may be made; 0 when one may be made now. Spends nothing."""
        # A thousandth of a call early: sums of fractions are not exact.
        wait_s = self._full_at + self._gap_s * 0.999 - self.window_s - now
        return wait_s if wait_s > 0 else 0.0

    def take(self, now: float) -> float:
        """Peek, and spend one token when the call may be made."""
        full_at = self._full_at
        wait_s = full_at + self._gap_s * 0.999 - self.window_s - now
        if wait_s > 0:
            return wait_s
        self._full_at = (full_at if full_at > now else now) + self._gap_s
        return 0.0

    def put_back(self) -> None:
        """A call that spent a token was not made."""
        self._full_at -= self._gap_s

    def left(self, now: float) -> int:
        """The calls that may be made at once."""
        return int((self.window_s - max(0.0, self._full_at - now)) / self._gap_s + 0.001)
