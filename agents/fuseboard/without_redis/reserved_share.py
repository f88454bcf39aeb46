"""This pod's reserved share: what it may spend without Redis. The control plane grants it for a time.

Without a grant, or when its time is over, the share is nothing. It is kept in memory only: a process
that restarts is another pod, and asks for a share of its own.
"""

import random
from collections.abc import Callable

from fuseboard.configuration.server_clock import lease_clock
from fuseboard.contract.shares import HeldShare, ShareLease, calls_of

#: The part of the granted time that is used, because a clock may run slow.
BELIEVED = 0.99


class ReservedShare:
    """Accepts newer terms, never older ones."""

    def __init__(self, clock: Callable[[], float] = lease_clock) -> None:
        self.clock = clock
        self._held: HeldShare | None = None
        self._until = 0.0
        self._given_up = False
        #: The random place of this pod among the others while it has no share: 0 to 1.
        self.dice = random.random()

    def take(self, lease: ShareLease, *, asked: float) -> None:
        """The answer to a heartbeat that was sent at ``asked`` (on this clock) granted this share."""
        if self._given_up or (self._held is not None and lease.terms < self._held.terms):
            return
        until = asked + lease.remaining_ms / 1000 * BELIEVED
        if self._held is None or lease.terms > self._held.terms:
            self._held = HeldShare(level=lease.level, place=lease.place, terms=lease.terms)
            self._until = until
        else:
            # Answers may arrive out of order, and gateways may know different renewals.
            self._until = max(self._until, until)

    def give_up(self) -> None:
        """Spend nothing of it from now on, whatever is still granted: this pod stops."""
        self._given_up = True

    @property
    def held(self) -> HeldShare | None:
        """The last granted share, also when its time is over. The next heartbeat reports it."""
        return None if self._given_up else self._held

    @property
    def left_s(self) -> float:
        """How long the share may still be spent."""
        return 0.0 if self._given_up else max(0.0, self._until - self.clock())

    def calls(self, amount: int) -> int:
        """How many whole calls of ``amount`` this pod may spend now."""
        held = self._held
        if held is None or self._given_up or self.clock() >= self._until:
            return 0
        return calls_of(held.level, held.place, amount)
