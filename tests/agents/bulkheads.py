"""A model of a bulkhead: random calls, cancellations and resizes on a loop that never waits.

``bulkhead_machine`` takes the class, so that mutants of it can be run, too.
"""

import asyncio
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fuseboard.contract.protection import Bulkhead as Settings
from fuseboard.contract.words import Reason, WhenFull
from fuseboard.protection import bulkhead as original
from fuseboard.protection.bulkhead import slots_of
from fuseboard.protection.tiers_in_use import SILENT_S
from tests.virtual_loop import VirtualLoop

TIERS = st.integers(0, 2)
TIMEOUT_MS = 2_000
QUEUE, ABORT = WhenFull.QUEUE, WhenFull.ABORT

settings_of = st.builds(
    Settings,
    max_concurrent=st.integers(1, 8),
    queues=st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 3)),
    queue_timeout_ms=st.just(TIMEOUT_MS),
    when_full=st.sampled_from([(QUEUE, QUEUE, QUEUE), (QUEUE, QUEUE, ABORT)]),
    borrow=st.booleans(),
    share_idle=st.booleans(),
    adaptive=st.booleans(),
    target_wait_ms=st.sampled_from([100, 1_000]),
    resize_under_pressure=st.just(True),
)


class SteppedLoop(VirtualLoop):
    """One turn at a time."""

    def tick(self, times: int = 1) -> None:
        """Run what is ready now, and what that makes ready, ``times`` times. The clock stands still."""
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()

    def settle(self) -> None:
        """Run until nothing is ready any more. The clock stands still."""
        self.tick(8)

    def advance(self, seconds: float) -> None:
        """Run everything that happens within this time."""
        self.run_until_complete(asyncio.sleep(seconds))


class Attempt:
    """One ``enter``, and how it ended."""

    def __init__(self, tier: int, task: "asyncio.Task[Any]", begun: float, wait_s: float) -> None:
        self.tier, self.task, self.begun, self.wait_s = tier, task, begun, wait_s
        self.left = self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        self.task.cancel()

    @property
    def refused_at_once(self) -> bool:
        return self.task.done() and not self.task.cancelled() and self.task.exception() is not None

    @property
    def seat(self) -> Any:
        """What it got; ``None`` while it waits, and when it was refused or cancelled."""
        done = self.task.done() and not self.task.cancelled() and self.task.exception() is None
        return self.task.result() if done else None


def bulkhead_machine(module: Any = original) -> type[RuleBasedStateMachine]:
    class Machine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            self.loop = SteppedLoop()
            self.attempts: list[Attempt] = []
            self.order: list[Attempt] = []
            self.over = [0, 0, 0]
            #: How many more calls than slots a shrink left.
            self.above = 0
            #: When a call of each tier came, ran or waited, as far as the model knows.
            self.used = [-1e9, -1e9, -1e9]

        @initialize(settings=settings_of)
        def begin(self, settings: Settings) -> None:
            self.bulkhead = module.Bulkhead(settings, clock=self.loop.time)
            self.bulkhead.loop = self.loop  # for a mutant
            self.peek()

        def peek(self) -> None:
            """Remember by how much a shrink left each pool above its limit: only leaving may change it."""
            self.over = [max(0, pool.in_flight - pool.limit) for pool in self.bulkhead.pools]
            self.above = max(0, self.bulkhead.in_flight - self.bulkhead.settings.max_concurrent)
            for at, tier in enumerate(self.bulkhead.tiers):
                if tier.active or tier.waiters:
                    self.used[at] = self.loop.time()

        # Rules

        @rule(tier=TIERS, wait_s=st.sampled_from([None, None, 0.5]), calls=st.integers(1, 4))
        def enter(self, tier: int, wait_s: float | None, calls: int) -> None:
            for _ in range(calls):
                queue = self.bulkhead.tiers[tier]
                before, shared = len(queue.waiters), self.others_call(tier)
                active = self.bulkhead.pools[tier].in_flight
                task = self.loop.create_task(self.bulkhead.enter(tier, wait_s))
                longest_s = min(self.bulkhead.longest_wait_s(), 600.0 if wait_s is None else wait_s)
                attempt = Attempt(tier, task, self.loop.time(), longest_s)
                self.attempts.append(attempt)
                self.loop.tick()
                assert len(queue.waiters) <= max(before, queue.queue_limit)
                if attempt.seat is not None:
                    self.check_share(tier, active, shared)
                elif attempt.refused_at_once or not task.done():
                    self.check_refusal(tier, active, shared)
                self.used[tier] = self.loop.time()
                if not task.done():
                    self.order.append(attempt)

        @rule(tier=TIERS)
        def enter_at_once(self, tier: int) -> None:
            """No call may overtake those that wait for the same slots."""
            own = self.bulkhead.tiers[tier]
            waits = any(not waiter.done() for waiter in own.waiters)
            seat = self.bulkhead.try_enter(tier)
            assert seat is None or not waits
            self.used[tier] = self.loop.time()
            if seat is not None:
                self.bulkhead.leave(seat)

        @rule(tier=TIERS)
        def close_before_it_begins(self, tier: int) -> None:
            self.bulkhead.enter(tier).close()

        @rule(tier=TIERS)
        def close_while_it_waits(self, tier: int) -> None:
            async def begin() -> None:
                entering = self.bulkhead.enter(tier)
                try:
                    entering.send(None)
                except StopIteration as got:
                    self.bulkhead.leave(got.value)
                except module.NoSlotError:
                    pass
                else:
                    entering.close()

            self.loop.run_until_complete(begin())
            self.used[tier] = self.loop.time()

        @rule(which=st.integers(0, 30))
        def leave(self, which: int) -> None:
            self.let_leave(self.pick(self.live(), which))

        @rule(
            which=st.integers(0, 30),
            other=st.integers(0, 30),
            order=st.integers(0, 2),
            ticks=st.integers(0, 2),
        )
        def cancel_at_a_leave(self, which: int, other: int, order: int, ticks: int) -> None:
            """A call is cancelled in the tick in which another one leaves: before, after, or ticks later."""
            waiting = self.pick(self.waiting(), which)
            leaving = self.pick(self.live(), other)
            if waiting is not None and order == 0:
                waiting.cancel()
            self.let_leave(leaving)
            if waiting is not None and order:
                self.loop.tick(ticks if order == 2 else 0)
                waiting.cancel()

        @rule(which=st.integers(0, 30))
        def cancel(self, which: int) -> None:
            attempt = self.pick(self.waiting(), which)
            if attempt is not None:
                attempt.cancel()

        @rule(seconds=st.sampled_from([0.1, 0.5, 1.0, 2.0]))
        def advance(self, seconds: float) -> None:
            self.loop.advance(seconds)

        @rule(other=st.integers(0, 30))
        def leave_as_waits_expire(self, other: int) -> None:
            """The timer of a wait fires in the tick in which a slot becomes free."""
            ends = [attempt.begun + attempt.wait_s for attempt in self.waiting()]
            if ends and (leaving := self.pick(self.live(), other)) is not None:
                self.loop.call_at(min(ends), self.let_leave, leaving)
                self.loop.advance(max(0.0, min(ends) - self.loop.time()))

        @rule(settings=settings_of, twice=st.booleans())
        def resize(self, settings: Settings, twice: bool) -> None:
            before = [pool.in_flight for pool in self.bulkhead.pools]
            if not self.divides_by_use():
                self.used = [-1e9, -1e9, -1e9]  # it did not look
            self.bulkhead.resize(settings)
            if twice:
                self.bulkhead.resize(settings)
            for pool, had in zip(self.bulkhead.pools, before, strict=True):
                assert pool.in_flight <= max(had, pool.limit)
            self.peek()

        @rule(high=st.booleans())
        def pressure(self, high: bool) -> None:
            for _ in range(2):
                self.bulkhead.resize_for_pressure(0.9 if high else 0.1, 0.1, self.loop.time())
            self.peek()

        @rule(seconds=st.sampled_from([1.0, 59.0, 61.0]))
        def become_silent(self, seconds: float) -> None:
            """Time passes, and the pod measures itself each second."""
            for _ in range(int(seconds)):
                self.loop.advance(1.0)
                self.bulkhead.resize_for_pressure(None, None, self.loop.time())
                self.peek()

        @rule(tier=TIERS, other=TIERS)
        def fall_silent(self, tier: int, other: int) -> None:
            """One tier calls twice, all calls end, and time passes. Then another one calls for all slots."""
            self.enter(other, None, 2)
            self.loop.settle()
            for attempt in self.live():
                self.let_leave(attempt)
            self.become_silent(63.0)
            self.enter(tier, None, self.bulkhead.settings.max_concurrent)

        @rule(ticks=st.integers(1, 3))
        def tick(self, ticks: int) -> None:
            self.loop.tick(ticks)

        @rule()
        def settle(self) -> None:
            self.loop.settle()
            assert self.bulkhead.in_flight == len(self.live())
            queued = [attempt for attempt in self.attempts if not attempt.task.done()]
            assert self.bulkhead.waiting == len(queued)
            for attempt in queued:
                assert self.loop.time() <= attempt.begun + attempt.wait_s

        # Checks

        @invariant()
        def slots_are_counted(self) -> None:
            if not hasattr(self, "bulkhead"):
                return
            tiers, pools = self.bulkhead.tiers, self.bulkhead.pools
            assert all(pool.in_flight >= 0 for pool in pools)
            assert sum(tier.active for tier in tiers) == self.bulkhead.in_flight
            if self.divides_by_use():
                assert self.bulkhead.in_flight <= self.bulkhead.settings.max_concurrent + self.above
            for pool, over in zip(pools, self.over, strict=True):
                # A call of another tier gives a pool that lent its slots less than it uses.
                assert self.divides_by_use() or pool.in_flight <= pool.limit + over
            self.peek()

        @invariant()
        def no_call_waits_for_a_free_slot(self) -> None:
            if not hasattr(self, "bulkhead"):
                return
            for pool in self.bulkhead.pools:
                if pool.in_flight < pool.limit:
                    for seat in pool.slot_kinds:
                        assert all(waiter.done() for waiter in seat.tier.waiters)

        @invariant()
        def calls_of_a_tier_get_slots_in_order(self) -> None:
            for tier in range(3):
                mine = [attempt for attempt in self.order if attempt.tier == tier]
                got = [at for at, attempt in enumerate(mine) if attempt.seat is not None]
                last = got[-1] if got else -1
                # Those before the last one that got a slot do not wait any more.
                for attempt in mine[: max(0, last)]:
                    assert attempt.task.done() or attempt.task.cancelling()

        def teardown(self) -> None:
            try:
                if hasattr(self, "bulkhead"):
                    self.end()
            finally:
                self.loop.close()

        def end(self) -> None:
            for _ in range(len(self.attempts) + 1):
                self.loop.settle()
                for attempt in self.live():
                    self.let_leave(attempt)
            # Every wait has ended, and no timer is left behind.
            assert not self.waiting()
            assert not [timer for timer in self.loop._scheduled if not timer.cancelled()]  # type: ignore[attr-defined]
            for attempt in self.attempts:
                assert attempt.task.cancelled() <= attempt.cancelled
                if not attempt.task.cancelled() and attempt.task.exception() is not None:
                    error = attempt.task.exception()
                    assert isinstance(error, module.NoSlotError)
                    assert error.reason in (Reason.BULKHEAD_FULL, Reason.QUEUE_TIMEOUT)
            assert self.bulkhead.waiting == self.bulkhead.in_flight == 0
            counts = [self.count(Reason.BULKHEAD_FULL), self.count(Reason.QUEUE_TIMEOUT)]
            tiers = self.bulkhead.tiers
            assert counts[1] == sum(tier.timed_out for tier in tiers)

        # Helpers

        def others_call(self, tier: int) -> bool | None:
            """Whether another tier calls; ``None`` while that tier falls silent."""
            ages = [self.loop.time() - used for at, used in enumerate(self.used) if at != tier]
            return True if min(ages) < SILENT_S else False if min(ages) > SILENT_S + 2 else None

        def divides_by_use(self) -> bool:
            settings = self.bulkhead.settings
            return settings.share_idle and settings.max_concurrent >= 3

        def lends(self) -> bool:
            return self.divides_by_use() and self.bulkhead._steps.now == self.bulkhead._steps.full

        def check_share(self, tier: int, active: int, shared: bool | None) -> None:
            """A call got a slot: while other tiers call, its tier had less than its share."""
            settings = self.bulkhead.settings
            if self.lends() and shared and not settings.borrow:
                assert active < slots_of(settings)[tier]

        def check_refusal(self, tier: int, active: int, shared: bool | None) -> None:
            """A call got no slot: all are in use, or its tier has its share while other tiers call."""
            settings = self.bulkhead.settings
            if self.lends() and self.bulkhead.in_flight < settings.max_concurrent and shared is not None:
                assert shared
                # Another tier may use its slots with ``borrow``.
                assert settings.borrow or active >= slots_of(settings)[tier]

        def count(self, reason: Reason) -> int:
            errors = [attempt.task.exception() for attempt in self.attempts if not attempt.task.cancelled()]
            return sum(getattr(error, "reason", None) is reason for error in errors)

        def live(self) -> list[Attempt]:
            return [attempt for attempt in self.attempts if attempt.seat is not None and not attempt.left]

        def waiting(self) -> list[Attempt]:
            return [attempt for attempt in self.attempts if not attempt.task.done()]

        def pick(self, attempts: list[Attempt], which: int) -> Attempt | None:
            return attempts[which % len(attempts)] if attempts else None

        def let_leave(self, attempt: Attempt | None) -> None:
            if attempt is not None and not attempt.left:
                attempt.left = True
                self.bulkhead.leave(attempt.seat)

    return Machine
