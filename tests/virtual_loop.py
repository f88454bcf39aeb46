"""An event loop whose time passes at once: what waits for an hour takes no time.

Timers fire in their order and at their exact moment, so that a simulation gives the same figures on every
machine. Only for coroutines that wait for timers and for each other, not for sockets.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class NothingHappensError(AssertionError):
    """Every task waits, and no timer is set."""


class _Skipping(selectors.SelectSelector):
    """Instead of waiting, it moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout == 0:
            # Callbacks are ready, also those of threads. A look at the system would cost as much as one.
            return []
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise NothingHappensError("every task waits, and no timer is set")
            self.now += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._skipping = _Skipping()
        super().__init__(self._skipping)

    def time(self) -> float:
        return self._skipping.now


def run_virtually(main: Coroutine[Any, Any, T]) -> T:
    """As ``asyncio.run``, in virtual time that begins at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
