"""Limits how often one caller may send requests. Each web process counts by itself, without Redis: a
runaway program is slowed down before it affects the others.
"""

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from math import ceil

from django.conf import settings

#: The most recent callers are remembered; a forgotten one starts with a full bucket.
_MAX_CALLERS = 10_000


@dataclass(frozen=True)
class Allowance:
    """The state of a caller's bucket after one request."""

    allowed: bool
    #: Requests at once; and the seconds until all of them are available again.
    burst: int
    refilled_s: int
    remaining: int
    #: Seconds until the next request is accepted; 0 if this one was.
    wait_s: int

    def headers(self) -> dict[str, str]:
        """Headers of draft-ietf-httpapi-ratelimit-headers-10."""
        wait = f";t={self.wait_s}" if self.wait_s else ""
        return {
            "RateLimit-Policy": f'"caller";q={self.burst};w={self.refilled_s}',
            "RateLimit": f'"caller";r={self.remaining}{wait}',
        } | ({"Retry-After": str(self.wait_s)} if self.wait_s else {})


class Spent(Exception):
    """The caller has exceeded its rate limit."""


class Allowances:
    """A token bucket per caller."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: Caller -> the monotonic time at which its bucket is full again.
        self._full_at: OrderedDict[str, float] = OrderedDict()

    def take(self, caller: str) -> Allowance:
        rate, burst = settings.API_RATE_PER_S, settings.API_BURST
        with self._lock:
            now = time.monotonic()
            full_at = max(self._full_at.get(caller, now), now) + 1 / rate
            missing = (full_at - now) * rate
            # Half a request of tolerance: sums of floats are not exact.
            allowed = missing <= burst + 0.5
            if allowed:
                self._full_at[caller] = full_at
                self._full_at.move_to_end(caller)
                if len(self._full_at) > _MAX_CALLERS:
                    self._full_at.popitem(last=False)
        return Allowance(
            allowed=allowed,
            burst=burst,
            refilled_s=ceil(burst / rate),
            remaining=max(0, int(burst - missing + 0.5)) if allowed else 0,
            wait_s=0 if allowed else ceil((missing - burst) / rate),
        )


allowances = Allowances()
