"""The tiers that call: a tier that does not call needs no slots."""

from collections.abc import Sequence
from typing import Protocol

#: A tier that neither calls, nor waits, nor runs for this time does not call any more.
SILENT_S = 60.0


class Caller(Protocol):
    @property
    def calls(self) -> int:
        """A number that changes with each call."""

    @property
    def busy(self) -> bool:
        """A call of it runs or waits."""


class TiersInUse:
    """``call`` marks a call that may be the first of its tier. ``look`` finds others, and silent tiers."""

    __slots__ = ("_last", "_seen", "_tiers")

    def __init__(self, tiers: Sequence[Caller], now: float) -> None:
        self._tiers = tiers
        #: Tier -> when it last called.
        self._last = {at: now for at, tier in enumerate(tiers) if tier.busy}
        self._seen = [tier.calls for tier in tiers]

    @property
    def any(self) -> bool:
        return bool(self._last)

    @property
    def alone(self) -> bool:
        """At most one tier calls."""
        return len(self._last) <= 1

    def has(self, at: int) -> bool:
        return at in self._last

    def call(self, at: int, now: float) -> bool:
        """A call of tier number ``at``, which is counted after this. Whether the tiers in use changed."""
        changed = self.look(now)
        new = at not in self._last
        self._last[at], self._seen[at] = now, self._tiers[at].calls + 1
        return changed or new

    def look(self, now: float) -> bool:
        """Whether the tiers in use changed. Call it about once per second."""
        before = set(self._last)
        for at, tier in enumerate(self._tiers):
            if tier.busy or tier.calls != self._seen[at]:
                self._last[at], self._seen[at] = now, tier.calls
            elif at in self._last and now - self._last[at] >= SILENT_S:
                del self._last[at]
        return set(self._last) != before
