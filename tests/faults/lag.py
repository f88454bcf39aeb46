"""How late an event loop is, sampled: the part of a wait that the process itself caused, not Redis."""

import asyncio
import time
from collections import deque
from collections.abc import Callable

_PERIOD_S = 0.004

#: The machine's ``time.monotonic``, even if a test replaces it later.
_now = time.perf_counter


class LagSampler:
    """Records when the loop did not run although something was due."""

    def __init__(self, look: Callable[[], None]) -> None:
        self._look = look
        #: (due, ran), oldest first.
        self._late: deque[tuple[float, float]] = deque(maxlen=5000)
        self._due = _now()
        #: Sum of all lag, in seconds.
        self.total_s = 0.0

    async def run(self) -> None:
        while True:
            self._due = _now() + _PERIOD_S
            await asyncio.sleep(_PERIOD_S)
            ran = _now()
            if ran - self._due > 0.0005:
                self._late.append((self._due, ran))
                self.total_s += ran - self._due
            self._look()

    def between(self, began: float, ended: float) -> float:
        """Seconds of lag within this time, including one that has not ended."""
        total = max(0.0, ended - max(began, self._due)) if self._due < ended else 0.0
        for due, ran in reversed(self._late):
            if ran <= began:
                break
            total += max(0.0, min(ended, ran) - max(began, due))
        return total
