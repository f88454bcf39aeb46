"""What time Redis has, as its answers tell it."""

from time import monotonic

#: The quickest reply of this long, and of the stretch before, says it best.
STRETCH_S = 5.0


class StoreClock:
    """Store time by the monotonic clock. Of a Cluster's nodes, the one that is ahead counts."""

    def __init__(self) -> None:
        # Store time minus the monotonic clock in us, the largest of this stretch and of the last:
        # a reply delayed on its way back makes the difference smaller, never larger.
        self._offsets: tuple[int | None, int | None] = (None, None)
        self._since = monotonic()

    def learn(self, now_us: int) -> None:
        """Redis answered; ``now_us`` is its time."""
        moment = monotonic()
        offset = now_us - int(moment * 1_000_000)
        newest, older = self._offsets
        if moment - self._since > STRETCH_S:
            newest, older, self._since = None, newest, moment
        self._offsets = (offset if newest is None else max(newest, offset), older)

    def now_us(self) -> int:
        """Its time, to the delay of its quickest recent reply; 0 before it ever said."""
        newest, older = self._offsets
        known = max(offset for offset in (newest, older, -1 << 62) if offset is not None)
        return 0 if known == -1 << 62 else int(monotonic() * 1_000_000) + known
