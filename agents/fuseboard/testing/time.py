"""Time that a test moves, and waits that take none."""

from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from fuseboard.calling.waits import most_attempts, recorder


class ManualClock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        # Deadlines are moments of the real clock.
        self.now = monotonic()

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@contextmanager
def no_sleep(clock: ManualClock | None = None) -> Iterator[list[float]]:
    """Retries do not wait in this block. The list gets what they would have waited, and ``clock`` moves."""
    waits: list[float] = []

    def record(seconds: float) -> None:
        waits.append(seconds)
        if clock is not None:
            clock.advance(seconds)

    token = recorder.set(record)
    try:
        yield waits
    finally:
        recorder.reset(token)


@contextmanager
def attempts(most: int) -> Iterator[None]:
    """No call makes more attempts in this block; 1 for no retries."""
    token = most_attempts.set(most)
    try:
        yield
    finally:
        most_attempts.reset(token)
