"""Fleet leases: calls charged in advance, and spent from memory.

A demand that is asked for more often than its threshold is hot, and gets a fleet lease. One question to
Redis charges many calls. The pod spends them from memory until the lease ends, and renews it before. A leased
decision costs a comparison and a subtraction, and Redis runs one command instead of hundreds. While a bucket
is known to be less than half used, a low rate is enough. Such an **early** lease saves questions too. Its
demand is not hot, and pages do not report it as leased.

The effect of a lease on a limit is bounded (docs/limits.md). Calls are charged when they are leased and
made at most one lease length later. So Redis counts the window of a leasable sliding limit longer by that
length, and no window ever has more calls than the limit. A bucket may let through what it refills in
that time. A pod holds at most its part of ``HELD_PART`` of a limit. Unused calls go back where they
were charged. What a dead pod held is lost for one window, which refuses too much, never too little.
"""

import asyncio
from collections.abc import Callable
from math import inf
from time import monotonic

from fuseboard.batching.batch import Batcher
from fuseboard.batching.demand import Demand, has_ample_room, may_be_leased_early, most_at_once
from fuseboard.batching.redis_question import ADMITS, Domain, RedisAnswer
from fuseboard.batching.settlements import Settlements
from fuseboard.contract.limits import HOT_PER_S, lease_length_ms
from fuseboard.decision import Decision

#: A hot demand counts as below its threshold only below this part of it. An early lease is renewed down to
#: this part of ``EARLY_PER_S``.
COOL_BELOW = 0.4
#: A hot demand stays hot until it has been below that part for this time.
COOL_AFTER_S = 60.0
#: Calls per second of one demand in one pod that are worth a lease while its limits have ample room.
EARLY_PER_S = 20
#: The part of a limit that all pods together may hold unspent.
HELD_PART = 0.2
#: The rate is measured over periods of this length.
MEASURE_S = 0.25
#: A lease is renewed when this part of its time has passed, or when less than this part of it is left.
RENEW_AFTER = 0.6
RENEW_BELOW = 0.4
#: Leases are renewed at multiples of this part of their length, so that those of many demands share a
#: question.
RENEW_GRID = 0.1
#: Lease a little more than expected, so that a busy moment needs no second question.
MARGIN = 1.2


class Lease:
    """Charged calls of one demand, valid until ``until`` (monotonic seconds)."""

    __slots__ = (
        "answer",
        "begun",
        "counted",
        "decision",
        "granted",
        "hot",
        "renew_below_tokens",
        "supply",
        "tokens",
        "until",
    )

    def __init__(
        self, supply: "DemandSupply", answer: RedisAnswer, begun: float, length_s: float, decision: Decision
    ) -> None:
        self.supply = supply
        self.answer = answer
        self.granted = self.tokens = answer.calls
        #: The caller that takes the token of this number starts the renewal.
        self.renew_below_tokens = max(1, int(answer.calls * RENEW_BELOW))
        self.begun = begun
        self.until = begun + length_s
        #: The one decision of all its calls.
        self.decision = decision
        #: Spent calls that were already passed to ``supply.count``.
        self.counted = 0
        #: Whether the demand was hot. Otherwise it is an early lease.
        self.hot = supply.is_hot(begun)


class DemandSupply:
    """The supply of one demand: measures how often it is asked for, and holds its lease when it has one."""

    __slots__ = (
        "asked",
        "count",
        "decision_of",
        "demand",
        "domain",
        "early",
        "hot_at",
        "lease",
        "lease_generation",
        "name",
        "rate",
        "renewing",
        "since",
        "single",
        "timer",
    )

    def __init__(
        self,
        domain: Domain,
        demand: Demand,
        decision_of: Callable[[RedisAnswer], Decision],
        count: Callable[[int, bool], None],
    ) -> None:
        self.domain = domain
        #: Whether all its limits may be leased at a low rate.
        self.early = bool(demand.refs) and all(may_be_leased_early(ref.limit) for ref in demand.refs)
        #: The demand of single calls, and what Redis last said about it.
        self.single = demand
        #: The demand with these limits and costs, for questions about many calls.
        self.demand = Demand(demand.refs, demand.costs, demand.priority)
        self.decision_of = decision_of
        #: Called with spent calls, and whether the demand was hot.
        self.count = count
        self.asked = 0
        self.since = monotonic()
        #: Calls per second, smoothed, and when the rate was last above the threshold.
        self.rate = 0.0
        self.hot_at = float("-inf")
        self.lease: Lease | None = None
        #: The tenant whose plain requests may spend the lease through ``spend_by_name``; empty for none.
        self.name = ""
        self.renewing = False
        #: Rises when the lease, or the one being fetched, must not be spent any more.
        self.lease_generation = 0
        self.timer: asyncio.TimerHandle | None = None

    def is_hot(self, now: float) -> bool:
        return now - self.hot_at < COOL_AFTER_S

    def has_early_rate(self) -> bool:
        return self.rate >= EARLY_PER_S * (1.0 if self.lease is None else COOL_BELOW)


class Leases:
    """Detects hot demands and keeps them supplied."""

    def __init__(
        self,
        *,
        batcher: Batcher,
        settlements: Settlements,
        live_servers: Callable[[], int],
        usable: Callable[[], bool],
    ) -> None:
        self._batcher = batcher
        self._settlements = settlements
        self._live_servers = live_servers
        self._usable = usable
        self._tasks: set[asyncio.Task[None]] = set()
        #: Demands with a lease, or with one being fetched.
        self._supplies: set[DemandSupply] = set()
        #: ``DemandSupply.name`` -> its lease.
        self._at_hand: dict[str, Lease] = {}
        self.spend_by_name = self._spend_by_name()

    def spend(self, supply: DemandSupply) -> Lease | None:
        """Spend one call of the lease; ``None`` when there is none."""
        lease = supply.lease
        if lease is None or lease.tokens <= 0 or monotonic() >= lease.until:
            return None
        if lease.tokens == lease.renew_below_tokens:
            self.renew(supply)
        lease.tokens -= 1
        return lease

    def _spend_by_name(self) -> Callable[[str], Decision | None]:
        """A function that spends one call by name, and returns the decision or ``None``.

        It uses few variables, and only local ones: nothing else runs for a leased decision.
        """
        find, clock, spend = self._at_hand.get, monotonic, self.spend

        def leased(name: str) -> Decision | None:
            lease = find(name)
            if lease is None:
                return None
            tokens = lease.tokens
            if tokens > lease.renew_below_tokens and clock() < lease.until:
                lease.tokens = tokens - 1
                return lease.decision
            spent = spend(lease.supply)
            return None if spent is None else spent.decision

        return leased

    def note(self, supply: DemandSupply) -> None:
        """One call was asked of Redis on its own."""
        supply.asked += 1
        now = monotonic()
        passed = now - supply.since
        if passed < MEASURE_S:
            return
        self._measure(supply, supply.asked / passed, sustained=supply.asked / passed)
        supply.asked, supply.since = 0, now
        self.renew(supply)

    def drop(self) -> None:
        """Rules have changed: give everything back. Demands that are still hot are leased again."""
        for supply in tuple(self._supplies):
            self.revoke(supply)

    def stop(self) -> None:
        self.drop()
        for task in self._tasks:
            task.cancel()

    def _measure(self, supply: DemandSupply, rate: float, *, sustained: float = inf) -> None:
        """``sustained`` is the rate over at least ``MEASURE_S``: a burst does not make a demand hot."""
        # The rate rises at once, and falls half of the way with each measurement. A lease that is too small
        # costs one more question, a lease that is too large one refund.
        supply.rate = rate if rate > supply.rate else (supply.rate + rate) / 2
        now, threshold = monotonic(), self._threshold(supply.demand)
        # A hot demand stays hot down to 40 % of the threshold. Otherwise a rate near the threshold would
        # switch leases on and off.
        if supply.is_hot(now):
            enough = supply.rate >= threshold * COOL_BELOW
        else:
            enough = min(supply.rate, sustained) >= threshold
        if enough:
            supply.hot_at = now

    def _measure_lease(self, supply: DemandSupply, lease: Lease) -> None:
        spent, passed = lease.granted - lease.tokens, monotonic() - lease.begun
        self._measure(supply, spent / max(0.001, passed), sustained=spent / max(MEASURE_S, passed))

    def _threshold(self, demand: Demand) -> float:
        common = HOT_PER_S / self._live_servers()
        return min(ref.limit.lease_above or common for ref in demand.refs)

    def renew(self, supply: DemandSupply, *, measured: bool = False) -> None:
        """Fetch the next lease in the background, if it is worth one and none is under way.

        ``measured``: its rate was measured just now.
        """
        if supply.renewing or not self._usable():
            return
        if supply.lease is not None and not measured:
            # A lease that is spent early would otherwise stay too small after every quiet moment.
            self._measure_lease(supply, supply.lease)
        if not supply.is_hot(monotonic()) and not self._worth_an_early_lease(supply):
            return
        supply.renewing = True
        self._supplies.add(supply)
        # The generation is read now, because a rule may change before the task starts.
        fetching = self._fetch_lease(supply, supply.lease_generation)
        task = asyncio.get_running_loop().create_task(fetching, name="fuseboard-lease")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _fetch_lease(self, supply: DemandSupply, lease_generation: int) -> None:
        demand = supply.demand
        length_s = _length_s(demand)
        begun = monotonic()
        try:
            demand.bulk = max(1, self._amount(supply, length_s))
            answer = await self._batcher.ask(supply.domain, demand)
        finally:
            supply.renewing = False
            if supply.lease is None:
                self._supplies.discard(supply)
        if answer is None:
            return
        supply.single.left = answer.left
        if not answer.granted:
            return
        if answer.verdict != ADMITS or supply.lease_generation != lease_generation:
            # Probes cannot be leased, and neither can what was granted before the breaker or a rule changed.
            supply.domain.unused(demand, answer)
            return
        self._end(supply)
        self._supplies.add(supply)
        lease = supply.lease = Lease(supply, answer, begun, length_s, supply.decision_of(answer))
        # All calls of the lease share its account.
        for charge in lease.decision.charges:
            charge.account.lease = lease
        if supply.name:
            self._at_hand[supply.name] = lease
        loop = asyncio.get_running_loop()
        due = loop.time() + length_s * RENEW_AFTER
        # The time is rounded down: at a later time, the lease may already be spent.
        due -= due % (length_s * RENEW_GRID)
        supply.timer = loop.call_at(due, self._at_renewal_time, supply, lease)

    def _amount(self, supply: DemandSupply, length_s: float) -> int:
        """The calls that are expected; at most this pod's part of what may be held."""
        demand, servers = supply.demand, self._live_servers()
        expected = int(supply.rate * length_s * MARGIN)
        most = min(
            int(most_at_once(ref.limit) * HELD_PART / servers / cost)
            for ref, cost in zip(demand.refs, demand.costs, strict=True)
        )
        return min(expected, most)

    def _worth_an_early_lease(self, supply: DemandSupply) -> bool:
        """Whether it is asked for often enough, its limits have ample room, and this pod's part is not too
        small: a lease of one call saves no question.
        """
        return (
            supply.early
            and supply.has_early_rate()
            and has_ample_room(supply.single.refs, supply.single.left)
            and self._amount(supply, _length_s(supply.demand)) > 1
        )

    def _at_renewal_time(self, supply: DemandSupply, lease: Lease) -> None:
        """Part of its time has passed: renew it if it was used, and end it when all its time has passed."""
        supply.timer = None
        if supply.lease is not lease:
            return
        now = monotonic()
        spent = lease.granted - lease.tokens
        self._measure_lease(supply, lease)
        self._count(supply, lease)
        if spent:
            self.renew(supply, measured=True)
        supply.timer = asyncio.get_running_loop().call_later(
            max(0.0, lease.until - now), self._expire, supply, lease
        )

    def _expire(self, supply: DemandSupply, lease: Lease) -> None:
        if supply.lease is lease:
            self._end(supply)

    def revoke(self, supply: DemandSupply) -> None:
        """The rules or the breaker have changed: nothing of the lease may be spent."""
        supply.lease_generation += 1
        self._end(supply)

    def _end(self, supply: DemandSupply) -> None:
        """Count what was spent, and give back the rest."""
        lease, supply.lease = supply.lease, None
        if not supply.renewing:
            # Otherwise ``drop`` must still find it.
            self._supplies.discard(supply)
        if supply.timer is not None:
            supply.timer.cancel()
            supply.timer = None
        if lease is None:
            return
        if self._at_hand.get(supply.name) is lease:
            del self._at_hand[supply.name]
        self._count(supply, lease)
        if lease.tokens > 0:
            # The answer has the calls that go back. Accounts of calls that still run read ``granted``.
            lease.answer.calls = lease.tokens
            lease.granted, lease.tokens = lease.granted - lease.tokens, 0
            supply.domain.unused(supply.demand, lease.answer)

    @staticmethod
    def _count(supply: DemandSupply, lease: Lease) -> None:
        spent = lease.granted - lease.tokens
        if spent > lease.counted:
            supply.count(spent - lease.counted, lease.hot)
            lease.counted = spent


def _length_s(demand: Demand) -> float:
    return min(lease_length_ms(ref.limit) for ref in demand.refs) / 1000
