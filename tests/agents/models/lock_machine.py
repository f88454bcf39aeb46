"""What callers, time and accidents can do to one lock, and an exact oracle beside it."""

from dataclasses import dataclass
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from fuseboard.contract.scripts import Script
from tests.agents.scripts import START_US, run_script

SECOND = 1_000_000
KEY = "{i:lock}:lock"
REMEMBERED_MS = 60_000
CALLERS = st.sampled_from("abc")
TTL = st.sampled_from([1, SECOND // 10, SECOND, 30 * SECOND])


@dataclass
class Oracle:
    """Who has the lock, by the definition."""

    owner: str = "-"
    fence: int = 0
    until: int = 0

    def has(self, caller: str, now: int) -> bool:
        return self.owner == caller and self.until > now

    def take(self, caller: str, ttl: int, now: int) -> bool:
        if self.owner not in ("-", caller) and self.until > now:
            return False
        if not self.has(caller, now):
            self.fence = max(self.fence + 1, now)
        self.owner, self.until = caller, now + ttl
        return True


def lock_machine(client: redis.Redis, script: Script) -> type[RuleBasedStateMachine]:
    class LockMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.now = START_US
            self.oracle = Oracle()
            #: While the last number is lost, only the clock lets numbers rise.
            self.floor = 0
            #: Every number that was given, and to whom: a number belongs to one holder.
            self.given: list[tuple[int, str]] = []

        def ask(self, action: str, caller: str, ttl: int = 0, not_after: int = 0) -> Any:
            arguments = [action, caller, ttl, REMEMBERED_MS, not_after]
            return run_script(client, script, [KEY], [*arguments, self.now])

        def contents(self) -> bytes | None:
            return client.get(KEY)  # type: ignore[return-value] # the client is synchronous

        @initialize(offset=st.integers(0, 5 * SECOND))
        def begin(self, offset: int) -> None:
            self.now += offset

        @rule(us=st.one_of(st.integers(0, 3), st.integers(0, 2 * SECOND), st.integers(0, 100 * SECOND)))
        def time_passes(self, us: int) -> None:
            self.now += us

        @rule(delta=st.integers(-1, 1))
        def the_lock_is_about_to_end(self, delta: int) -> None:
            if self.oracle.until:
                self.now = max(self.now, self.oracle.until + delta)

        @rule(us=st.integers(1, 5 * SECOND))
        def the_clock_steps_back(self, us: int) -> None:
            self.now = max(self.now - us, self.floor)

        @rule(caller=CALLERS, ttl=TTL)
        def take(self, caller: str, ttl: int) -> None:
            before, again = self.contents(), self.oracle.has(caller, self.now)
            last = self.oracle.fence
            got = self.oracle.take(caller, ttl, self.now)
            mine, fence, left, now = self.ask("take", caller, ttl)
            assert (mine == 1, fence, now) == (got, self.oracle.fence, self.now)
            assert left == self.oracle.until - self.now
            if not got:
                assert self.contents() == before
            elif not again:
                assert fence > last
                self.given.append((fence, caller))

        @rule(caller=CALLERS, late=st.integers(-1, 1))
        def take_too_late(self, caller: str, late: int) -> None:
            if late <= 0:
                return
            before = self.contents()
            assert self.ask("take", caller, SECOND, not_after=self.now - late)[0] == 0
            assert self.contents() == before

        @rule(caller=CALLERS, early=st.integers(0, 1))
        def take_just_in_time(self, caller: str, early: int) -> None:
            again = self.oracle.has(caller, self.now)
            got = self.oracle.take(caller, SECOND, self.now)
            assert self.ask("take", caller, SECOND, not_after=self.now + early)[0] == got
            if got and not again:
                self.given.append((self.oracle.fence, caller))

        @rule(caller=CALLERS, ttl=TTL)
        def renew(self, caller: str, ttl: int) -> None:
            before, mine = self.contents(), self.oracle.has(caller, self.now)
            if mine:
                self.oracle.until = self.now + ttl
            reply = self.ask("renew", caller, ttl)
            assert (reply[0] == 1, reply[1]) == (mine, self.oracle.fence)
            if not mine:
                assert self.contents() == before

        @rule(caller=CALLERS)
        def release(self, caller: str) -> None:
            before, mine = self.contents(), self.oracle.has(caller, self.now)
            if mine:
                self.oracle.owner, self.oracle.until = "-", self.now
            assert (self.ask("release", caller)[0] == 1) == mine
            if not mine:
                assert self.contents() == before

        @rule(caller=CALLERS, us=st.integers(1, SECOND))
        def release_as_the_clock_steps_back(self, caller: str, us: int) -> None:
            self.release(caller)
            self.the_clock_steps_back(us)
            self.take("d", SECOND)

        @rule()
        def redis_forgets(self) -> None:
            """Also what happens when the time of a number is over. The clock goes on after that."""
            client.delete(KEY)
            self.now = self.floor = max(self.now, self.oracle.fence + 1)
            self.oracle = Oracle()

        @invariant()
        def numbers_rise(self) -> None:
            numbers = [fence for fence, _ in self.given]
            assert numbers == sorted(set(numbers))

        @invariant()
        def redis_and_the_oracle_agree(self) -> None:
            text = self.contents()
            if self.oracle.fence:
                assert text == f"{self.oracle.owner} {self.oracle.fence} {self.oracle.until}".encode()
                left_ms = client.pttl(KEY)
                assert left_ms > REMEMBERED_MS - 10_000  # the number outlives the lock

    return LockMachine
