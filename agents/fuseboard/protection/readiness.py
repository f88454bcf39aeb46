"""Whether the pod should get new traffic. Under pressure it asks, and a gateway must agree.

If every pod decided alone, all pods of an overloaded service would be unready at once, and none would serve.
So without a gateway a pod stays ready and sheds.
"""

import logging
from typing import NamedTuple

from fuseboard.contract.protection import Readiness as Settings

logger = logging.getLogger("fuseboard.readiness")

#: It asks above the one, and stops below the other.
HIGH, LOW = 0.9, 0.6


class Ready(NamedTuple):
    ready: bool
    #: The reason in words, for the body of the probe.
    why: str


class Readiness:
    """``tick`` it with the pressure, and pass on what the gateway grants."""

    def __init__(self, settings: Settings | None) -> None:
        self.settings = settings
        #: The pressure is high for long enough.
        self.asks = False
        #: How often it became unready or ready.
        self.changes = 0
        self._unready = False
        self._high_since: float | None = None
        self._low_since: float | None = None
        self._granted_until = float("-inf")
        self._pressure = 0.0

    def configure(self, settings: Settings | None) -> None:
        self.settings = settings
        if settings is None:
            self.asks = False
            self._high_since = self._low_since = None
            self._granted_until = float("-inf")

    def grant(self, unready_ms: int, asked_at: float, now: float) -> None:
        """Apply the answer to a heartbeat that was sent at ``asked_at``; 0 ends the grant."""
        self._granted_until = asked_at + unready_ms / 1000 if unready_ms else float("-inf")
        self._conclude(now)

    def tick(self, pressure: float, now: float) -> None:
        self._pressure = pressure
        if self.settings is not None:
            hold_s = self.settings.hold_ms / 1000
            self._high_since = _since(self._high_since, pressure >= HIGH, now)
            self._low_since = _since(self._low_since, pressure < LOW, now)
            if self._high_since is not None and now - self._high_since >= hold_s:
                self.asks = True
            elif self._low_since is not None and now - self._low_since >= hold_s:
                self.asks = False
        self._conclude(now)

    def state(self, now: float) -> Ready:
        """Whether a probe is answered with 200 at ``now``. A grant also ends when nothing ticks."""
        if self.asks and now < self._granted_until:
            left = self._granted_until - now
            return Ready(False, f"pressure {self._pressure:.2f}; a gateway agrees for {left:.0f} s")
        if self.asks:
            return Ready(True, f"pressure {self._pressure:.2f}; no gateway agrees that it is unready")
        return Ready(True, "")

    def _conclude(self, now: float) -> None:
        unready = not self.state(now).ready
        if unready != self._unready:
            self._unready = unready
            self.changes += 1
            logger.warning(
                "readiness.%s pressure=%.2f asks=%s granted_s=%.1f",
                *("unready" if unready else "ready", self._pressure, self.asks),
                max(0.0, self._granted_until - now),
            )


def _since(before: float | None, holds: bool, now: float) -> float | None:
    """Since when something is true."""
    if not holds:
        return None
    return now if before is None else before
