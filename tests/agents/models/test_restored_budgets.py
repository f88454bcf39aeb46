"""Budgets of several pods against a model, at large numbers, with losses of the store.

The scripts are the shipped ones, on a real server, in virtual time.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuseboard.batching.demand import RuleBook
from fuseboard.contract.budget_limits import limit_of
from fuseboard.contract.budgets import MAX_BUDGET, AtSpent, Budget
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.scripts import Script, read_script
from fuseboard.contract.words import Period
from tests.agents.mutating import Mutant
from tests.agents.scripts import START_US, VIRTUAL_CLOCK

COUNTER, MARKS = "{a:openai}:budget:hourly", "{a:openai}:budget:hourly:mark"
HOUR_US = 3_600_000_000


@dataclass
class Pod:
    mark: str = ""
    amount: int = 0
    began_us: int = 0


@dataclass
class Fleet:
    """The store, what it should contain, and the pods."""

    client: redis.Redis
    amount: int
    at_100: AtSpent
    restore: Script
    now_us: int = START_US
    #: Spent in the period: since the last loss, and what was put back.
    spent: int = 0
    put_back: int = 0
    #: The marks, and when they expire. Keys of virtual time expire by the real clock.
    marks: dict[bytes, bytes] = field(default_factory=dict)
    marks_until_us: int = 0
    pods: list[Pod] = field(default_factory=lambda: [Pod(), Pod(), Pod()])
    admit: Script = field(default_factory=lambda: read_script("admit", clock=VIRTUAL_CLOCK))
    settle: Script = field(default_factory=lambda: read_script("settle", clock=VIRTUAL_CLOCK))

    def __post_init__(self) -> None:
        self.limit = limit_of(
            Budget(name="hourly", amount=self.amount, period=Period.HOUR, at_100=self.at_100.value)
        )
        self.seen_before_loss: dict[int, int] = {}
        for script in (self.admit, self.settle, self.restore):
            self.client.script_load(script.text)

    @property
    def began_us(self) -> int:
        return period_around(self.now_us, Period.HOUR, "UTC")[0]

    def _run(self, script: Script, keys: list[str], blob: bytes) -> Any:
        return self.client.evalsha(script.sha, len(keys), *keys, blob, self.now_us)

    def pass_time(self, us: int) -> None:
        before = self.began_us
        self.now_us += us
        if self.began_us != before:
            self.spent, self.put_back, self.seen_before_loss = 0, 0, {}
            self.client.delete(COUNTER)
        if self.now_us >= self.marks_until_us:
            self.client.delete(MARKS)

    def call(self, cost: int) -> bool:
        rules = RuleBook(1.0, self.now_us)
        number = rules.number(self.limit)
        asked = [0, "token", 0, 1, number, *rules.numbers, 50, 1, 1, 0, number, cost]
        reply = msgspec.msgpack.decode(self._run(self.admit, [COUNTER], msgspec.msgpack.encode(asked)))
        figures = reply[5]
        granted, left = figures[0] == 1, figures[3]
        assert granted is (self.spent + cost <= self.limit.limit), (self.spent, cost, self.limit.limit)
        if granted:
            self.spent += cost
        assert left == max(0, self.limit.limit - self.spent)
        return granted

    def correct(self, amount: int) -> None:
        rules = RuleBook(1.0, self.now_us)
        words = [rules.number(self.limit), amount, self.began_us, [], -1]
        self._run(self.settle, [COUNTER], msgspec.msgpack.encode([rules.numbers, *words]))
        if amount > 0:
            self.spent = min(self.spent + amount, MAX_BUDGET)
        elif self.client.exists(COUNTER):
            self.spent = max(0, self.spent + amount)

    def look(self, place: int) -> None:
        pod = self.pods[place]
        if pod.began_us != self.began_us:
            pod = self.pods[place] = Pod(began_us=self.began_us)
        rules = RuleBook(1.0, self.now_us)
        words = [rules.number(self.limit), pod.mark, pod.amount]
        blob = msgspec.msgpack.encode([rules.numbers, *words])
        ((mark, found, restored),) = self._run(self.restore, [COUNTER, MARKS], blob)
        if (marks := self.client.hgetall(MARKS)) != self.marks:
            self.marks, self.marks_until_us = marks, self.now_us + self.client.pttl(MARKS) * 1_000  # type: ignore
        known = self.seen_before_loss.pop(place, None)
        expected = 0
        if known is not None:
            expected = min(max(0, known - self.put_back), MAX_BUDGET - self.spent)
            if expected:
                self.put_back = known
        self.spent += expected
        assert (found, restored) == (self.spent, expected)
        pod.mark, pod.amount = mark.decode(), found

    def lose_everything(self) -> None:
        self.client.flushdb()
        self.now_us += 1
        self.spent = self.put_back = 0
        for place, pod in enumerate(self.pods):
            if pod.mark and pod.began_us == self.began_us:
                self.seen_before_loss[place] = pod.amount


AMOUNTS = st.sampled_from([0, 1, 1_000, 10**9 + 1, 50_000_000_000, 2**52 + 1, MAX_BUDGET - 1, MAX_BUDGET])
PARTS = st.integers(min_value=1, max_value=40)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), PARTS),
        st.tuples(st.just("exact"), st.integers(min_value=1, max_value=3)),
        st.tuples(st.just("charge"), PARTS),
        st.tuples(st.just("refund"), PARTS),
        st.tuples(st.just("look"), st.integers(min_value=0, max_value=2)),
        st.tuples(st.just("look"), st.integers(min_value=0, max_value=2)),
        st.tuples(st.just("lose"), st.just(0)),
        st.tuples(st.just("pass"), st.sampled_from([1, 1_000_000, HOUR_US // 3, HOUR_US])),
        st.tuples(st.just("to_the_end"), st.sampled_from([-1, 0])),
    ),
    max_size=25,
)


def run(
    client: redis.Redis, script: Script, amount: int, at_100: AtSpent, steps: list[tuple[str, int]]
) -> None:
    client.flushdb()
    fleet = Fleet(client, amount, at_100, script)
    for what, number in steps:
        if what == "call":
            fleet.call(max(1, amount // number))
        elif what == "exact":
            fleet.call(number)
        elif what in ("charge", "refund"):
            fleet.correct((1 if what == "charge" else -1) * max(1, amount // number))
        elif what == "look":
            fleet.look(number)
        elif what == "lose":
            fleet.lose_everything()
        elif what == "pass":
            fleet.pass_time(number)
        else:
            fleet.pass_time(fleet.began_us + HOUR_US + number - fleet.now_us)


RESTORE = read_script("restore", clock=VIRTUAL_CLOCK)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(amount=AMOUNTS.filter(bool), at_100=st.sampled_from(AtSpent), steps=STEPS)
def test_a_budget_counts_what_any_pod_knew(
    limits: redis.Redis, amount: int, at_100: AtSpent, steps: list[tuple[str, int]]
) -> None:
    run(limits, RESTORE, amount, at_100, steps)


MUTANTS = (
    Mutant("a known mark restores too", "seen ~= mark and ", ""),
    Mutant("each pod restores all it knew", "math.min(amount - restored, ", "math.min(amount, "),
    Mutant("the last pod wins", "math.max(restored, missing > 0 and amount or 0)", "0"),
    Mutant("what was put back is not written", "if limit.spent then write_limit(limit) end", ""),
    Mutant(
        "marks of other periods count", "local began = string.format('%d', limit.window)", "local began = 'x'"
    ),
    Mutant("more than fits", ", LARGEST - limit.count)", ", LARGEST)"),
)

#: Steps that show each bug.
STORY: list[tuple[str, int]] = [
    ("call", 4), ("look", 0), ("look", 0), ("call", 4), ("look", 1), ("lose", 0), ("call", 8),
    ("look", 2), ("look", 0), ("look", 1), ("look", 0), ("exact", 1),
    ("to_the_end", 0), ("look", 0), ("call", 8), ("look", 0), ("pass", 2_000_000), ("look", 0),
    ("pass", HOUR_US), ("look", 0), ("call", 8), ("look", 1), ("look", 0),
    ("charge", 1), ("look", 0), ("lose", 0), ("charge", 2), ("look", 0), ("exact", 1), ("look", 1),
]  # fmt: skip


@pytest.mark.parametrize("amount", [1_000, 2**52 + 1, MAX_BUDGET])
def test_the_story_of_the_mutants_is_right(limits: redis.Redis, amount: int) -> None:
    run(limits, RESTORE, amount, AtSpent.STOP, STORY)
    run(limits, RESTORE, amount, AtSpent.WARN, STORY)


def run_all(client: redis.Redis, script: Script) -> None:
    for amount in (1_000, MAX_BUDGET):
        for at_100 in AtSpent:
            run(client, script, amount, at_100, STORY)


@pytest.mark.parametrize("mutant", MUTANTS, ids=[mutant.name for mutant in MUTANTS])
def test_a_bug_in_the_script_is_noticed(limits: redis.Redis, mutant: Mutant) -> None:
    assert RESTORE.text.count(mutant.old) == 1, f"{mutant.name!r} no longer matches the script"
    text = RESTORE.text.replace(mutant.old, mutant.new)
    script = msgspec.structs.replace(RESTORE, text=text, sha=limits.script_load(text))
    with pytest.raises(AssertionError):
        run_all(limits, script)
