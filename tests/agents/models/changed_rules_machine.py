"""A state machine: one limit whose rule people edit again and again while it counts."""

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule
from msgspec.structs import replace

from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import Script
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from tests.agents.models.changed_rules import Calendar, Counter, Slots, changed, counter
from tests.agents.scripts import Store

SECOND = 1_000_000
#: Long windows: keys also expire while the test computes.
HOUR_MS = 3_600_000

STRICT = Limit(name="changed", limit=10, window_ms=HOUR_MS, failure_policy=FailurePolicy.FAIL_CLOSED)

windows = st.builds(
    lambda limit, minutes: replace(
        STRICT, algorithm=Algorithm.SLIDING_WINDOW, limit=limit, window_ms=minutes * 60_000
    ),
    st.integers(1, 30),
    st.sampled_from([30, 60, 97, 1440]),
)
buckets = st.builds(
    lambda limit, burst, minutes: replace(STRICT, limit=limit, burst=burst, window_ms=minutes * 60_000),
    st.integers(1, 12),
    st.integers(1, 30),
    st.sampled_from([60, 97, 1440]),
)
calendars = st.builds(
    lambda limit, period, zone: replace(
        STRICT, algorithm=Algorithm.FIXED_WINDOW, limit=limit, period=period, time_zone=zone
    ),
    st.integers(1, 30),
    st.sampled_from(Period),
    st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "Pacific/Kiritimati", "Pacific/Niue"]),
)
slots = st.builds(
    lambda limit: replace(STRICT, algorithm=Algorithm.CONCURRENCY, limit=limit), st.integers(1, 30)
)
rules = st.one_of(windows, buckets, calendars, slots)


def changed_rules_machine(client: redis.Redis, admit: Script) -> type[RuleBasedStateMachine]:
    """Exact grants under each rule, whatever rule counted before."""

    class ChangedRulesMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.store = Store(client, [STRICT], admit_script=admit, expiring=True)
            self.exact: Counter = counter(STRICT)
            self.stored: Counter = self.exact
            self.next: Limit = STRICT

        @initialize(limit=rules, offset=st.integers(0, 3_000_000 * SECOND))
        def begin(self, limit: Limit, offset: int) -> None:
            self.store.now_us += offset
            self.store.limits, self.next = [limit], limit
            self.exact = self.stored = counter(limit, self.store.now_us)

        @rule(
            us=st.one_of(
                st.integers(0, 7),
                st.integers(0, 7_200 * SECOND),
                st.integers(0, 30 * 86_400 * SECOND),
            )
        )
        def time_passes(self, us: int) -> None:
            self.store.now_us += us
            # The key of a period lives on for a second of real time: the test may take that long.
            if isinstance(self.exact, Calendar) and 0 <= self.store.now_us - self.exact.ends < 2 * SECOND:
                self.store.now_us = self.exact.ends + 2 * SECOND

        @rule(limit=rules)
        def the_rule_is_changed(self, limit: Limit) -> None:
            self.next = limit

        @rule(calls=st.integers(1, 30), cost=st.integers(1, 3))
        def ask(self, calls: int, cost: int) -> None:
            now = self.store.now_us
            if self.next is not self.exact.limit:
                self.store.limits, self.exact = [self.next], changed(self.stored, self.next, now)
            reply = self.store.admit((calls, cost))
            granted = min(calls, max(0, self.exact.room(now) // cost))
            assert reply.granted == granted
            assert reply.unreadable == [0]
            if granted:
                self.exact.spend(now, granted * cost)
            assert reply.left == [max(0, self.exact.room(now))]
            # Calls in progress have no amount to take over: a refusal under another rule leaves their slots.
            if granted or not isinstance(self.stored, Slots):
                self.stored = self.exact

    return ChangedRulesMachine
