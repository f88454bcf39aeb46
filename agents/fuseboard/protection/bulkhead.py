"""Slots for the calls of one pod to one dependency, divided among three tiers.

With ``share_idle``, one tier has all slots while no other tier calls. From the first call of another tier on,
each tier has its share: calls that run keep their slots, and a slot that becomes free belongs to a tier that
has less than its share.

A slot that becomes free belongs to the longest waiting call at once: it cannot be taken in between, and a
call that is cancelled in that moment hands it on. Belongs to one event loop. Never uses
``asyncio.wait_for``, which swallows cancellations in Python 3.11: a timer ends a wait.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from time import monotonic

from fuseboard.contract.load import TierLoad
from fuseboard.contract.protection import Bulkhead as Settings
from fuseboard.contract.protection import slots_of
from fuseboard.contract.words import CallTier, Reason, WhenFull
from fuseboard.protection.adaptive_queue import AdaptiveQueue
from fuseboard.protection.pressure_steps import PressureSteps
from fuseboard.protection.tiers_in_use import TiersInUse

logger = logging.getLogger("fuseboard.protection")

#: A higher tier has a lower number.
TIERS = (CallTier.CRITICAL, CallTier.STANDARD, CallTier.OPTIONAL)
#: The limit of a bulkhead that was switched off: larger than any number of calls.
UNLIMITED = 2**31


class NoSlotError(Exception):
    """A call gets no slot. ``reason`` says why."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason = reason


class Pool:
    """Slots. One tier has them, or all tiers together."""

    __slots__ = ("in_flight", "limit", "share", "slot_kinds")

    def __init__(self) -> None:
        #: The slots that it has. ``limit`` is less while another pool still uses more than its share.
        self.share = 0
        self.limit = 0
        self.in_flight = 0
        #: The first of these whose tier has a waiting call gets a slot that becomes free.
        self.slot_kinds: tuple[SlotKind, ...] = ()


class Tier:
    """The calls of one tier: those with a slot are counted, those without one wait in order."""

    __slots__ = (
        "active",
        "adaptive",
        "borrowed",
        "entered",
        "full",
        "limit",
        "name",
        "peak",
        "queue_limit",
        "queues",
        "slot_kinds",
        "timed_out",
        "waiters",
    )

    def __init__(self, name: CallTier) -> None:
        self.name = name
        self.active = 0
        self.waiters: OrderedDict[asyncio.Future[SlotKind | None], None] = OrderedDict()
        self.adaptive: AdaptiveQueue | None = None
        self.limit = 0
        self.queue_limit = 0
        #: A call without a slot may wait.
        self.queues = False
        #: Where its calls get slots: its pool, then those of lower tiers if it may borrow.
        self.slot_kinds: tuple[SlotKind, ...] = ()
        self.peak = self.entered = self.full = self.timed_out = self.borrowed = 0

    @property
    def calls(self) -> int:
        """A number that grows with each call."""
        return self.entered + self.full + self.timed_out + len(self.waiters)

    @property
    def busy(self) -> bool:
        return self.active > 0 or bool(self.waiters)

    def load(self) -> TierLoad:
        """Return the figures for a heartbeat. The peak begins again."""
        peak, self.peak = self.peak, self.active
        return TierLoad(
            limit=min(self.limit, UNLIMITED),
            active=self.active,
            queued=len(self.waiters),
            peak=peak,
            entered=self.entered,
            full=self.full,
            timed_out=self.timed_out,
            borrowed=self.borrowed,
        )


class SlotKind:
    """A tier that uses slots of a pool. All calls of ``tier`` in ``pool`` share one."""

    __slots__ = ("borrowed", "pool", "tier")

    def __init__(self, tier: Tier, pool: Pool, *, borrowed: bool) -> None:
        self.tier = tier
        self.pool = pool
        self.borrowed = borrowed


#: A call of a tier that begins with it takes the long way: ``Bulkhead._try_shared``.
CLOSED = SlotKind(Tier(CallTier.CRITICAL), Pool(), borrowed=False)


class Bulkhead:
    """``enter`` and ``leave`` surround a call.

    ``expected_s`` is how long a call probably takes, until that is measured.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        name: str = "",
        expected_s: float = 1.0,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.name = name
        self._clock = clock
        self.tiers = tuple(Tier(name) for name in TIERS)
        self.pools = tuple(Pool() for _ in TIERS)
        #: Calls that observe mode let pass without a slot, although they would have been refused.
        self.observed = 0
        self._slot_kinds = tuple(
            tuple(SlotKind(tier, pool, borrowed=below > at) for below, pool in enumerate(self.pools))
            for at, tier in enumerate(self.tiers)
        )
        #: The tiers that call; ``None`` where the tiers never lend their slots.
        self._in_use: TiersInUse | None = None
        #: A pool uses more than its share, so all pools together may use no more than all slots.
        self._crowded = False
        self.resize(settings, expected_s=expected_s)

    # Settings

    def resize(self, settings: Settings, *, expected_s: float = 1.0) -> None:
        """Use these settings from now on. Calls that run or wait keep their place above the new size."""
        self.settings = settings
        self.expected_s = expected_s
        self._steps = PressureSteps(slots_of(settings))
        adaptive = settings.adaptive
        for tier, queue, when in zip(self.tiers, settings.queues, settings.when_full, strict=True):
            tier.queue_limit = queue
            tier.queues = when is WhenFull.QUEUE
            if not adaptive:
                tier.adaptive = None
            elif tier.adaptive is None or tier.adaptive.target_s != settings.target_wait_ms / 1000:
                tier.adaptive = AdaptiveQueue(settings.target_wait_ms / 1000, expected_s)
        if not settings.share_idle or len(self._steps.full) == 1:
            self._in_use = None
        elif self._in_use is None:
            self._in_use = TiersInUse(self.tiers, self._clock())
        else:
            self._in_use.look(self._clock())
        self._divide()

    def disable(self) -> None:
        """Let every call pass, also those that wait: the bulkhead was switched off, or the agent stops."""
        self._in_use, self._crowded = None, False
        for at, (tier, pool) in enumerate(zip(self.tiers, self.pools, strict=True)):
            tier.limit = pool.limit = pool.share = UNLIMITED
            tier.adaptive = None
            tier.slot_kinds = pool.slot_kinds = self._slot_kinds[at][at : at + 1]
        self._grant_all()

    def resize_for_pressure(self, cpu: float | None, memory: float | None, now: float) -> None:
        """Give the lower tiers fewer slots while CPU or memory is short, and more again after that.

        Both are shares of what the pod may use; ``None`` for unknown. Call it about once per second.
        """
        self._look()
        if not self.settings.resize_under_pressure or self.tiers[0].limit == UNLIMITED:
            return
        before = self._steps.now
        if self._steps.measure(cpu, memory, now) != before:
            self._divide()
            logger.warning(
                "bulkhead.resized dependency=%s slots=%s before=%s cpu=%s memory=%s",
                *(self.name, _text(self._steps.now), _text(before), _percent(cpu), _percent(memory)),
            )

    def _look(self) -> bool:
        """Whether the tiers that call have changed."""
        changed = self._in_use is not None and self._in_use.look(self._clock())
        if changed:
            self._divide()
        return changed

    def _divide(self) -> None:
        """Give the pools their slots, and hand out those that became free."""
        slots, lent = self._steps.now, self._in_use
        together = len(slots) == 1
        # Under pressure no tier has more than its part.
        if lent is not None and not (lent.alone and slots == self._steps.full):
            lent = None
        if lent is not None and lent.any:
            slots = tuple(sum(slots) if lent.has(at) else 0 for at in range(3))
        for at, (tier, pool) in enumerate(zip(self.tiers, self.pools, strict=True)):
            slot_kinds = self._slot_kinds[at]
            if together:
                pool.share, tier.limit = slots[0] if at == 0 else 0, slots[0]
                tier.slot_kinds = slot_kinds[:1]
                pool.slot_kinds = tuple(row[0] for row in self._slot_kinds) if at == 0 else ()
            else:
                pool.share = tier.limit = slots[at]
                tier.slot_kinds, pool.slot_kinds = slot_kinds[at : at + 1], slot_kinds[at : at + 1]
            if lent is not None:
                if not lent.has(at):
                    tier.slot_kinds = (CLOSED,)
            elif self.settings.borrow and not together:
                tier.slot_kinds = slot_kinds[at:]
                # Own tier first, then the others from highest to lowest.
                pool.slot_kinds = (slot_kinds[at], *(row[at] for row in self._slot_kinds[:at]))
            pool.limit = pool.share
            if tier.adaptive is not None:
                tier.queue_limit = tier.adaptive.resize(tier.limit)
        self._crowded = False
        if self._in_use is not None and any(pool.in_flight > pool.share for pool in self.pools):
            self._crowded = True
            for tier in self.tiers:
                if tier.slot_kinds[0] is not CLOSED:
                    tier.slot_kinds = (CLOSED, *tier.slot_kinds)
            self._count_free()
        self._grant_all()

    def _count_free(self) -> None:
        """While a pool uses more than its share, the others get what all slots together leave."""
        free = sum(pool.share for pool in self.pools) - self.in_flight
        for pool in self.pools:
            pool.limit = min(pool.share, pool.in_flight + max(0, free))

    # Calls

    def try_enter(self, at: int) -> SlotKind | None:
        """A slot for a call of tier number ``at``; ``None`` when it has to wait, or is refused."""
        tier = self.tiers[at]
        # No call can wait for a slot that is free: ``leave`` hands it on at once.
        slot_kind = tier.slot_kinds[0]
        pool = slot_kind.pool
        if pool.in_flight < pool.limit:
            # This is ``_take`` inlined: nearly every call ends here.
            pool.in_flight += 1
            tier.entered += 1
            tier.active = active = tier.active + 1
            if active > tier.peak:
                tier.peak = active
            return slot_kind
        if slot_kind is CLOSED:
            return self._try_shared(at)
        for slot_kind in tier.slot_kinds[1:]:
            if slot_kind.pool.in_flight < slot_kind.pool.limit:
                return self._take(slot_kind)
        return None

    def _try_shared(self, at: int) -> SlotKind | None:
        """Try to enter for a tier that did not call, and while a pool uses more than its share."""
        if self._in_use is not None and self._in_use.call(at, self._clock()):
            self._divide()
        for slot_kind in self.tiers[at].slot_kinds:
            if slot_kind.pool.in_flight < slot_kind.pool.limit:
                return self._take(slot_kind)
        return None

    async def enter(self, at: int, max_wait_s: float | None = None, *, first: bool = False) -> SlotKind:
        """A slot for a call of tier number ``at``. Raises ``NoSlotError``.

        Waits at most the queue's timeout, or ``max_wait_s`` if that is shorter. ``first``: before the calls
        that wait already.
        """
        slot_kind = self.try_enter(at)
        if slot_kind is None and self._look():
            slot_kind = self.try_enter(at)
        if slot_kind is not None:
            return slot_kind
        tier = self.tiers[at]
        wait_s = self.longest_wait_s()
        if max_wait_s is not None and max_wait_s < wait_s:
            wait_s = max_wait_s
        loop = asyncio.get_running_loop()
        begun = loop.time()
        if tier.adaptive is not None:
            tier.queue_limit = tier.adaptive.size_at(begun)
        if not tier.queues or len(tier.waiters) >= tier.queue_limit:
            tier.full += 1
            raise NoSlotError(Reason.BULKHEAD_FULL)
        waiter: asyncio.Future[SlotKind | None] = loop.create_future()
        tier.waiters[waiter] = None
        if first:
            tier.waiters.move_to_end(waiter, last=False)
        timer = loop.call_later(wait_s, _expire, tier, waiter)
        try:
            got = await waiter
        except BaseException:
            if waiter in tier.waiters:
                del tier.waiters[waiter]
            elif not waiter.cancelled() and (taken := waiter.result()) is not None:
                # Granted, and cancelled before it could run: the next call gets the slot.
                self.leave(taken)
            raise
        finally:
            timer.cancel()
            if tier.adaptive is not None:
                now = loop.time()
                tier.adaptive.waited(now - begun, now)
        if got is None:
            tier.timed_out += 1
            raise NoSlotError(Reason.QUEUE_TIMEOUT)
        return got

    def enter_observed(self, at: int) -> SlotKind:
        """A slot for a call of tier number ``at`` even if none is free; counts what would be refused."""
        slot_kind = self.try_enter(at)
        if slot_kind is not None:
            return slot_kind
        tier = self.tiers[at]
        slot_kind = tier.slot_kinds[1] if tier.slot_kinds[0] is CLOSED else tier.slot_kinds[0]
        over = slot_kind.pool.in_flight - slot_kind.pool.limit
        if self._crowded:
            over = self.in_flight - sum(pool.share for pool in self.pools)
        if not tier.queues or over >= tier.queue_limit:
            tier.full += 1
            self.observed += 1
        return self._take(slot_kind)

    def leave(self, slot_kind: SlotKind, busy_s: float | None = None, now: float = 0.0) -> None:
        """The call has ended, once. ``busy_s``: how long it used its slot, if it was made."""
        tier, pool = slot_kind.tier, slot_kind.pool
        tier.active -= 1
        pool.in_flight -= 1
        if busy_s is not None and tier.adaptive is not None:
            tier.queue_limit = tier.adaptive.completed(busy_s, now)
        if self._crowded:
            self._leave_crowd()
        elif pool.in_flight < pool.limit:
            # Nearly always no call waits.
            for waiting in pool.slot_kinds:
                if waiting.tier.waiters:
                    self._grant(pool)
                    break

    def _leave_crowd(self) -> None:
        """A slot became free while a pool uses more than its share: who gets it, and whether that goes on."""
        if any(pool.in_flight > pool.share for pool in self.pools):
            self._count_free()
            self._grant_all()
        else:
            self._divide()

    def longest_wait_s(self) -> float:
        """The longest wait of a call without a deadline."""
        timeout_s = self.settings.queue_timeout_ms / 1000
        if self.settings.adaptive:
            # A call that waited for twice the target is refused: the target bounds waits, too.
            return min(timeout_s, 2 * self.settings.target_wait_ms / 1000)
        return timeout_s

    def drain_s(self, at: int, mean_s: float) -> float:
        """How long the calls that wait need the slots of tier number ``at``, if one takes ``mean_s``."""
        tier = self.tiers[at]
        together = len(self._steps.full) == 1
        waiting = self.waiting if together else len(tier.waiters)
        return max(1, waiting) * mean_s / max(1, tier.limit)

    def _take(self, slot_kind: SlotKind) -> SlotKind:
        tier = slot_kind.tier
        slot_kind.pool.in_flight += 1
        tier.entered += 1
        tier.active += 1
        if tier.active > tier.peak:
            tier.peak = tier.active
        if slot_kind.borrowed:
            tier.borrowed += 1
        if self._crowded:
            self._count_free()
        return slot_kind

    def _grant(self, pool: Pool) -> None:
        """Give free slots to waiting calls. By what is free now: after a shrink, that may be nothing."""
        while pool.in_flight < pool.limit:
            for slot_kind in pool.slot_kinds:
                if slot_kind.tier.waiters:
                    break
            else:
                return
            waiter, _ = slot_kind.tier.waiters.popitem(last=False)
            if not waiter.done():
                waiter.set_result(self._take(slot_kind))

    def _grant_all(self) -> None:
        for pool in self.pools:
            self._grant(pool)

    # Figures of a heartbeat

    def loads(self) -> tuple[TierLoad, ...]:
        """One for each tier. Their peaks begin again."""
        return tuple(tier.load() for tier in self.tiers)

    @property
    def waiting(self) -> int:
        return sum(len(tier.waiters) for tier in self.tiers)

    @property
    def in_flight(self) -> int:
        return sum(pool.in_flight for pool in self.pools)

    def queue_sizes(self, now: float) -> tuple[int, int] | None:
        """The length of all adaptive queues, and what Little's law predicts; ``None`` when they are fixed."""
        queues = [tier.adaptive for tier in self.tiers if tier.adaptive is not None and tier.queues]
        if not queues:
            return None
        return sum(queue.size_at(now) for queue in queues), round(
            sum(queue.predicted(now) for queue in queues)
        )


def _expire(tier: Tier, waiter: "asyncio.Future[SlotKind | None]") -> None:
    """The call of ``waiter`` has waited too long."""
    if waiter in tier.waiters:
        del tier.waiters[waiter]
        if not waiter.done():
            waiter.set_result(None)


def _text(slots: tuple[int, ...]) -> str:
    return "/".join(map(str, slots))


def _percent(share: float | None) -> str:
    return "unknown" if share is None else f"{share:.0%}"
