"""What clients, owners, time and accidents can do to one key, and an exact oracle beside it."""

from dataclasses import dataclass
from typing import Any

import redis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from fuseboard.contract.scripts import Script
from tests.agents.scripts import START_US, run_script

SECOND = 1_000_000
KEY = "{i:request}:idempotency"
KEEP_MS, RENEWED_MS, REMEMBERED_MS = 86_400_000, 2 * 86_400_000, 60_000
OWNERS, PRINTS = st.sampled_from("abc"), st.sampled_from("xxy")
HOW = st.sampled_from(["done", "sealed"])
LEASE = st.sampled_from([1, SECOND, 60 * SECOND])


@dataclass
class Oracle:
    """What became of the request, by the definition."""

    state: str = "free"
    owner: str = ""
    fence: int = 0
    print: str = ""
    until: int = 0
    answer: bytes = b""
    sealed: bool = False
    #: How long Redis remembers it.
    kept_ms: int = 0

    def begin(self, owner: str, fingerprint: str, lease: int, now: int) -> str:
        mine = self.state == "running" and self.owner == owner
        if self.state != "free":
            if fingerprint != self.print:
                return "other"
            if self.state == "done":
                return "done"
            if self.until > now and not mine:
                return "running"
        if not mine:
            self.fence = max(self.fence + 1, now)
        self.state, self.owner, self.print, self.until = "running", owner, fingerprint, now + lease
        self.kept_ms = KEEP_MS
        return "run"

    def owns(self, owner: str) -> bool:
        return self.state == "running" and self.owner == owner


def idempotency_machine(client: redis.Redis, script: Script) -> type[RuleBasedStateMachine]:
    class IdempotencyMachine(RuleBasedStateMachine):
        def __init__(self) -> None:
            super().__init__()
            client.flushall()
            self.now = self.floor = START_US
            self.oracle = Oracle()
            self.fences: list[int] = []

        def ask(self, action: str, owner: str, *arguments: object) -> Any:
            return run_script(client, script, [KEY], [action, owner, *arguments, self.now])

        def contents(self) -> Any:
            return client.hgetall(KEY)

        @rule(us=st.one_of(st.integers(0, 3), st.integers(0, 2 * SECOND), st.integers(0, 200 * SECOND)))
        def time_passes(self, us: int) -> None:
            self.now += us

        @rule(delta=st.integers(-1, 1), owner=OWNERS)
        def another_comes_as_the_lease_ends(self, delta: int, owner: str) -> None:
            if self.oracle.state == "running" and self.oracle.until + delta >= self.now:
                self.now = self.oracle.until + delta
                self.begin(owner, self.oracle.print, SECOND, None)

        @rule(us=st.integers(1, 5 * SECOND))
        def the_clock_steps_back(self, us: int) -> None:
            self.now = max(self.now - us, self.floor)

        @rule(owner=OWNERS, fingerprint=PRINTS, lease=LEASE, spare=st.sampled_from([None, 0, 5]))
        def begin(self, owner: str, fingerprint: str, lease: int, spare: int | None) -> None:
            """``spare``: how much later the question may come."""
            before, again = self.contents(), self.oracle.owns(owner)
            word = self.oracle.begin(owner, fingerprint, lease, self.now)
            not_after = 0 if spare is None else self.now + spare
            got, fence, left, answer, now = self.ask("begin", owner, lease, KEEP_MS, fingerprint, not_after)
            assert (got.decode(), fence, now) == (word, self.oracle.fence, self.now)
            assert answer == (self.oracle.answer if word == "done" else b"")
            if word in ("run", "running"):
                assert left == self.oracle.until - self.now
            if word != "run":
                assert self.contents() == before
            elif not again:
                self.fences.append(fence)

        @rule(owner=OWNERS, fingerprint=PRINTS)
        def begin_too_late(self, owner: str, fingerprint: str) -> None:
            before = self.contents()
            assert self.ask("begin", owner, SECOND, KEEP_MS, fingerprint, self.now - 1)[0] != b"run"
            assert self.contents() == before

        @rule(owner=OWNERS, lease=LEASE)
        def renew(self, owner: str, lease: int) -> None:
            before, mine = self.contents(), self.oracle.owns(owner)
            if mine:
                self.oracle.until, self.oracle.kept_ms = self.now + lease, RENEWED_MS
            assert (self.ask("renew", owner, lease, RENEWED_MS)[0] == b"ok") == mine
            if not mine:
                assert self.contents() == before

        @rule(
            owner=OWNERS,
            answer=st.sampled_from([b"", b"one", b"two"]),
            how=HOW,
        )
        def done(self, owner: str, answer: bytes, how: str) -> None:
            before, mine = self.contents(), self.oracle.owns(owner)
            repeated = self.oracle.state == "done" and self.oracle.owner == owner
            if mine:
                self.oracle.state, self.oracle.answer, self.oracle.kept_ms = "done", answer, KEEP_MS
                self.oracle.sealed = how == "sealed"
            assert (self.ask(how, owner, 0, KEEP_MS, answer)[0] == b"ok") == (mine or repeated)
            if not mine:
                assert self.contents() == before  # also what is done already

        @rule(owner=OWNERS)
        def release(self, owner: str) -> None:
            before, mine = self.contents(), self.oracle.owns(owner)
            if mine:
                self.oracle.state, self.oracle.kept_ms = "free", REMEMBERED_MS
            assert (self.ask("release", owner, 0, REMEMBERED_MS, b"")[0] == b"ok") == mine
            if not mine:
                assert self.contents() == before

        @rule(owner=OWNERS, how=HOW)
        def a_request_ends_well_and_is_repeated(self, owner: str, how: str) -> None:
            self.begin(owner, "x", 60 * SECOND, None)
            if self.oracle.owns(owner):
                self.time_passes(SECOND)
                self.renew(owner, 60 * SECOND)
                self.redis_and_the_oracle_agree()
                self.done(owner, b"one", how)
                self.done(owner, b"two", how)  # the answer of the first question was lost
                self.begin("d", self.oracle.print, SECOND, None)

        @rule(owner=OWNERS, fingerprint=PRINTS)
        def a_request_fails_and_runs_again(self, owner: str, fingerprint: str) -> None:
            self.begin(owner, "x", 60 * SECOND, None)
            self.release(owner)
            self.begin("d", fingerprint, SECOND, None)

        @rule()
        def redis_forgets(self) -> None:
            """Also what happens when the time of a request is over. The clock goes on after that."""
            client.delete(KEY)
            self.now = self.floor = max(self.now, self.oracle.fence + 1)
            self.oracle = Oracle()

        @invariant()
        def numbers_rise(self) -> None:
            assert self.fences == sorted(set(self.fences))

        @invariant()
        def redis_and_the_oracle_agree(self) -> None:
            oracle = self.oracle
            if oracle.fence:
                facts = [oracle.state, oracle.owner, oracle.fence, oracle.until]
                stored = client.hmget(KEY, "state", "owner", "fence", "til")
                assert stored == [str(fact).encode() for fact in facts]
                if oracle.state == "done":
                    # An earlier version finds an empty answer beside a sealed one.
                    here, empty = ("sealed", "answer") if oracle.sealed else ("answer", "sealed")
                    assert client.hget(KEY, here) == oracle.answer
                    assert not client.hget(KEY, empty)

        @invariant()
        def it_is_remembered_for_its_time(self) -> None:
            if self.oracle.fence:
                kept_ms = self.oracle.kept_ms
                assert kept_ms - 20_000 < client.pttl(KEY) <= kept_ms  # type: ignore[operator] # synchronous

    return IdempotencyMachine
