"""The protection of this pod from one dependency: its parts, and the calls that use them now."""

import asyncio
import contextlib
import logging
from collections.abc import Callable

import msgspec

from fuseboard.configuration.current_configuration import Configuration
from fuseboard.configuration.snapshot import Snapshot
from fuseboard.contract.load import MAX_CALL_LOADS, CallLoad
from fuseboard.contract.policy import Dependency
from fuseboard.contract.protection import CallProtection, Observe
from fuseboard.contract.timeouts import longest_timeout_ms
from fuseboard.protection.bulkhead import TIERS, Bulkhead, SlotKind
from fuseboard.protection.latency_histogram import LatencyHistogram
from fuseboard.protection.local_rate import LocalRate

logger = logging.getLogger("fuseboard.protection")

#: A call without a report keeps its slot for this time, or for ``RECLAIM_TIMEOUTS`` times its timeout,
#: whichever is longer.
RECLAIM_S = 600.0
RECLAIM_TIMEOUTS = 4

#: The soonest time at which a caller that found no slot can ask again.
SOONEST_S = 1.0

NOT_OBSERVED = Observe()


class GuardedCall(msgspec.Struct, gc=False):
    """One call that a guard let pass. Its permit refers to it, so that a forgotten permit frees the slot.

    A struct, because each call makes one: a class with ``__init__`` takes twice as long.
    """

    guard: "CallGuard"
    #: Number of this call in its guard; 0 after it has ended.
    number: int
    #: The rate limit whose token it used.
    rate: LocalRate | None

    def end(self, counts: bool) -> None:
        """The call has ended: free its slot, once. ``counts``: add its duration to the latency."""
        number, self.number = self.number, 0
        if number:
            self.guard.end(number, counts)

    def undo(self) -> None:
        """The call was not made: free its slot and put the token back. Changes nothing after ``end``."""
        number, self.number = self.number, 0
        if number:
            self.guard.end(number, False, made=False)
            if self.rate is not None:
                self.rate.put_back()

    def __del__(self) -> None:
        if self.number:
            self.guard.forgotten(self.number)


class CallGuard:
    """The parts of one dependency's protection. One that is not configured is ``None``."""

    def __init__(self, name: str, clock: Callable[[], float]) -> None:
        self.name = name
        self.clock = clock
        #: The dependency has a protection now.
        self.on = False
        #: Index in ``TIERS``; 1 is standard.
        self.tier = 1
        self.sla_s = 0.0
        #: How long a call takes: what was last measured, or what is expected.
        self._mean_s = 1.0
        #: ``None`` while there is no bulkhead, or it is switched off.
        self.bulkhead: Bulkhead | None = None
        self.local_rate: LocalRate | None = None
        #: How long calls take, and how long they waited for a slot.
        self.latency = LatencyHistogram()
        self.waits = LatencyHistogram()
        #: Calls that kept a slot far beyond their timeout, and lost it.
        self.reclaimed = 0
        #: Calls that found no free slot while their own task had one.
        self.nested = 0
        # Kept while it is switched off: the slots of calls in flight belong to it.
        self._last_bulkhead: Bulkhead | None = None
        #: Calls that earlier local rates observed.
        self._observed_before = 0
        self._reclaim_s = RECLAIM_S
        #: The calls in flight, oldest first: the slot, and since when.
        self._calls: dict[int, tuple[SlotKind | None, float]] = {}
        self._last_number = self._reported_number = 0
        self._loop: asyncio.AbstractEventLoop | None = None

    # Settings

    def adopt(self, dependency: Dependency, protection: CallProtection) -> None:
        """Protect by these settings from now on."""
        self.on = True
        self.tier = TIERS.index(protection.tier)
        self.sla_s = protection.sla_ms / 1000
        self._reclaim_s = max(RECLAIM_S, RECLAIM_TIMEOUTS * longest_timeout_ms(dependency) / 1000)
        expected_ms = protection.sla_ms or dependency.breaker.slow_ms
        expected_s = min(expected_ms, dependency.timeout_ms) / 1000
        if not self._last_number:
            self._mean_s = expected_s
        # The bulkhead is off, is on for the first time, or is on again or has changed.
        if protection.bulkhead is None:
            self._disable_bulkhead()
        elif self._last_bulkhead is None:
            self.bulkhead = self._last_bulkhead = Bulkhead(
                protection.bulkhead, name=self.name, expected_s=expected_s, clock=self.clock
            )
        elif self.bulkhead is None or self._last_bulkhead.settings != protection.bulkhead:
            self.bulkhead = self._last_bulkhead
            self.bulkhead.resize(protection.bulkhead, expected_s=expected_s)
        if protection.local_rate is None:
            self._drop_rate()
        elif self.local_rate is None:
            self.local_rate = LocalRate(protection.local_rate)
        elif self.local_rate.settings != protection.local_rate:
            self.local_rate.resize(protection.local_rate, self.clock())

    def switch_off(self) -> None:
        """The dependency has no protection any more. Calls that wait get a slot."""
        self.on = False
        self._disable_bulkhead()
        self._drop_rate()

    def _disable_bulkhead(self) -> None:
        if self.bulkhead is not None:
            self.bulkhead.disable()
            self.bulkhead = None

    def _drop_rate(self) -> None:
        if self.local_rate is not None:
            self._observed_before += self.local_rate.observed
            self.local_rate = None

    # Calls

    def begin(self, slot_kind: SlotKind | None, rate: LocalRate | None, at: float) -> GuardedCall:
        """Record a call that got ``slot_kind`` at ``at``, and used a token of ``rate``."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        self._last_number = number = self._last_number + 1
        self._calls[number] = (slot_kind, at)
        return GuardedCall(self, number, rate)

    def end(self, number: int, counts: bool, *, made: bool = True) -> None:
        """This call has ended. A call that has ended already, or lost its slot, changes nothing."""
        call = self._calls.pop(number, None)
        if call is None:
            return
        slot_kind, at = call
        now = self.clock()
        if counts:
            self.latency.add(now - at, now)
        if slot_kind is not None and self._last_bulkhead is not None:
            self._last_bulkhead.leave(slot_kind, now - at if made else None, now)

    def forgotten(self, number: int) -> None:
        """The permit of this call was garbage-collected without a report.

        A finalizer calls this, in any thread and at any moment.
        """
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nothing waits for a slot
                self._loop.call_soon_threadsafe(lambda: self.end(number, False, made=False))

    def has_slot(self, number: int) -> bool:
        """Whether this call is in flight, and has a slot of the bulkhead."""
        call = self._calls.get(number)
        return call is not None and call[0] is not None

    def began(self, number: int) -> float | None:
        """When this call had its slot, on the clock of the guards; ``None`` when it has ended."""
        call = self._calls.get(number)
        return None if call is None else call[1]

    def drain_s(self, bulkhead: Bulkhead, number: int) -> float:
        """Seconds until a call of tier ``number`` that got no slot may try again."""
        return max(SOONEST_S, bulkhead.drain_s(number, self.mean_s(self.clock())))

    def mean_s(self, now: float) -> float:
        """How long a call takes on average. After an idle window, the last figure."""
        measured = self.latency.mean(now)
        if measured is not None:
            self._mean_s = measured
        return self._mean_s

    def note_nested(self) -> None:
        """A call finds no free slot, and its own task has one."""
        self.nested += 1
        if self.nested == 1:
            logger.warning(
                "bulkhead.nested dependency=%s: a task that has a slot needs a second one, and may wait for"
                " itself; further ones are only counted",
                self.name,
            )

    def reclaim(self) -> None:
        """Free the slots of calls that have not ended for much longer than their timeout."""
        oldest = self.clock() - self._reclaim_s
        while self._calls:
            number, (_, at) = next(iter(self._calls.items()))
            if at > oldest:
                return
            self.end(number, False, made=False)
            self.reclaimed += 1
            logger.warning(
                "bulkhead.reclaimed dependency=%s after_s=%d reclaimed=%d: a permit was not reported",
                *(self.name, self._reclaim_s, self.reclaimed),
            )

    @property
    def in_flight(self) -> int:
        return len(self._calls)

    @property
    def waiting(self) -> int:
        return self.bulkhead.waiting if self.bulkhead is not None else 0

    @property
    def refused(self) -> int:
        """Total of calls that got no slot."""
        tiers = self._last_bulkhead.tiers if self._last_bulkhead is not None else ()
        return sum(tier.full + tier.timed_out for tier in tiers)

    # Figures of a heartbeat

    def take_recent(self) -> int:
        """Return the calls since the last heartbeat, and start to count again."""
        recent, self._reported_number = self._last_number - self._reported_number, self._last_number
        return recent

    def load(self) -> CallLoad:
        now, bulkhead = self.clock(), self.bulkhead
        self.mean_s(now)  # remembers the mean, if there is one
        sizes = bulkhead.queue_sizes(now) if bulkhead is not None else None
        observed = self._observed_before
        if self._last_bulkhead is not None:
            observed += self._last_bulkhead.observed
        if self.local_rate is not None:
            observed += self.local_rate.observed
        return CallLoad(
            dependency=self.name,
            tiers=bulkhead.loads() if bulkhead is not None else (),
            mean_ms=_milliseconds(self.latency.mean(now)),
            p95_ms=_milliseconds(self.latency.quantile(0.95, now)),
            wait_p95_ms=_milliseconds(self.waits.quantile(0.95, now)),
            queue_size=sizes[0] if sizes is not None else None,
            queue_predicted=sizes[1] if sizes is not None else None,
            observed=observed,
            reclaimed=self.reclaimed,
            nested=self.nested,
        )


class CallGuards:
    """The guards of all dependencies that have a protection; none if not ``enabled``."""

    def __init__(
        self, configuration: Configuration, clock: Callable[[], float], *, enabled: bool = True
    ) -> None:
        self.configuration = configuration
        self.clock = clock
        self._guards: dict[str, CallGuard] = {}
        self._observe = NOT_OBSERVED
        self._stopped = not enabled
        self.adopt(configuration.snapshot)

    def find(self, dependency: str) -> CallGuard | None:
        """``None`` for a dependency without a protection."""
        guard = self._guards.get(dependency)
        return guard if guard is not None and guard.on else None

    def every(self) -> tuple[CallGuard, ...]:
        # A copy: other threads describe the guards while a new configuration adds one.
        return tuple(guard for guard in tuple(self._guards.values()) if guard.on)

    def adopt(self, snapshot: Snapshot) -> None:
        """Protect by a newer configuration from now on."""
        if self._stopped:
            return
        policy = snapshot.policy
        self._observe = policy.protection.observe if policy.protection is not None else NOT_OBSERVED
        protected = set()
        for dependency in policy.dependencies:
            if dependency.protection is None:
                continue
            protected.add(dependency.name)
            guard = self._guards.get(dependency.name)
            if guard is None:
                guard = self._guards[dependency.name] = CallGuard(dependency.name, self.clock)
            guard.adopt(dependency, dependency.protection)
        for guard in self.every():
            if guard.name not in protected:
                guard.switch_off()

    def stop(self) -> None:
        """Let every call pass from now on, also those that wait: the agent stops."""
        self._stopped = True
        for guard in self.every():
            guard.switch_off()

    def observes_bulkheads(self) -> bool:
        """Whether bulkheads only count what they would refuse."""
        return self._not_over(self._observe.bulkhead_until_us)

    def observes_local_rates(self) -> bool:
        """Whether local rates are observed only."""
        return self._not_over(self._observe.local_rate_until_us)

    def _not_over(self, until_us: int) -> bool:
        return until_us > 0 and self.configuration.clock.now_us() < until_us

    def queue_timeout_s(self, dependency: str) -> float | None:
        """How long a call may wait for a slot; ``None`` when it needs none."""
        guard = self.find(dependency)
        if guard is None or guard.bulkhead is None or self.observes_bulkheads():
            return None
        return guard.bulkhead.longest_wait_s()

    def loads(self) -> tuple[CallLoad, ...]:
        """The figures of the protected dependencies for a heartbeat, the busiest first."""
        guards = self.every()
        for guard in guards:
            guard.reclaim()
        recent = {guard.name: guard.take_recent() + guard.waiting for guard in guards}
        busiest = sorted(guards, key=lambda guard: -recent[guard.name])
        return tuple(guard.load() for guard in busiest[:MAX_CALL_LOADS])


def _milliseconds(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1000)
