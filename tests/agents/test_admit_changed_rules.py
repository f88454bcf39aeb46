"""The scripts after an edit of a limit: what was spent stays spent.

``models/test_changed_rules.py`` tries every pair of rules.
"""

import struct

import pytest
import redis
from msgspec.structs import replace

from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from tests.agents.scripts import START_US, Store

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US

#: An hour before midnight in UTC.
EVENING_US = START_US // DAY_US * DAY_US + 23 * HOUR_US

BUCKET = Limit(
    name="changed", limit=10, burst=10, window_ms=3_600_000, failure_policy=FailurePolicy.FAIL_CLOSED
)
WINDOW = replace(BUCKET, burst=1, algorithm=Algorithm.SLIDING_WINDOW)
SLOTS = replace(WINDOW, algorithm=Algorithm.CONCURRENCY)
DAY = replace(WINDOW, algorithm=Algorithm.FIXED_WINDOW, period=Period.DAY)
MONTH = replace(DAY, period=Period.MONTH)
COUNTS = (BUCKET, WINDOW, DAY)


def left_after(store: Store, limit: Limit) -> int:
    """What is left under this rule after one more call."""
    store.limits = [limit]
    reply = store.admit()
    assert reply.unreadable == [0]
    return reply.left[0] if reply.granted else -1


@pytest.mark.parametrize("before", COUNTS)
@pytest.mark.parametrize("after", COUNTS)
def test_another_algorithm_takes_over_what_is_spent(limits: redis.Redis, before: Limit, after: Limit):
    store = Store(limits, [before], now_us=EVENING_US)
    assert store.admit((4, 1)).granted == 4
    assert left_after(store, after) == 5
    assert left_after(store, before) == 4


@pytest.mark.parametrize("before", [BUCKET, WINDOW])
def test_a_counter_is_taken_over_once(limits: redis.Redis, before: Limit):
    store = Store(limits, [before])
    store.admit((10, 1))
    store.limits = [replace(WINDOW, window_ms=60_000)]
    assert store.admit().groups[0].wait_us == 66_000_000 - store.now_us % 6_000_000
    store.now_us += 40_000_000
    assert store.admit().granted == 0
    store.now_us += 26_000_000
    assert store.admit().granted == 1


def test_a_window_keeps_the_times_of_its_calls(limits: redis.Redis):
    store = Store(limits, [WINDOW], now_us=EVENING_US)
    store.admit((3, 1))
    store.now_us += HOUR_US // 2
    store.admit((2, 1))
    # A quarter of an hour holds the last two, and one that has the rest of the hour holds all.
    assert left_after(store, replace(WINDOW, window_ms=900_000)) == 7
    store.limits = [WINDOW]
    assert left_after(store, replace(WINDOW, window_ms=3 * 3_600_000)) == 6


def test_what_has_left_the_old_window_is_not_taken_over(limits: redis.Redis):
    store = Store(limits, [WINDOW])
    store.admit((3, 1))
    store.now_us += HOUR_US // 10 * 9
    store.admit((2, 1))
    store.now_us += HOUR_US // 10 * 3
    assert left_after(store, replace(WINDOW, window_ms=3 * 3_600_000)) == 7


def test_a_bucket_refills_from_the_times_of_a_window(limits: redis.Redis):
    store = Store(limits, [WINDOW])
    store.admit((5, 1))
    # The sub-bucket lasts until here at the latest.
    store.now_us = (store.now_us // 360_000_000 + 1) * 360_000_000 - 1
    store.now_us += 2 * 360_000_000
    assert left_after(store, BUCKET) == 6


def test_a_bucket_owes_one_window_at_most(limits: redis.Redis):
    store = Store(limits, [replace(MONTH, limit=1000)])
    store.admit((900, 1))
    store.limits = [replace(BUCKET, burst=2)]
    assert store.admit().groups[0].wait_us == HOUR_US - 360_000_000
    store.now_us += HOUR_US - 360_000_000
    assert store.admit((2, 1)).granted == 1


def test_the_debt_of_a_bucket_is_not_rounded_up(limits: redis.Redis):
    store = Store(limits, [replace(DAY, limit=13)])
    store.admit((13, 1))
    store.limits = [replace(BUCKET, limit=11, burst=12)]  # 12 calls take 3,927,272,727.27 us
    assert store.admit().granted == 0
    assert left_after(store, replace(WINDOW, limit=13)) == 0


def test_a_lower_burst_does_not_forget(limits: redis.Redis):
    store = Store(limits, [BUCKET])
    store.admit((10, 1))
    store.limits = [replace(BUCKET, burst=1)]
    for _ in range(2):
        assert store.admit().groups[0].wait_us == HOUR_US


def test_a_changed_rate_is_exact(limits: redis.Redis):
    store = Store(limits, [replace(BUCKET, limit=7)])
    store.admit((5, 1))
    assert left_after(store, replace(BUCKET, limit=9, window_ms=7_000_000)) == 4


def test_a_day_counts_only_what_a_window_spent_in_it(limits: redis.Redis):
    store = Store(limits, [WINDOW], now_us=EVENING_US + HOUR_US // 2)
    store.admit((3, 1))
    store.now_us = EVENING_US + HOUR_US + 120_000_000
    store.admit((2, 1))
    assert left_after(store, DAY) == 7


class TestPeriods:
    """Of two periods that overlap, the new one counts all that the old one counts."""

    @pytest.mark.parametrize(
        "after", [MONTH, replace(DAY, period=Period.WEEK), replace(DAY, time_zone="Europe/Berlin")]
    )
    @pytest.mark.parametrize("there_and_back", [False, True])
    def test_overlap(self, limits: redis.Redis, after: Limit, there_and_back: bool):
        before, after = (after, DAY) if there_and_back else (DAY, after)
        store = Store(limits, [before], now_us=EVENING_US)
        store.admit((10, 1))
        assert left_after(store, after) == -1
        assert left_after(store, before) == -1

    def test_the_next_period_begins_again(self, limits: redis.Redis):
        store = Store(limits, [DAY], now_us=EVENING_US)
        store.admit((10, 1))
        store.now_us += HOUR_US
        assert left_after(store, DAY) == 9

    def test_an_hour_that_is_just_over_counts_in_its_day(self, limits: redis.Redis):
        store = Store(limits, [replace(DAY, period=Period.HOUR)], now_us=EVENING_US - HOUR_US)
        store.admit((10, 1))
        store.now_us += HOUR_US + 100_000
        assert left_after(store, DAY) == -1

    def test_a_period_that_is_over_does_not_count_in_another_one(self, limits: redis.Redis):
        store = Store(limits, [DAY], now_us=EVENING_US)
        store.admit((10, 1))
        store.now_us += HOUR_US
        assert left_after(store, replace(DAY, period=Period.HOUR)) == 9

    def test_a_period_after_this_one_does_not_count(self, limits: redis.Redis):
        store = Store(limits, [DAY], now_us=EVENING_US + HOUR_US)
        store.admit((10, 1))
        store.now_us -= 1
        assert left_after(store, DAY) == 9

    def test_too_large_a_number_is_garbage(self, limits: redis.Redis):
        store = Store(limits, [DAY])
        limits.set("{d}:limit:changed", f"{START_US} 99999999999999999999")
        assert store.admit().unreadable == [1]


class TestSlots:
    """Calls in progress have no amount in common with a rate: the other side begins again."""

    @pytest.mark.parametrize("before", COUNTS)
    def test_slots_start_empty(self, limits: redis.Redis, before: Limit):
        store = Store(limits, [before])
        store.admit((4, 1))
        assert left_after(store, SLOTS) == 9
        assert left_after(store, SLOTS) == 8

    @pytest.mark.parametrize("policy", [FailurePolicy.FAIL_CLOSED, FailurePolicy.FAIL_OPEN])
    @pytest.mark.parametrize("after", COUNTS)
    def test_counts_start_empty(self, limits: redis.Redis, after: Limit, policy: FailurePolicy):
        store = Store(limits, [replace(SLOTS, failure_policy=policy)])
        store.admit((4, 1))
        assert left_after(store, replace(after, failure_policy=policy)) == 9

    @pytest.mark.parametrize(("cost", "granted"), [(1, 10), (3, 3), (5, 2), (10, 1), (11, 0)])
    def test_a_call_occupies_as_many_slots_as_it_costs(self, limits: redis.Redis, cost: int, granted: int):
        store = Store(limits, [SLOTS])
        assert store.admit((12, cost)).granted == granted
        assert limits.zcard("{d}:limit:changed") == granted * cost


class TestCorrections:
    """A call is settled under the rule that charged it, which is not the one that counts now."""

    @pytest.mark.parametrize("before", [*COUNTS, SLOTS])
    @pytest.mark.parametrize("after", [*COUNTS, SLOTS])
    def test_it_leaves_the_counter_as_it_is(self, limits: redis.Redis, before: Limit, after: Limit):
        if before == after:
            return
        store = Store(limits, [before])
        charged_at = store.now_us
        store.admit((4, 1))
        left = left_after(store, after)
        kept = store.contents()
        store.settle(amount=0 if before == SLOTS else -3, at=charged_at, tokens=("b1.1",), limit=before)
        assert store.contents() == kept
        assert left_after(store, after) == left - 1

    @pytest.mark.parametrize("before", COUNTS)
    @pytest.mark.parametrize("after", COUNTS)
    def test_a_higher_cost_is_charged(self, limits: redis.Redis, before: Limit, after: Limit):
        store = Store(limits, [before])
        store.admit((2, 1))
        left = left_after(store, after)
        store.settle(amount=3, limit=before)
        assert left_after(store, after) == left - 4

    @pytest.mark.parametrize("before", COUNTS)
    def test_a_higher_cost_is_not_added_to_slots(self, limits: redis.Redis, before: Limit):
        store = Store(limits, [before])
        store.admit((2, 1))
        assert left_after(store, SLOTS) == 9
        store.settle(amount=3, limit=before)
        assert left_after(store, SLOTS) == 8

    def test_a_refund_finds_its_call_in_a_window_of_another_length(self, limits: redis.Redis):
        store = Store(limits, [WINDOW])
        charged_at = store.now_us
        store.admit((5, 1))
        longer = replace(WINDOW, window_ms=7_200_000)
        left = left_after(store, longer)
        store.settle(amount=-3, at=charged_at, limit=WINDOW)
        assert left_after(store, longer) == left + 2

    def test_a_refund_finds_its_call_before_another_pod_has_changed_the_counter(self, limits: redis.Redis):
        store = Store(limits, [DAY], now_us=EVENING_US)
        store.admit((5, 1))
        store.settle(amount=-3, limit=MONTH)
        assert left_after(store, MONTH) == 7

    def test_a_period_that_is_over_is_not_corrected(self, limits: redis.Redis):
        store = Store(limits, [DAY], now_us=EVENING_US)
        store.admit((5, 1))
        store.now_us += HOUR_US
        store.settle(amount=3)
        assert left_after(store, DAY) == 6

    def test_two_corrections_of_one_counter(self, limits: redis.Redis):
        store = Store(limits, [DAY])
        store.admit((5, 1))
        store.settle(amount=1)
        store.settle(amount=-2)
        assert left_after(store, DAY) == 5


@pytest.mark.parametrize("limit", [*COUNTS, SLOTS])
def test_garbage_is_still_garbage(limits: redis.Redis, limit: Limit):
    texts = (
        b"garbage",
        b"12 12 12",
        struct.pack(">4d", START_US, 11, 10, 1),
        struct.pack(">5d", 1, 1, 3, 1, 1),
        struct.pack(">5d", 1, 0.5, 2, 1, 1),
    )
    for text in texts:
        store = Store(limits, [limit])
        limits.set("{d}:limit:changed", text)
        assert store.admit().unreadable == [1], text
