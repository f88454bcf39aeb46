"""One WARN line per change of a breaker: which pod saw it, from what to what, and the figures behind it."""

import logging
from math import ceil
from time import monotonic

from fuseboard.breaker.local_breaker import LocalBreaker
from fuseboard.contract.words import BreakerState

logger = logging.getLogger("fuseboard.breaker")


class TransitionLog:
    """The lines of one dependency, in one pod."""

    __slots__ = ("dependency", "enabled", "server")

    def __init__(self, *, dependency: str, server: str, enabled: bool = True) -> None:
        """``enabled`` is false for the breaker of ``fuseboard explain``, which must not log."""
        self.dependency = dependency
        self.server = server
        self.enabled = enabled

    def fleet(
        self,
        before: BreakerState,
        after: BreakerState,
        *,
        generation: int,
        until: float,
        window: tuple[int, int, int],
    ) -> None:
        """``window``: calls, failures, and failures in a row across the fleet, as this pod knows them."""
        if after is before or not self.enabled:
            return
        logger.warning(
            "breaker.moved dependency=%s server=%s from=%s to=%s generation=%d open_for_ms=%d "
            "window_calls=%d window_failures=%d consecutive_failures=%d",
            *(self.dependency, self.server, before, after, generation, _rest_ms(after, until), *window),
        )

    def local(self, before: BreakerState, breaker: LocalBreaker, why: str) -> None:
        """The pod's own breaker. The figures are those of the last time that it tripped."""
        if breaker.state is before or not self.enabled:
            return
        rest_ms = _rest_ms(breaker.state, breaker.until)
        logger.warning(
            "breaker.local_moved dependency=%s server=%s from=%s to=%s why=%r open_for_ms=%d "
            "tripped_calls=%d tripped_failures=%d tripped_slow=%d tripped_consecutive=%d",
            *(self.dependency, self.server, before, breaker.state, why, rest_ms, *breaker.figures),
        )


def _rest_ms(state: BreakerState, until: float) -> int:
    return max(0, ceil((until - monotonic()) * 1000)) if state is BreakerState.OPEN else 0
