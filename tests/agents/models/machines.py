"""State machines: everything that pods, time and accidents can do to one domain."""

from collections.abc import Callable

import redis
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule
from msgspec.structs import replace

from fuseboard.contract.policy import BreakerPolicy, Limit
from fuseboard.contract.scripts import Script
from fuseboard.contract.words import Algorithm
from tests.agents.models.oracles import Breaker, Window, oracle_of
from tests.agents.scripts import START_US, Store

SECOND = 1_000_000

WINDOW = Limit(name="vendor", limit=10, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
BUCKET = Limit(name="requests", limit=7, window_ms=60_000, burst=4)


def limits_machine(client: redis.Redis, admit: Script) -> type[RuleBasedStateMachine]:
    """Several limits on one call: exact grants, exact waits, and never more than N in any window."""

    class LimitsMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.store = Store(client, [WINDOW, BUCKET], admit_script=admit)
            self.oracles = [oracle_of(limit) for limit in self.store.limits]
            self.log: list[tuple[int, int]] = []
            self.highest = START_US

        @property
        def now(self) -> int:
            return self.store.now_us

        @initialize(offset=st.integers(0, 60 * SECOND))
        def begin(self, offset: int) -> None:
            self.store.now_us += offset

        @rule(
            us=st.one_of(
                st.integers(0, 3), st.integers(0, 90 * SECOND), st.sampled_from([6 * SECOND, 60 * SECOND])
            )
        )
        def time_passes(self, us: int) -> None:
            self.store.now_us += us

        @rule(delta=st.integers(-2, 2))
        def time_comes_to_the_edge_of_a_bucket(self, delta: int) -> None:
            width = 6 * SECOND
            self.store.now_us = (self.now // width + 1) * width + delta

        @rule(us=st.integers(1, 5 * SECOND))
        def the_clock_steps_back(self, us: int) -> None:
            self.store.now_us -= us

        @rule(groups=st.lists(st.tuples(st.integers(1, 6), st.integers(1, 3)), min_size=1, max_size=3))
        def ask(self, groups: list[tuple[int, int]]) -> None:
            before = self.store.contents()
            # Each in a class of its own, so that they are served in order.
            reply = self.store.admit(*groups, classes=(90, 50, 10))
            for (count, cost), group in zip(groups, reply.groups, strict=True):
                room = min(max(0, oracle.room(self.now) // cost) for oracle in self.oracles)
                granted = min(count, room)
                assert group.granted == granted
                if granted:
                    for oracle in self.oracles:
                        oracle.spend(self.now, granted * cost)
                    self.log.append((max(self.now, self.highest), granted * cost))
            self.highest = max(self.highest, self.now)
            assert reply.left == [max(0, oracle.room(self.now)) for oracle in self.oracles]
            if not reply.granted:
                assert self.store.contents() == before
                self.the_wait_is_sufficient_and_minimal(groups[-1][1], reply.groups[-1].wait_us)

        def the_wait_is_sufficient_and_minimal(self, cost: int, wait_us: int) -> None:
            """The call fits when the wait is over, and in one of the limits not a moment before."""
            if cost > min(self.store.limits[0].limit, BUCKET.burst):
                return  # it never fits
            assert wait_us > 0
            assert min(oracle.room(self.now + wait_us) for oracle in self.oracles) >= cost
            assert min(oracle.room(self.now + wait_us - 1) for oracle in self.oracles) < cost

        @rule(limit=st.integers(1, 20))
        def the_window_limit_is_changed(self, limit: int) -> None:
            self.change(
                0, Limit(name="vendor", limit=limit, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)
            )

        def change(self, index: int, limit: Limit) -> None:
            self.store.limits[index] = limit
            self.oracles[index].limit = limit

        @invariant()
        def no_window_holds_more_than_the_highest_limit(self) -> None:
            window = self.oracles[0]
            assert isinstance(window, Window)
            recent = [(at, n) for at, n in self.log if at > self.highest - 200 * SECOND]
            for end, _ in recent:
                inside = sum(n for at, n in recent if end - 60 * SECOND < at <= end)
                assert inside <= 20  # no limit here was ever higher

    return LimitsMachine


def breaker_machine(client: redis.Redis, admit: Script, report: Script) -> type[RuleBasedStateMachine]:
    """The fleet's breaker under late, lost, repeated and concurrent reports."""
    policy = BreakerPolicy(
        consecutive_failures=5,
        failure_percent=50,
        minimum_calls=8,
        window_s=10,
        open_ms=20_000,
        open_max_ms=80_000,
        probes=2,
        probe_lease_ms=5_000,
        successes_to_close=2,
    )

    class BreakerMachine(RuleBasedStateMachine):
        tickets = Bundle("tickets")

        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.store = Store(client, policy=policy, guarded=True, admit_script=admit, report_script=report)
            self.model = Breaker(policy)

        @initialize(window_calls=st.sampled_from([0, 8, 12]))
        def begin(self, window_calls: int) -> None:
            self.store.policy = self.model.policy = replace(policy, window_calls=window_calls)

        @property
        def now(self) -> int:
            return self.store.now_us

        @rule(us=st.one_of(st.integers(0, 3 * SECOND), st.integers(0, 100 * SECOND)))
        def time_passes(self, us: int) -> None:
            self.store.now_us += us

        @rule(delta=st.integers(-1, 1))
        def the_open_time_ends(self, delta: int) -> None:
            if self.model.state == "open":
                self.store.now_us = max(self.now, self.model.until + delta)

        @rule(delta=st.integers(-1, 1))
        def a_lease_ends(self, delta: int) -> None:
            if self.model.permits:
                self.store.now_us = max(self.now, min(self.model.permits.values()) + delta)

        @rule(target=tickets, count=st.integers(1, 4))
        def ask(self, count: int) -> tuple[int, tuple[str, ...]]:
            before = self.store.contents()
            known_before = set(self.model.permits)
            verdict, granted = self.model.admit(count, self.now, f"b{self.store.batches + 1}")
            reply = self.store.admit((count, 1))
            assert (reply.verdict, reply.granted) == (verdict, granted)
            if granted:
                assert reply.generation == self.model.generation
            else:
                assert self.store.contents() == before
                assert reply.wait_us > 0
            return reply.generation, tuple(set(self.model.permits) - known_before)

        @rule(ticket=tickets, outcome=st.integers(0, 2), twice=st.booleans())
        def a_call_ends(self, ticket: tuple[int, tuple[str, ...]], outcome: int, twice: bool) -> None:
            generation, tokens = ticket
            for _ in range(1 + twice):
                if tokens:
                    for token in tokens:
                        self.report_probe(generation, token, outcome)
                else:
                    self.report_closed(generation, "a", int(outcome == 1), int(outcome == 2))

        @rule(ticket=tickets)
        def a_call_runs_on(self, ticket: tuple[int, tuple[str, ...]]) -> None:
            generation, tokens = ticket
            for token in tokens:
                before = self.store.contents()
                reply = self.store.report(generation, probes=((token, policy.probe_lease_ms * 1000),))
                if generation == self.model.generation:
                    assert reply.change == "none"
                    self.model.renew_probe(token, self.now)
                else:
                    assert self.store.contents() == before

        @rule(ticket=tickets, server=st.sampled_from("abc"), ok=st.integers(0, 4), failure=st.integers(0, 4))
        def a_batch_of_calls_ends(
            self, ticket: tuple[int, tuple[str, ...]], server: str, ok: int, failure: int
        ) -> None:
            self.report_closed(ticket[0], server, ok, failure)

        @rule(target=tickets, server=st.sampled_from("ab"))
        def the_dependency_fails(self, server: str) -> tuple[int, tuple[str, ...]]:
            """A run of failures seen by two servers, so that trips are not left to luck."""
            generation, tokens = self.ask(1)
            self.report_closed(generation, server, 0, 4)
            self.report_closed(generation, "c", 0, 4)
            return generation, tokens

        @rule()
        def it_recovers(self) -> None:
            """As far as it lets itself be probed."""
            generation, tokens = self.ask(4)
            for token in tokens:
                self.report_probe(generation, token, 1)

        @rule()
        def the_store_forgets(self) -> None:
            client.flushall()
            generation = self.model.generation
            self.model = Breaker(self.store.policy)
            # What comes next is above everything that was handed out before.
            self.store.now_us = max(self.now, generation + 1)

        def report_probe(self, generation: int, token: str, outcome: int) -> None:
            before = self.store.contents()
            reply = self.store.report(generation, probes=((token, outcome),))
            if generation != self.model.generation:
                assert reply.change == "stale"
                assert self.store.contents() == before
            elif self.model.state == "half_open":
                assert reply.change == self.model.report_probe(token, outcome, self.now)

        def report_closed(self, generation: int, server: str, ok: int, failure: int) -> None:
            before = self.store.contents()
            reply = self.store.report(generation, ok=ok, failure=failure, tail=failure, server=server)
            if generation != self.model.generation:
                assert reply.change == "stale"
                assert self.store.contents() == before
            elif self.model.state == "closed" and ok + failure:
                assert reply.change == self.model.report_closed(server, ok, failure, failure, self.now)

        @invariant()
        def redis_and_the_model_agree(self) -> None:
            stored = self.store.breaker()
            if stored is None:
                return
            assert stored.generation <= self.model.generation
            if stored.generation == self.model.generation:
                assert stored.state == self.model.state
                assert stored.until_us == self.model.until
                assert stored.successes == self.model.successes
                live = {token for token, until in stored.permits.items() if until > self.now}
                assert live == set(self.model.live(self.now))
                assert len(live) <= policy.probes

        @invariant()
        def it_can_always_recover(self) -> None:
            """From here, waiting and two good probes are enough; tried on the model."""
            assert self.model.state == "closed" or self.model.until <= self.now + policy.open_max_ms * 1000

    return BreakerMachine


Machine = Callable[[], type[RuleBasedStateMachine]]
