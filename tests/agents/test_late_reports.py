"""Reports of what a pod spent alone, whose answers come late: calls cost more meanwhile, or a period ends."""

from time import monotonic, time
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.batching.known_spending import KnownSpending
from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from fuseboard.decision import Charge
from fuseboard.without_redis import local_counters, local_limits
from fuseboard.without_redis.drain import Drain
from fuseboard.without_redis.local_limits import LocalLimits
from fuseboard.without_redis.offline_counts import Segment

TOKENS = Limit(
    name="tokens",
    limit=100,
    window_ms=0,
    algorithm=Algorithm.FIXED_WINDOW,
    period=Period.DAY,
    measure="tokens",
    failure_policy=FailurePolicy.LOCAL_SHARE,
)
HOUR_US = 3_600_000_000


class Pod:
    """Spends a limit of 100 tokens a day alone, and reports to a Redis whose answers a test gives."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: An hour before the end of the day.
        self.now_us = period_around(int(time() * 1_000_000), Period.DAY, "UTC")[1] - HOUR_US
        monkeypatch.setattr(local_counters, "time", lambda: self.now_us / 1_000_000)
        monkeypatch.setattr(local_limits, "time", lambda: self.now_us / 1_000_000)
        self.spending = KnownSpending()
        self.limits = LocalLimits(lambda: 1, spending=self.spending)
        self.settled: list[int] = []
        self.limits.settle = lambda domain, ref, store_us, amount: self.settled.append(amount)
        self.ref = LimitRef(TOKENS, "fb1:production:{t:acme}:quota:tokens")
        self.spending.put(self.ref, 0, self.now_us)
        #: The charges of each report, and the callback that gets its answer.
        self.reports: list[tuple[dict[Any, int], Any]] = []
        store: Any = SimpleNamespace(run=self.run)
        health: Any = SimpleNamespace(store_time_us=lambda: self.now_us)
        self.drain = Drain(store=store, health=health, local=self.limits)

    def run(self, _: Any, script_keys: Any, arguments: Any, answered: Any) -> None:
        amounts = msgspec.msgpack.decode(arguments[-1])[3::2]
        self.reports.append((dict(zip(script_keys[2:], amounts, strict=True)), answered))

    def call(self, cost: int) -> Charge:
        demand = Demand((self.ref,), (cost,))
        at_us = int(monotonic() * 1_000_000)
        assert self.limits.take(demand, 1.0) is None
        return Charge("domain", demand, at_us, "token", local=True)

    def report(self, segment: Segment) -> None:
        self.drain._ask(segment, [key.decode() for key in segment.totals])

    @property
    def left(self) -> int:
        portion = self.limits.portion(self.ref, 1.0)
        assert portion is not None
        return int(portion.calls) - self.limits.still_spent(self.ref)


@pytest.mark.parametrize("reply", [0, 1])
async def test_a_report_that_is_answered_in_the_next_period_charges_nothing_there(
    monkeypatch: pytest.MonkeyPatch, reply: int
):
    """The first report had no answer. In the next period, Redis charges nothing of it."""
    pod = Pod(monkeypatch)
    call = pod.call(30)
    segment = pod.limits.offline.close()
    assert segment is not None
    pod.report(segment)
    pod.limits.correct(call, "tokens", 40)
    pod.now_us += 2 * HOUR_US
    pod.spending.put(pod.ref, 5, pod.now_us)
    pod.call(7)
    before = pod.left
    assert before == 100 - 5 - 7
    pod.report(segment)
    pod.reports[-1][1](reply)
    assert pod.left == before
    assert sum(pod.settled) == 0


@pytest.mark.parametrize("hours", [0, 0.5])
async def test_a_report_that_is_answered_late_in_its_period_is_charged(
    monkeypatch: pytest.MonkeyPatch, hours: float
):
    pod = Pod(monkeypatch)
    call = pod.call(30)
    segment = pod.limits.offline.close()
    assert segment is not None
    pod.report(segment)
    pod.limits.correct(call, "tokens", 40)
    pod.now_us += int(hours * HOUR_US)
    pod.report(segment)
    pod.reports[-1][1](1)
    assert (pod.left, pod.settled) == (100 - 30, [10])


async def test_a_call_that_gave_back_all_and_costs_more_before_the_answer_is_charged(
    monkeypatch: pytest.MonkeyPatch,
):
    pod = Pod(monkeypatch)
    call = pod.call(30)
    segment = pod.limits.offline.close()
    assert segment is not None
    pod.limits.refund(call, {"tokens": 30})
    pod.report(segment)
    assert pod.reports[0][0] == {}
    pod.limits.correct(call, "tokens", 70)
    pod.reports[0][1](1)
    assert pod.settled == [40]
