"""Corrections of earlier charges: refunds, actual costs, freed slots, and what a vendor has left."""

import asyncio
from collections.abc import Mapping
from time import monotonic

from msgspec import Struct

from fuseboard.batching.demand import Demand, LimitRef, RuleBook, settling_span_us, slot_names
from fuseboard.batching.encoding import msgpack_encode
from fuseboard.batching.known_spending import KnownSpending
from fuseboard.batching.redis_question import RedisAnswer
from fuseboard.batching.refusals import MAX_REMEMBERED, RememberedRefusals
from fuseboard.contract.budget_limits import BudgetLimit
from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import SETTLE
from fuseboard.decision import Charge
from fuseboard.settings import MAX_SUBJECTS, scaled
from fuseboard.store.health import StoreHealth
from fuseboard.store.store import ConnectionLostError, Reply, Store

#: Corrections are collected for this time. Short, because a freed slot matters to waiting callers.
WAIT_S = 0.005
#: A vendor's figure waits longer for the company of others: each answer says it again.
LEFT_WAIT_S = 0.2
#: Redis is unavailable: see this much later whether it is back.
LATER_S = 0.5
#: Corrections kept while Redis is unavailable. Further ones are dropped: slots expire anyway.
MAX_WAITING = 10_000

#: Corrections in one question.
MAX_TOGETHER = 500

#: Instead of a time of admission: what a vendor has left belongs to no call.
LEFT = -1


class Correction(Struct):
    limit: Limit
    amount: int = 0
    tokens: tuple[str, ...] = ()
    #: At most this is left; -1 for unknown. It is not sent after ``until``, in monotonic seconds.
    most: int = -1
    until: float = 0.0


class Settlements:
    """Sends corrections in batches, one script call per domain."""

    def __init__(
        self,
        *,
        store: Store,
        health: StoreHealth,
        spending: KnownSpending,
        most_subjects: int = MAX_SUBJECTS,
    ) -> None:
        self._store = store
        self._health = health
        self._spending = spending
        #: The refusals that a correction ends.
        self.refusals = RememberedRefusals(scaled(MAX_REMEMBERED, most_subjects))
        #: domain -> (counter, store time of admission) -> correction
        self._waiting: dict[str, dict[tuple[bytes, int], Correction]] = {}
        #: Domain and limit -> what Redis has charged because the vendor had less left, since the start.
        self.others: dict[tuple[str, str], int] = {}
        self._count = 0
        self._timer: asyncio.TimerHandle | None = None
        #: When the timer fires, on the clock of the loop.
        self._due = 0.0

    def give_back(self, domain: str, demand: Demand, answer: RedisAnswer) -> None:
        """The calls that ``answer`` grants were not made: refund what they spent."""
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            amount = 0 if ref.key in answer.uncounted else -cost * answer.calls
            slots = slot_names(answer.token, cost) if ref.is_slot else ()
            self.add(domain, ref, answer.at_us, amount, slots)

    def refund(self, charge: Charge, spent: Mapping[str, int]) -> None:
        """One call was not made: refund what it has spent by now, by measure."""
        for ref, cost in zip(charge.demand.refs, charge.demand.costs, strict=True):
            if ref.is_slot:
                self.add(charge.domain, ref, charge.at_us, 0, slot_names(charge.token, cost))
            elif ref.key not in charge.account.uncounted:
                self.add(charge.domain, ref, charge.at_us, -spent[ref.limit.measure])

    def free(self, domain: str, demand: Demand, token: str) -> None:
        """The call has ended: free its slots. What it spent stays spent."""
        for ref, cost in zip(demand.refs, demand.costs, strict=True):
            if ref.is_slot:
                self.add(domain, ref, 0, 0, slot_names(token, cost))

    def correct(self, charge: Charge, measure: str, actual: int) -> None:
        """The call cost ``actual`` of ``measure``, whatever the estimate was."""
        demand = charge.demand
        for ref, estimate in zip(demand.refs, demand.costs, strict=True):
            counts = ref.limit.measure == measure and ref.key not in charge.account.uncounted
            if counts and actual != estimate and not ref.is_slot:
                self.add(charge.domain, ref, charge.at_us, actual - estimate)

    def add(self, domain: str, ref: LimitRef, at_us: int, amount: int, slots: tuple[str, ...] = ()) -> None:
        """Correct what was spent at ``at_us`` by an amount, and free these slots."""
        if amount:
            self._spending.add(ref, amount, at_us)
        if self._count >= MAX_WAITING or (not amount and not ref.is_slot):
            return
        # A refund belongs to the bucket that was charged.
        span_us = settling_span_us(ref.limit)
        key = (ref.key, at_us // span_us * span_us if amount < 0 else 0)
        corrections = self._waiting.setdefault(domain, {})
        correction = corrections.get(key)
        if correction is None:
            correction = corrections[key] = Correction(ref.limit)
            self._count += 1
        if ref.is_slot:
            correction.tokens += slots
        else:
            correction.amount += amount
        self._flush_within(WAIT_S)

    def at_most(self, domain: str, ref: LimitRef, left: int, until: float) -> None:
        """At most ``left`` is left, the vendor reports. Believed ``until``, in monotonic seconds."""
        if self._count >= MAX_WAITING:
            return
        corrections = self._waiting.setdefault(domain, {})
        correction = corrections.get((ref.key, LEFT))
        if correction is None:
            correction = corrections[ref.key, LEFT] = Correction(ref.limit, most=left)
            self._count += 1
        correction.most, correction.until = min(correction.most, left), until
        self._flush_within(LEFT_WAIT_S)

    def _flush_within(self, wait_s: float) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time() + wait_s
        if self._timer is not None and self._due <= due:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = loop.call_at(due, self.flush), due

    def stop(self) -> None:
        """Send what is collected, if Redis is available."""
        self.flush()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def flush(self) -> None:
        """Send what is collected. Keep it while Redis, or its node of a Cluster, is unavailable: what it has
        charged stays charged.
        """
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for domain, corrections in tuple(self._waiting.items()):
            if self._health.usable and self._store.serves(next(iter(corrections))[0]):
                del self._waiting[domain]
                self._count -= len(corrections)
                every = list(corrections.items())
                for first in range(0, len(every), MAX_TOGETHER):
                    self._send(domain, every[first : first + MAX_TOGETHER])
        if self._waiting:
            self._flush_within(LATER_S)

    def _send(self, domain: str, corrections: list[tuple[tuple[bytes, int], Correction]]) -> None:
        rules = RuleBook(self._health.rounded_shared_part, self._health.store_time_us())
        words: list[object] = [rules.numbers]
        now = monotonic()
        for (key, at_us), correction in corrections:
            if isinstance(correction.limit, BudgetLimit):
                self._spending.on_sent(key)
            most = correction.most if now < correction.until else -1
            words += (rules.number(correction.limit), correction.amount, at_us, correction.tokens, most)
        keys = tuple(key for (key, _), _ in corrections)
        changes = {key for (key, _), one in corrections if one.amount or one.most >= 0}
        self.refusals.begin_change(changes)
        names = [one.limit.name if one.most >= 0 else "" for _, one in corrections]

        def answered(reply: Reply) -> None:
            self._count_others(domain, names, reply)
            self._answered(changes, reply)

        self._store.run(SETTLE, keys, (msgpack_encode(words),), answered)

    def _count_others(self, domain: str, names: list[str], reply: Reply) -> None:
        charged = reply[len(names) :] if isinstance(reply, list) else ()
        for name, amount in zip(names, charged, strict=False):
            if name and isinstance(amount, int) and amount > 0:
                self.others[domain, name] = self.others.get((domain, name), 0) + amount

    def _answered(self, changes: set[bytes], reply: Reply) -> None:
        self.refusals.end_change(changes)
        self.refusals.forget_counters(changes)
        if isinstance(reply, Exception) and not isinstance(reply, ConnectionLostError):
            self._health.failed(f"settle: {reply}")
