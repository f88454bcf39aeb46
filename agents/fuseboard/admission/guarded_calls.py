"""Calls to a dependency that has a protection, in this order: the steps of ``GuardedCalls.admit``.

1. Shedding.
2. What the pod knows: an override, an open breaker, or a spent limit refuses the call.
3. The local rate: a token of it.
4. The bulkhead: a slot of it. A call that finds none free puts its token back, and waits or is refused.
5. After a wait: the deadline, and what the pod knows, again.
6. After a wait: a token of the local rate, again.
7. The question that all pods share.
8. The permit.

What is refused, cancelled or fails from 3 on gives the slot and the token back. The refusals of 1, 3, 4 and 6
are the pod's own shortage: they say nothing about the dependency, and its breaker never counts them.
"""

import random
from collections.abc import Callable, Coroutine
from time import monotonic
from typing import Any, NoReturn

from fuseboard.admission.call_admission import CallAdmission
from fuseboard.admission.call_guard import CallGuard, CallGuards
from fuseboard.admission.decisions import Refusal
from fuseboard.admission.lanes import CallLane
from fuseboard.admission.nesting import is_nested
from fuseboard.contract.words import BreakerState, CallTier, Reason
from fuseboard.decision import Permit
from fuseboard.errors import Refused
from fuseboard.protection.bulkhead import TIERS, Bulkhead, NoSlotError, SlotKind
from fuseboard.protection.local_rate import LocalRate

#: Callers that are refused together return up to a tenth later, each at a different moment.
JITTER = 0.1

# Members of enumerations are slow to look up in Python 3.11.
CLOSED = BreakerState.CLOSED

#: Tier -> its number. A word is its own key: members are equal to their text.
NUMBERS: dict[str, int] = {tier: number for number, tier in enumerate(TIERS)}

#: Refusals by the pod itself. A caller with a ``wait_s`` does not wait for their end: all that wait would ask
#: again at once.
OWN = frozenset((Reason.SHED, Reason.BULKHEAD_FULL, Reason.QUEUE_TIMEOUT, Reason.LOCAL_RATE))


class GuardedCalls:
    """The flow of calls whose lane has a guard."""

    def __init__(self, calls: CallAdmission, guards: CallGuards) -> None:
        self._calls = calls
        self._guards = guards
        #: Whether to shed a call of this guard and tier now: the seconds until it may ask again, or ``None``.
        self.shed: Callable[[CallGuard, CallTier, float], float | None] | None = None

    async def admit(
        self,
        lane: CallLane,
        guard: CallGuard,
        tier: str | None = None,
        until: float | None = None,
        *,
        first: bool = False,
        ask: Callable[[CallLane], Coroutine[Any, Any, Permit]] | None = None,
    ) -> Permit:
        """Decide one call. Raises ``Refused``.

        ``until``: the caller's deadline on the clock of the guards. ``first``: it left its slot to wait
        for a shared limit, so it goes before the calls that wait. ``ask``: the shared question.
        """
        number = guard.tier if tier is None else NUMBERS[tier]
        at = guard.clock()
        # Step 1
        if self.shed is not None and (drained_s := self.shed(guard, TIERS[number], at)) is not None:
            self._refuse(lane, Reason.SHED, drained_s)
        # Step 2
        leased = ask is None and lane.demand.leasable
        if refuses(lane) or self._calls.stops.stopped:
            self._refuse_by_what_is_known(lane)
            leased = False
        # Step 3
        token = rate = guard.local_rate
        if rate is not None and (wait_s := rate.take(at)):
            token = self._without_token(lane, wait_s)
        # Step 4. Nothing between the token and here can be cancelled.
        bulkhead = guard.bulkhead
        slot_kind: SlotKind | None = None
        if bulkhead is not None and (slot_kind := bulkhead.try_enter(number)) is None:
            if token is not None:
                token.put_back()
            slot_kind = await self._wait_for_slot(lane, guard, bulkhead, number, until, first=first)
            # Steps 5 and 6
            lane, rate, token, at = self._check_again(lane, guard, bulkhead, slot_kind, until)
            leased = False
        try:
            # Step 7. Nearly all calls have a lease, and nothing to refuse them: they need no coroutine.
            permit = self._calls.from_lease(lane) if leased else None
            if permit is None:
                permit = await (self._calls.admit(lane, leased=not leased) if ask is None else ask(lane))
            # Step 8
            permit.slot = guard.begin(slot_kind, token, at)
        except BaseException as error:
            if token is not None:
                token.put_back()
            if slot_kind is not None and bulkhead is not None:
                leave(bulkhead, slot_kind, error)
            raise
        if rate is not None and token is None:
            rate.observed += 1
        return permit

    def _without_token(self, lane: CallLane, wait_s: float) -> LocalRate | None:
        """Raise ``Refused``. In observe mode, the call passes, and spends nothing."""
        if not self._guards.observes_local_rates():
            self._refuse(lane, Reason.LOCAL_RATE, wait_s)
        return None

    async def _wait_for_slot(
        self,
        lane: CallLane,
        guard: CallGuard,
        bulkhead: Bulkhead,
        number: int,
        until: float | None,
        *,
        first: bool,
    ) -> SlotKind:
        """A slot for a call that found none. Raises ``Refused``."""
        if is_nested(guard):
            guard.note_nested()
        if self._guards.observes_bulkheads():
            return bulkhead.enter_observed(number)
        guard.reclaim()
        begun = guard.clock()
        try:
            return await bulkhead.enter(number, None if until is None else until - begun, first=first)
        except NoSlotError as error:
            self._refuse(lane, error.reason, guard.drain_s(bulkhead, number))
        finally:
            now = guard.clock()
            guard.waits.add(now - begun, now)

    def _check_again(
        self, lane: CallLane, guard: CallGuard, bulkhead: Bulkhead, slot_kind: SlotKind, until: float | None
    ) -> tuple[CallLane, LocalRate | None, LocalRate | None, float]:
        """Steps 5 and 6: much may have changed during the wait, also the settings. Raises ``Refused``.

        Returns the lane, the local rate, its token, and the time.
        """
        try:
            lane, rate, at = self._calls.renew(lane), guard.local_rate, guard.clock()
            if until is not None and at >= until:
                self._refuse(
                    lane, Reason.QUEUE_TIMEOUT, guard.drain_s(bulkhead, TIERS.index(slot_kind.tier.name))
                )
            if refuses(lane) or self._calls.stops.stopped:
                self._refuse_by_what_is_known(lane)
            token = rate
            if rate is not None and (wait_s := rate.take(at)):
                token = self._without_token(lane, wait_s)
        except BaseException as error:
            leave(bulkhead, slot_kind, error)
            raise
        return lane, rate, token, at

    def _refuse_by_what_is_known(self, lane: CallLane) -> None:
        """Raise ``Refused`` if what this pod knows refuses the call. Takes no probe permit."""
        breaker = lane.breaker
        local = breaker.local
        self._calls.refuse_by_memory(lane)
        if local.state is CLOSED or self._calls.breakers.override(breaker.name) is not None:
            return
        probing = local.state is BreakerState.HALF_OPEN
        left_s = (local.probing_until if probing else local.until) - monotonic()
        if left_s > 0:
            reason = Reason.PROBE_BUSY if probing else Reason.BREAKER_OPEN
            self._calls.refuse(lane, Refusal(reason, breaker.name, left_s))

    def _refuse(self, lane: CallLane, reason: Reason, wait_s: float) -> NoReturn:
        wait_s *= random.uniform(1.0, 1.0 + JITTER)
        self._calls.refuse(lane, Refusal(reason, lane.breaker.name, wait_s))


def refuses(lane: CallLane) -> bool:
    """Whether something that this pod knows may refuse the call."""
    breaker, demand = lane.breaker, lane.demand
    return (
        breaker.remembered is not None
        or demand.remembered is not None
        or breaker.overridden
        or demand.impossible_limit is not None
        or breaker.local.state is not CLOSED
    )


def leave(bulkhead: Bulkhead, slot_kind: SlotKind, error: BaseException) -> None:
    """The call that has this slot is not made, because of ``error``."""
    if isinstance(error, Refused):
        error.had_slot = True
    bulkhead.leave(slot_kind)
