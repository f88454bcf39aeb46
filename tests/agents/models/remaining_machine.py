"""A state machine: what vendors report as left, beside calls, corrections, ramps, and a clock that steps
back.
"""

from fractions import Fraction
from math import ceil, floor

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from fuseboard.batching.demand import RING_SIZE
from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import Script
from tests.agents.models.machines import SECOND
from tests.agents.models.oracles import Bucket, Window, oracle_of, part_of
from tests.agents.scripts import START_US, Store


def lowered(oracle: Window | Bucket, now: int, most: int, *, stored: bool) -> None:
    """What ``settle.lua`` should do when a vendor has ``most`` left."""
    over = oracle.room(now) - most
    if over <= 0:
        return
    if isinstance(oracle, Bucket):
        oracle.spend(now, over)
    elif stored:
        oracle.head = oracle.head_at(now)
        even = ceil(Fraction(part_of(oracle.limit.limit, oracle.part), RING_SIZE))
        for number in range(oracle.head - RING_SIZE, oracle.head + 1):
            before = oracle.spent.get(number, 0)
            oracle.spent[number] = before + min(over, max(0, even - before))
            over -= oracle.spent[number] - before
        assert over == 0


def read(oracle: Window | Bucket, now: int) -> None:
    """What scripts should read of a bucket whose time is too far ahead, after the clock has stepped back."""
    if not isinstance(oracle, Bucket):
        return
    limit, full = oracle.limit, ceil(oracle.limit.burst * oracle.spacing)
    most = max(limit.burst, limit.limit)
    latest = floor(now + most * oracle.spacing)
    if floor(now + oracle.owed(now) * oracle.spacing) > latest + full + SECOND:
        oracle.arrival, oracle.stored_spacing = now + most * oracle.spacing, oracle.spacing


def charged(oracle: Window | Bucket, now: int, more: int) -> None:
    """What ``settle.lua`` should do when a call cost more. The whole limit bounds the debt of a bucket, also
    while the pod that reports the cost asks for a part of it.
    """
    if isinstance(oracle, Window):
        oracle.spend(now, more)
        return
    longest = max(oracle.limit.burst, oracle.limit.limit)
    oracle.spend(now, min(more, 2 * longest))
    most = now + ceil(oracle.limit.burst * oracle.spacing) + ceil(longest * oracle.spacing)
    whole = floor(oracle.arrival)
    oracle.arrival = min(whole, most) + (oracle.arrival - whole)


def refunded(oracle: Window | Bucket, now: int, less: int) -> None:
    """What ``settle.lua`` should do when a call that was made now cost less."""
    if isinstance(oracle, Bucket):
        oracle.spend(now, -less)
        return
    number, oracle.head = now // oracle.width, oracle.head_at(now)
    oracle.spent[number] = max(0, oracle.spent.get(number, 0) - less)


def remaining_machine(
    client: redis.Redis, limit: Limit, admit: Script, settle: Script
) -> type[RuleBasedStateMachine]:
    """Exact grants after each report. A report never raises what is left."""

    class RemainingMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.store = Store(client, [limit], admit_script=admit, settle_script=settle)
            self.oracle = oracle_of(limit)
            self.stored = False

        @property
        def now(self) -> int:
            return self.store.now_us

        @initialize(offset=st.integers(0, 60 * SECOND))
        def begin(self, offset: int) -> None:
            self.store.now_us = START_US + offset

        @rule(
            us=st.one_of(
                st.integers(0, 3), st.integers(0, 90 * SECOND), st.sampled_from([6 * SECOND, 60 * SECOND])
            )
        )
        def time_passes(self, us: int) -> None:
            self.store.now_us += us

        @rule(us=st.integers(1, 5 * SECOND))
        def the_clock_steps_back(self, us: int) -> None:
            self.store.now_us -= us

        @rule(calls=st.integers(1, 12), cost=st.integers(1, 3))
        def ask(self, calls: int, cost: int) -> None:
            read(self.oracle, self.now)
            granted = min(calls, max(0, self.oracle.room(self.now) // cost))
            assert self.store.admit((calls, cost)).granted == granted
            if granted:
                self.oracle.spend(self.now, granted * cost)
                self.stored = True

        @rule(tenths=st.sampled_from([1, 2, 5, 9, 10]))
        def another_pod_asks(self, tenths: int) -> None:
            """Pods of one counter may ramp up, each for itself."""
            self.store.part, self.oracle.part = tenths / 10, Fraction(tenths, 10)

        @rule(less=st.integers(1, 60))
        def a_call_cost_less(self, less: int) -> None:
            if self.stored:
                read(self.oracle, self.now)
                self.store.settle(amount=-less)
                refunded(self.oracle, self.now, less)
                if isinstance(self.oracle, Bucket) and self.oracle.arrival < self.now + SECOND:
                    # Its key is about to expire, in real time.
                    client.delete(self.store.limit_key(limit))
                    self.oracle.arrival, self.stored = Fraction(0), False

        @rule(more=st.integers(1, 60))
        def a_call_cost_more(self, more: int) -> None:
            if self.stored:
                read(self.oracle, self.now)
                self.store.settle(amount=more)
                charged(self.oracle, self.now, more)

        @rule(most=st.integers(0, 30))
        def the_vendor_reports_what_is_left(self, most: int) -> None:
            read(self.oracle, self.now)
            before = self.oracle.room(self.now)
            self.store.settle(most=most)
            lowered(self.oracle, self.now, most, stored=self.stored)
            self.stored = self.stored or (isinstance(self.oracle, Bucket) and before > most)
            left = self.store.admit((1, 10**6)).left
            assert left == [max(0, self.oracle.room(self.now))]
            assert left[0] <= max(0, before)

    return RemainingMachine
