"""The parts of the limits that this pod may spend while Redis cannot be asked."""

from collections import OrderedDict
from collections.abc import Callable, Mapping
from time import monotonic, time
from typing import NamedTuple

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.batching.known_spending import KnownSpending
from fuseboard.contract.policy import Limit
from fuseboard.contract.shares import divides_what_is_left, reserved_burst, reserved_calls
from fuseboard.contract.words import Algorithm, FailurePolicy
from fuseboard.decision import Charge
from fuseboard.without_redis.local_counters import (
    KINDS,
    CalendarPeriod,
    Counter,
    PodPortion,
    Slots,
    Turn,
)
from fuseboard.without_redis.offline_counts import OfflineCounts
from fuseboard.without_redis.reserved_share import ReservedShare

#: Counters kept. The least recently used is dropped first.
MAX_COUNTERS = 50_000

#: Retry time for a pod without a reserved share: the next heartbeat may bring one.
NO_SHARE_WAIT_S = 1.0


class LocalRefusal:
    """The limit that refused a call, and for how long."""

    __slots__ = ("key", "limit", "unavailable", "wait_s")

    def __init__(self, ref: LimitRef, wait_s: float, *, unavailable: bool = False) -> None:
        self.limit = ref.limit
        #: That of its counter.
        self.key = ref.key
        self.wait_s = wait_s
        #: Refused because the store cannot be asked, not because the limit is spent.
        self.unavailable = unavailable


class Reported(NamedTuple):
    """A report to Redis: of calls until a moment of the monotonic clock, at a store time."""

    until: float
    store_us: int


def domain_of(key: bytes) -> str:
    """Corrections of one domain are sent together: on a Cluster, its keys are on one node."""
    return key.partition(b"}")[0].decode()


class LocalLimits:
    """This pod's own counters, used when Redis is unavailable, and for its part of a ramp.

    A ``reserved`` limit is spent from this pod's reserved share, which Redis never grants. A
    ``local_share`` limit is divided by the number of pods. When that is less than one call, the pod
    gets a time slot. Of a calendar limit of either policy, pods divide what Redis last said is left.
    """

    def __init__(
        self,
        live_servers: Callable[[], int],
        *,
        share: ReservedShare | None = None,
        offline: OfflineCounts | None = None,
        spending: KnownSpending | None = None,
        fleet_offset_s: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._live_servers = live_servers
        self.share = share or ReservedShare()
        #: Server time minus the monotonic clock; ``None`` until a server has said the time.
        self._fleet_offset_s = fleet_offset_s
        self.offline = offline or OfflineCounts(fleet_offset_s)
        self._spending = spending or KnownSpending()
        #: Each with the rule that it counts by.
        self._counters: OrderedDict[bytes, tuple[Limit, Counter]] = OrderedDict()
        #: The last report of each counter that Redis has charged.
        self._charged: OrderedDict[bytes, Reported] = OrderedDict()
        #: Corrects in Redis what is reported; a domain, a limit, the store time, and the amount.
        self.settle: Callable[[str, LimitRef, int, int], None] = lambda *_: None

    def take(self, demand: Demand, part: float, now: float | None = None) -> LocalRefusal | None:
        """Spend from every limit, or from none; then the limit that refused.

        ``part`` is the part of each limit that pods may spend locally: 1 without Redis, less during a
        ramp. ``now`` is the monotonic clock.
        """
        if now is None:
            now = monotonic()
        found = self._look(demand, part, now, self._counter)
        if isinstance(found, LocalRefusal):
            return found
        for counter, portion, ref, cost in found:
            counter.spend(portion, ref.limit, cost, now)
        self.offline.note(demand, now)
        return None

    def look(self, demand: Demand, part: float, now: float) -> LocalRefusal | None:
        """The limit that ``take`` would refuse by. Nothing is spent, and no counter is kept or dropped."""
        found = self._look(demand, part, now, self._counter_now)
        return found if isinstance(found, LocalRefusal) else None

    def _look(
        self,
        demand: Demand,
        part: float,
        now: float,
        counter_of: Callable[[LimitRef, PodPortion, float], Counter],
    ) -> LocalRefusal | list[tuple[Counter, PodPortion, LimitRef, int]]:
        """The limit that refuses, or else what is to be spent of each counter."""
        charged: list[tuple[Counter, PodPortion, LimitRef, int]] = []
        worst: LocalRefusal | None = None
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            limit = ref.limit
            if limit.shadow or limit.failure_policy is FailurePolicy.FAIL_OPEN:
                continue
            if limit.failure_policy is FailurePolicy.FAIL_CLOSED:
                return LocalRefusal(ref, 1.0, unavailable=True)
            portion = self.portion(ref, part)
            if portion is None or _exceeds_reserved_share(limit, portion, cost):
                return LocalRefusal(ref, NO_SHARE_WAIT_S, unavailable=True)
            counter = counter_of(ref, portion, now)
            wait_s = counter.wait(portion, limit, cost, now)
            if wait_s > 0 and (worst is None or wait_s > worst.wait_s):
                worst = LocalRefusal(ref, wait_s)
            charged.append((counter, portion, ref, cost))
        return worst or charged

    def charge(self, demand: Demand, now: float) -> None:
        """Spend from every limit, whatever is left of it: the work is done."""
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            limit = ref.limit
            if limit.shadow or limit.failure_policy is FailurePolicy.FAIL_OPEN or ref.is_slot:
                continue
            portion = self.portion(ref, 1.0)
            if portion is not None:
                self._counter(ref, portion, now).correct(portion, limit, cost, now, now)
        self.offline.note(demand, now)

    def free(self, demand: Demand) -> None:
        """A call that took its slots here has ended."""
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            known = self._counters.get(ref.key)
            if known is not None and isinstance(known[1], Slots):
                known[1].free(cost)

    def correct(self, charge: Charge, measure: str, actual: int) -> None:
        """The call cost ``actual`` of ``measure``, whatever the estimate was."""
        demand = charge.demand
        for ref, estimate in zip(demand.refs, demand.costs, strict=True):
            if ref.limit.measure == measure and actual != estimate and not ref.is_slot:
                self._add(ref, actual - estimate, charge.at_us)

    def refund(self, charge: Charge, spent: Mapping[str, int]) -> None:
        """One call was not made: refund what it has spent by now, by measure. Its slots are freed apart."""
        for ref in charge.demand.refs:
            if not ref.is_slot:
                self._add(ref, -spent[ref.limit.measure], charge.at_us)

    def _add(self, ref: LimitRef, amount: int, at_us: int) -> None:
        """Add to what was spent at ``at_us``; negative is a refund, which gives back what still counts."""
        limit, known, at = ref.limit, self._counters.get(ref.key), at_us / 1_000_000
        charged = self._charged.get(ref.key)
        if charged is not None and at < charged.until:
            # Redis counts the call by now, and it is corrected there.
            self.settle(domain_of(ref.key), ref, charged.store_us, amount)
            if divides_what_is_left(limit):
                return
        else:
            # Not also there: a later report, which is not sent yet, would charge the difference again.
            self.offline.correct(ref, amount, at)
        if known is not None:
            # The limit may have another rule by now. As in Redis, a refund to another algorithm is lost.
            rule, counter = known
            portion = self._portion_of(rule, 1.0)
            if portion is not None and (amount > 0 or rule.algorithm is limit.algorithm):
                counter.correct(portion, rule, amount, at, monotonic())

    def portion(self, ref: LimitRef, part: float) -> PodPortion | None:
        """The part of a limit that this pod may spend; ``None`` for none."""
        limit = ref.limit
        if divides_what_is_left(limit):
            spent = self._spending.of(ref, int(time() * 1_000_000))
            if spent is not None:
                return PodPortion(self._whole_calls(max(0, limit.limit - spent) * part), 0)
            if limit.failure_policy is FailurePolicy.RESERVED:
                return None
        return self._portion_of(limit, part)

    def _whole_calls(self, left: float) -> int:
        """This pod's share of what is left of a calendar limit."""
        servers = self._live_servers()
        # With less than one call for each pod, those with a reserved share have the calls.
        return int(left / servers) if left >= servers else self.share.calls(int(left))

    def _portion_of(self, limit: Limit, part: float) -> PodPortion | None:
        """The part when Redis has said nothing about the limit."""
        if limit.limit == 0:
            return None
        servers = self._live_servers()
        fair = limit.limit * part / servers
        if limit.algorithm is Algorithm.FIXED_WINDOW:
            return PodPortion(max(1.0, fair), 0)
        if limit.failure_policy is FailurePolicy.RESERVED:
            calls = self.share.calls(reserved_calls(limit))
            burst = self.share.calls(reserved_burst(limit))
            if calls == 0 or (limit.algorithm is Algorithm.TOKEN_BUCKET and burst == 0):
                return None
            return PodPortion(calls, burst)
        turn = None if fair >= 1 else self._turn(limit.window_ms / 1000 / fair)
        return PodPortion(fair, max(1.0, limit.burst * part / servers), turn)

    def charged(self, ref: LimitRef, amount: int, since: int, reported: Reported) -> None:
        """Redis counts from now on what this pod spent alone of a limit: ``amount``, and ``since`` more, that
        the report did not have yet.
        """
        self._charged[ref.key] = reported
        self._charged.move_to_end(ref.key)
        if len(self._charged) > MAX_COUNTERS:
            self._charged.popitem(last=False)
        known = self._counters.get(ref.key)
        if known is not None and isinstance(known[1], CalendarPeriod):
            spent = self._spending.of(ref, int(time() * 1_000_000))
            if spent is not None:
                self._spending.add(ref, amount, reported.store_us)
                known[1].charged(amount + since)
        self.settle(domain_of(ref.key), ref, reported.store_us, since)

    def adopted(self, key: bytes) -> None:
        """Redis counts from now on what a pod that has ended spent alone of a budget."""
        self._spending.on_sent(key)

    def still_spent(self, ref: LimitRef) -> int:
        """Units that this pod spent alone of a limit that Redis counts too, and that still count."""
        known = self._counters.get(ref.key)
        if known is None:
            return 0
        # The limit may have another rule since the call: what still counts, counts by that one.
        limit, counter = known
        portion = self._portion_of(limit, 1.0)
        return 0 if portion is None else counter.spent(portion, limit, monotonic())

    def _turn(self, fair_s: float) -> Turn:
        """One call per three fair intervals, in a time slot that no other pod has.

        So no window contains more than the limit, wherever the time slots are. A pod without a place,
        or without the time, takes a random slot.
        """
        every_s = 3 * fair_s
        held, offset_s = self.share.held, self._fleet_offset_s()
        if held is None or offset_s is None:
            place, width = self.share.dice, 1 / (2 * self._live_servers())
            return Turn(every_s, place * every_s, width * every_s)
        place, width = held.place / 2**held.level, 1 / 2**held.level
        return Turn(every_s, place * every_s - offset_s % every_s, min(width, 1 / 6) * every_s)

    def _counter(self, ref: LimitRef, portion: PodPortion, now: float) -> Counter:
        """The counter of a limit, which is kept."""
        known = self._counters.get(ref.key)
        if known is None or known[0] is not ref.limit:
            known = self._counters[ref.key] = ref.limit, self._counter_now(ref, portion, now)
        self._counters.move_to_end(ref.key)
        if len(self._counters) > MAX_COUNTERS:
            self._counters.popitem(last=False)
        return known[1]

    def _counter_now(self, ref: LimitRef, portion: PodPortion, now: float) -> Counter:
        """The counter of a limit by its rule of now: the one that is kept, or a new one."""
        limit, known = ref.limit, self._counters.get(ref.key)
        if known is None:
            return KINDS[limit.algorithm]()
        before, counter = known
        if before is limit or _rule(before) == _rule(limit):
            return counter
        entries = counter.known(before, now)
        counter = KINDS[limit.algorithm]()
        counter.take_over(portion, limit, sorted(entries), now)
        return counter


def _exceeds_reserved_share(limit: Limit, portion: PodPortion, cost: int) -> bool:
    """Whether a reserved share never has so much at once. More would be spent than the limit allows."""
    if limit.failure_policy is not FailurePolicy.RESERVED or limit.algorithm is Algorithm.FIXED_WINDOW:
        return False
    return cost > (portion.burst if limit.algorithm is Algorithm.TOKEN_BUCKET else portion.calls)


def _rule(limit: Limit) -> tuple[object, ...]:
    """The fields that a counter depends on. After any other change, the limit keeps its counter."""
    if limit.algorithm is Algorithm.CONCURRENCY:
        return (limit.algorithm,)
    rate = limit.limit if limit.algorithm is Algorithm.TOKEN_BUCKET else 0
    return limit.algorithm, limit.window_ms, rate, limit.period, limit.time_zone
