"""How many pods with new names were refused lately, and when they should try again."""

from collections import deque

WINDOW_S = 60.0
#: A refused pod never waits longer for its next attempt.
LONGEST_WAIT_S = 60.0


class RefusedNames:
    """Refusals of the last minute, by second. Times are monotonic."""

    def __init__(self) -> None:
        self.total = 0
        self._seconds: deque[tuple[int, int]] = deque()

    def add(self, now: float) -> bool:
        """Count one refusal. Returns whether it is the first within a minute."""
        first = not self.lately(now)
        self.total += 1
        second = int(now)
        count = self._seconds.pop()[1] if self._seconds and self._seconds[-1][0] == second else 0
        self._seconds.append((second, count + 1))
        return first

    def lately(self, now: float) -> int:
        while self._seconds and self._seconds[0][0] < now - WINDOW_S:
            self._seconds.popleft()
        return sum(count for _, count in self._seconds)

    def wait_s(self, own_s: float, now: float, *, per_min: int) -> float:
        """When to try again: after the others that wait, so that they do not all return at once."""
        return max(own_s, min(LONGEST_WAIT_S, 60.0 * self.lately(now) / per_min))
