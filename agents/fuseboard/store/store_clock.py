"""The time of Redis, learned from its answers."""

from time import monotonic

#: The quickest reply in this period and the period before decides.
STRETCH_S = 5.0


class StoreClock:
    """Store time by the monotonic clock. In a Cluster, the node whose clock is ahead decides."""

    def __init__(self) -> None:
        # Store time minus the monotonic clock in us, the largest of this period and of the last one. A
        # delayed reply makes the difference smaller, never larger.
        self._newest: int | None = None
        self._older: int | None = None
        self._offset: int | None = None
        self._since = monotonic()

    def learn(self, now_us: int) -> None:
        """Redis answered; ``now_us`` is its time."""
        moment = monotonic()
        offset = now_us - int(moment * 1_000_000)
        if moment - self._since > STRETCH_S:
            self._older, self._newest, self._since = self._newest, None, moment
        elif self._newest is not None and offset <= self._newest:
            return
        self._newest = offset
        self._offset = offset if self._older is None else max(offset, self._older)

    def now_us(self) -> int:
        """Its time, accurate to the delay of its quickest recent reply; 0 before the first answer."""
        return 0 if self._offset is None else int(monotonic() * 1_000_000) + self._offset
