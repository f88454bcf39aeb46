"""An adaptive queue bounds how long calls wait, and does not grow because they wait."""

from types import ModuleType

import msgspec
import pytest

from fuseboard.protection import adaptive_queue, bulkhead
from fuseboard.protection.adaptive_queue import AdaptiveQueue
from tests.agents.mutating import Mutant, mutated
from tests.agents.queueing import TEN, quantile, refused_part, traffic
from tests.virtual_loop import run_virtually


def rising(passed: float) -> float:
    """From 10 % to 150 % of 500 calls per second in 60 s, and then 150 %."""
    return 500 * (0.1 + 1.4 * min(1.0, passed / 60))


def normal(passed: float) -> float:
    return 0.02


def slow_for_a_while(passed: float) -> float:
    return 0.08 if 10 <= passed < 40 else 0.02


class TestExperiment:
    def test_waits_stay_near_the_target_at_150_percent(self):
        story = run_virtually(traffic(75, rising, normal))
        end = story[62:]
        assert 0.28 < refused_part(end) < 0.40
        assert quantile(0.5, end) <= 0.12
        assert quantile(1 - 1e-9, end) <= 0.2 + 1e-6  # twice the target
        assert sum(second.done for second in end) > 0.95 * 500 * len(end)
        # 10 slots x 100 ms / 20 ms, and still.
        assert {second.size for second in end} <= set(range(44, 52))

    def test_a_service_that_becomes_four_times_slower_and_recovers(self):
        story = run_virtually(traffic(50, lambda _: 550.0, slow_for_a_while))
        assert quantile(1 - 1e-9, story) <= 0.2 + 1e-6
        assert story[38].size <= 16
        recovered = story[46:]
        assert quantile(0.95, recovered) <= 0.16
        assert refused_part(recovered) < 0.2

    def test_a_fixed_queue_of_the_same_place_waits_longer(self):
        fixed = msgspec.structs.replace(TEN, adaptive=False, queues=(512, 0, 0))
        story = run_virtually(traffic(30, lambda _: 750.0, normal, settings=fixed))
        assert quantile(0.95, story[10:]) > 0.8


class TestSize:
    def queue(self, limit: int = 10) -> AdaptiveQueue:
        queue = AdaptiveQueue(0.1, 0.02)
        queue.resize(limit)
        return queue

    def complete(self, queue: AdaptiveQueue, busy_s: float, begin: float, seconds: float) -> None:
        for step in range(int(seconds * 20)):
            queue.completed(busy_s, begin + step / 20)

    def test_before_anything_is_measured(self):
        assert self.queue(10).size == 50
        assert self.queue(1).size == 8

    def test_it_follows_service_time_and_slots_only(self):
        queue = self.queue()
        self.complete(queue, 0.05, 1.0, 30)
        assert abs(queue.size - 20) <= 2
        before = queue.size
        for moment in range(100):
            queue.waited(5.0, 31.0 + moment / 10)
        assert queue.size == before
        self.complete(queue, 0.05, 41.0, 10)
        assert queue.size == before
        assert queue.resize(20) == pytest.approx(2 * before, abs=3)

    def test_one_odd_second_changes_little(self):
        queue = self.queue()
        self.complete(queue, 0.02, 1.0, 5)
        self.complete(queue, 0.08, 6.0, 1.05)
        assert 40 < queue.size < 50

    def test_small_differences_change_nothing(self):
        queue = self.queue()
        self.complete(queue, 0.02, 1.0, 5)
        assert queue.size == 50
        self.complete(queue, 0.0205, 6.0, 30)
        assert queue.size == 50

    def test_few_calls_have_a_longer_window(self):
        queue = self.queue()
        for moment in range(0, 40, 4):
            queue.completed(0.2, float(moment))
        assert queue.size < 20

    def test_after_a_minute_without_calls_it_begins_again(self):
        queue = self.queue()
        self.complete(queue, 0.2, 1.0, 30)
        assert queue.size < 10
        assert queue.size_at(80.0) < 10
        assert queue.size_at(100.0) == 50

    def test_little_predicts_how_many_wait(self):
        queue = self.queue()
        for moment in range(0, 210):
            queue.waited(0.1, 100.0 + moment / 10)  # 10 per second, for 100 ms each
        assert queue.predicted(120.95) == pytest.approx(1.0, rel=0.05)
        assert queue.predicted(200.0) == 0.0


QUEUE_MUTANTS = [
    Mutant(
        "arrivals count, not what slots complete",
        "        self._waited_s += wait_s\n",
        "        self._waited_s += wait_s\n        self._calls += 1\n",
    ),
    Mutant("one slot is all slots", "int(self._limit * self._rate", "int(self._rate"),
    Mutant("it never shrinks", "if abs(away) > max(", "if away > max("),
    Mutant("only the last measurement counts", "if not self._rate else self._rate +", "if True else 0 +"),
    Mutant("it follows every measurement", "DEAD_BAND = 0.10", "DEAD_BAND = 0.0"),
    Mutant(
        "the size grows with waits",
        "        self._waited_s += wait_s\n",
        "        self._waited_s += wait_s\n        self.size += wait_s > self.target_s\n",
    ),
    Mutant("figures of an idle time count", "IDLE_S = 60.0", "IDLE_S = 6000.0"),
]


def examples(module: ModuleType) -> None:
    """The examples of this file, with the classes of a module that has a bug."""
    holder = TestSize()
    holder.queue = lambda limit=10: _resized(module.AdaptiveQueue(0.1, 0.02), limit)  # type: ignore[method-assign]
    for name in dir(holder):
        if name.startswith("test_"):
            getattr(holder, name)()


def _resized(queue: AdaptiveQueue, limit: int) -> AdaptiveQueue:
    queue.resize(limit)
    return queue


@pytest.mark.mutants
@pytest.mark.parametrize("mutant", QUEUE_MUTANTS, ids=lambda mutant: mutant.name)
def test_every_mutant_of_the_size_is_noticed(mutant: Mutant):
    with pytest.raises(AssertionError):
        examples(mutated(adaptive_queue, mutant))


OVERLOAD = 750.0


def slower_at_last(passed: float) -> float:
    return 0.02 if passed < 8 else 0.1


def test_a_bulkhead_that_lets_old_calls_wait_is_noticed():
    """Calls that wait when the service becomes slower are refused after twice the target."""
    old = "return min(timeout_s, 2 * self.settings.target_wait_ms / 1000)"
    wrong = mutated(bulkhead, Mutant("no call is too old", old, "return timeout_s"))
    story = run_virtually(traffic(12, lambda _: OVERLOAD, slower_at_last))
    assert quantile(1 - 1e-9, story) <= 0.2 + 1e-6
    story = run_virtually(traffic(12, lambda _: OVERLOAD, slower_at_last, module=wrong))
    assert quantile(1 - 1e-9, story) > 0.3


def test_a_measured_time_that_contains_waits_is_noticed():
    """It would shorten the queue as soon as calls wait."""
    old = "tier.adaptive.completed(busy_s, now)"
    wrong = mutated(bulkhead, Mutant("waits count", old, "tier.adaptive.completed(busy_s + 0.1, now)"))
    assert run_virtually(traffic(10, lambda _: OVERLOAD, normal))[-1].size > 44
    assert run_virtually(traffic(10, lambda _: OVERLOAD, normal, module=wrong))[-1].size < 20
