"""This server's piece of what is spent without Redis: a lease from the control plane.

Without one, or when its time is over, the piece is nothing. It is kept in memory only: a
process that starts again is another server, and asks for a piece of its own.
"""

import random
from collections.abc import Callable

from fuseboard.configuration.clock import lease_clock
from fuseboard.contract.shares import HeldShare, ShareLease, calls_of

#: The part of a lease that is believed: a clock may run slow.
BELIEVED = 0.99


class ReservedShare:
    """Takes newer terms, never older ones."""

    def __init__(self, clock: Callable[[], float] = lease_clock) -> None:
        self.clock = clock
        self._held: HeldShare | None = None
        self._until = 0.0
        self._given_up = False
        #: Where this server stands among others while nobody told it: 0 to 1.
        self.dice = random.random()

    def take(self, lease: ShareLease, *, asked: float) -> None:
        """A beat that was sent at ``asked``, on this clock, was answered with this lease."""
        if self._given_up or (self._held is not None and lease.terms < self._held.terms):
            return
        until = asked + lease.remaining_ms / 1000 * BELIEVED
        if self._held is None or lease.terms > self._held.terms:
            self._held = HeldShare(level=lease.level, place=lease.place, terms=lease.terms)
            self._until = until
        else:
            # Answers may overtake each other, and gateways know of different renewals.
            self._until = max(self._until, until)

    def give_up(self) -> None:
        """Spend nothing of it from now on, whatever is still offered: this server stops."""
        self._given_up = True

    @property
    def held(self) -> HeldShare | None:
        """The piece it was last given, also when its time is over: what the next beat says."""
        return None if self._given_up else self._held

    @property
    def left_s(self) -> float:
        """How long the piece holds."""
        return 0.0 if self._given_up else max(0.0, self._until - self.clock())

    def calls(self, amount: int) -> int:
        """The whole calls of ``amount`` that are this server's now."""
        held = self._held
        if held is None or self._given_up or self.clock() >= self._until:
            return 0
        return calls_of(held.level, held.place, amount)
