"""The scripts that correct counters: slots, costs that were estimated, and what pods spent without Redis."""

import redis
from msgspec.structs import replace

from fuseboard.contract.calendar_period import period_around
from fuseboard.contract.words import FailurePolicy, Period
from tests.agents.limit_kinds import bucket, daily, slots, window
from tests.agents.scripts import Group, Store


def left_after(store: Store, seconds: float) -> int:
    """What is left so much later, if no call is made before."""
    began = store.now_us
    store.advance(seconds)
    # A call that does not fit spends nothing.
    left = store.admit((1, 10**6)).left[0]
    store.now_us = began
    return left


class TestCalendar:
    """Fixed windows: the period is worked out by who asks, and checked by the clock of Redis."""

    def test_all_of_it_may_be_spent_in_one_period(self, limits: redis.Redis):
        store = Store(limits, [daily(100)])
        assert store.admit((150, 1)).granted == 100
        refused = store.admit()
        began, ends = period_around(store.now_us, Period.DAY, "UTC")
        assert refused.groups[0].wait_us == ends - store.now_us
        store.now_us = ends - 1
        assert store.admit().granted == 0
        store.now_us = ends
        assert store.admit((150, 1)).granted == 100
        assert began < ends

    def test_a_period_that_is_not_now_decides_nothing(self, limits: redis.Redis):
        store = Store(limits, [daily(100)])
        asked_at = store.now_us
        store.advance(2 * 86_400)
        assert store.admit(period_at=asked_at).verdict == "late"
        assert store.contents() == {}


class TestConcurrency:
    def test_so_many_at_once_and_no_more(self, limits: redis.Redis):
        store = Store(limits, [slots(3)])
        assert store.admit((5, 1)).granted == 3
        assert store.admit().groups[0] == Group(granted=0, blocked=1, wait_us=1_000_000)

    def test_a_slot_is_free_when_its_call_has_ended(self, limits: redis.Redis):
        store = Store(limits, [slots(3)])
        store.admit((3, 1))
        store.settle(tokens=("b1.2",))
        assert store.admit((3, 1)).granted == 1

    def test_freeing_a_slot_repairs_a_key_of_another_type(self, limits: redis.Redis):
        store = Store(limits, [slots(3)])
        limits.set(store.limit_key(store.limits[0]), "text")
        store.settle(tokens=("b1.1",))
        assert store.admit((9, 1)).granted == 3

    def test_a_dead_server_frees_its_slots_with_their_leases(self, limits: redis.Redis):
        store = Store(limits, [slots(3)])
        store.admit((3, 1))
        store.advance(0.999)
        assert store.admit().granted == 0
        store.advance(0.001)
        assert store.admit((5, 1)).granted == 3

    def test_a_slot_freed_twice_is_one_slot(self, limits: redis.Redis):
        store = Store(limits, [slots(3)])
        store.admit((3, 1))
        for _ in range(3):
            store.settle(tokens=("b1.1", "b1.1", "never.given"))
        assert store.admit((3, 1)).granted == 1


class TestSettling:
    def test_the_real_cost_replaces_the_estimate(self, limits: redis.Redis):
        for limit in (window(100), bucket(100, 100), daily(100)):
            limits.flushall()
            store = Store(limits, [limit])
            store.admit((1, 40))
            store.settle(amount=20)
            assert store.admit((50, 1)).granted == 40, limit.name
            store.settle(amount=-10)
            assert store.admit((50, 1)).granted == 10, limit.name

    def test_what_was_really_spent_counts_beyond_the_limit(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        store.admit()
        store.settle(amount=100)
        assert store.admit().granted == 0

    def test_a_refund_belongs_to_where_it_was_spent(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        store.admit((4, 1))
        spent_at = store.now_us
        store.advance(0.5)
        store.admit((4, 1))
        store.settle(amount=-100, at=spent_at)
        assert store.admit((10, 1)).granted == 6

    def test_a_refund_out_of_the_window_gives_nothing(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        spent_at = store.now_us
        store.advance(5)
        store.admit((10, 1))
        store.settle(amount=-10, at=spent_at)
        assert store.admit().granted == 0

    def test_a_bucket_gives_nothing_back_to_a_call_that_left_the_window(self, limits: redis.Redis):
        store = Store(limits, [bucket(10, 20)])
        store.admit((20, 1))
        spent_at = store.now_us
        store.advance(2)
        store.admit((20, 1))
        store.settle(amount=-20, at=spent_at)
        assert store.admit().granted == 0
        store.settle(amount=-5)
        assert store.admit((20, 1)).granted == 5

    def test_a_cost_of_many_times_the_limit_keeps_the_bucket_empty(self, limits: redis.Redis):
        for amount in (50, 10**12):
            limits.flushall()
            store = Store(limits, [bucket(10, 5)])
            store.admit()
            for _ in range(3):
                store.settle(amount=amount)
            store.advance(0.9)
            assert store.admit().granted == 0, amount
            store.advance(0.2)
            assert store.admit((5, 1)).granted == 1, amount

    def test_a_bucket_never_holds_more_than_its_burst(self, limits: redis.Redis):
        store = Store(limits, [bucket(10, 5)])
        store.admit()
        store.settle(amount=-100)
        assert store.admit((10, 1)).granted == 5


class TestWhatAVendorHasLeft:
    """Others use the same key: what they have spent is charged here."""

    def test_no_more_is_left_here_than_the_vendor_has(self, limits: redis.Redis):
        for limit in (window(100), bucket(100, 100)):
            limits.flushall()
            store = Store(limits, [limit])
            store.admit((10, 1))
            for _ in range(2):  # another pod reports the same
                store.settle(most=30)
            assert store.admit().left == [29], limit.name

    def test_a_vendor_that_has_more_changes_nothing(self, limits: redis.Redis):
        for limit in (window(100), bucket(100, 100)):
            limits.flushall()
            store = Store(limits, [limit])
            store.admit((60, 1))
            before = store.contents()
            for most in (90, 40):
                store.settle(most=most)
                assert store.contents() == before, (limit.name, most)

    def test_what_others_have_spent_is_returned_once(self, limits: redis.Redis):
        # The limits are per minute: a key expires in real time, which must not end within this test.
        for limit in (window(100, 60), bucket(100, 100, seconds=60)):
            limits.flushall()
            store = Store(limits, [limit])
            store.admit((10, 1))
            assert store.settle(most=30) == [30, 60], limit.name
            assert store.settle(most=30) == [30, 0], "another pod reports the same"
            assert store.settle(amount=5) == [25, 0]

    def test_it_comes_back_as_evenly_as_the_limit_refills(self, limits: redis.Redis):
        store = Store(limits, [window(100, 10)])
        store.admit()
        store.settle(most=0)
        assert [left_after(store, seconds) for seconds in range(12)] == [*range(0, 100, 10), 99, 100]

    def test_what_was_spent_here_stays_spent(self, limits: redis.Redis):
        store = Store(limits, [window(100, 10)])
        store.admit((60, 1))
        store.settle(most=0)
        assert [left_after(store, seconds) for seconds in range(12)] == [0, 10, 20, 30] + [40] * 7 + [100]

    def test_a_bucket_refills_from_there(self, limits: redis.Redis):
        store = Store(limits, [bucket(100, 50, seconds=10)])
        store.settle(most=20)
        assert store.admit((100, 1)).granted == 20
        store.advance(1)
        assert store.admit((100, 1)).granted == 10

    def test_budgets_and_slots_keep_their_own_books(self, limits: redis.Redis):
        for limit in (daily(10), slots(10)):
            limits.flushall()
            store = Store(limits, [limit])
            store.admit()
            before = store.contents()
            store.settle(most=3)
            assert store.contents() == before, limit.algorithm

    def test_a_window_that_may_be_lost_is_not_written(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        store.settle(most=3)
        assert store.contents() == {}

    def test_a_counter_of_another_rule_stays_as_it_is(self, limits: redis.Redis):
        for stored, asked in ((bucket(10, 10, name="vendor"), window(10)), (window(10), bucket(10, 10))):
            limits.flushall()
            store = Store(limits, [stored])
            store.admit()
            before = store.contents()
            store.settle(most=3, limit=asked)
            assert store.contents() == before, asked.algorithm


class TestReports:
    """A pod reports what it spent alone while it had no Redis."""

    def test_a_report_counts_once_however_often_it_arrives(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        store.admit((2, 1))
        store.drain(3, "first")
        store.drain(3, "first")
        assert store.admit().left == [4]
        store.drain(1, "second")
        assert store.admit().left == [2]
        assert limits.hget("{d}:totals", "field") == b"4"


class TestRamps:
    """A pod that comes back from an outage asks for a part of each limit. The counter is of all of it."""

    def test_what_a_bucket_owes_outlives_a_question_for_a_part_of_it(self, limits: redis.Redis):
        for limit in (bucket(100, 100, seconds=60), bucket(100, 10, seconds=60), bucket(10, 100, seconds=60)):
            limits.flushall()
            store = Store(limits, [limit])
            store.admit()
            store.settle(amount=60)
            before = store.admit((1, 10**6)).left, left_after(store, 30), left_after(store, 90)
            for part in (0.1, 0.5, 0.1):
                store.part = part
                assert store.admit().granted == 0, limit
                store.settle(amount=0)
            store.part = 1.0
            assert (store.admit((1, 10**6)).left, left_after(store, 30), left_after(store, 90)) == before, (
                limit
            )

    def test_a_cost_that_a_pod_reports_in_a_ramp_is_charged_as_a_whole(self, limits: redis.Redis):
        for limit in (window(100, 60), bucket(100, 100, seconds=60)):
            limits.flushall()
            store = Store(limits, [limit])
            store.admit()
            store.part = 0.1
            store.settle(amount=79)
            assert store.admit().granted == 0, limit.name
            store.part = 1.0
            assert store.admit((100, 1)).granted == 20, limit.name

    def test_a_call_of_a_rare_limit_is_given_back_in_a_ramp(self, limits: redis.Redis):
        store = Store(limits, [bucket(5, 10, seconds=60)])
        store.admit((10, 1))
        spent_at = store.now_us
        store.advance(100)
        store.admit((8, 1))
        store.part = 0.1
        store.settle(amount=-3, at=spent_at)
        store.part = 1.0
        assert store.admit((10, 1)).granted == 3

    def test_a_bucket_that_cannot_be_read_in_a_ramp_is_spent_as_a_whole(self, limits: redis.Redis):
        for limit in (window(10, 60), bucket(10, 10, seconds=60), daily(10)):
            limits.flushall()
            store = Store(limits, [replace(limit, failure_policy=FailurePolicy.FAIL_CLOSED)])
            limits.set(store.limit_key(limit), "garbage")
            store.part = 0.1
            assert store.admit().granted == 0, limit.algorithm
            store.part = 1.0
            assert store.admit().granted == 0, limit.algorithm

    def test_a_call_that_is_refused_in_a_ramp_waits_for_what_the_whole_limit_has_to_pay(
        self, limits: redis.Redis
    ):
        store = Store(limits, [bucket(100, 100, seconds=60)])
        store.admit((50, 1))
        store.part = 0.1
        assert store.admit().groups[0].wait_us == 30_000_000
        limits.flushall()
        store.admit((10, 1))
        assert store.admit().groups[0].wait_us == 6_000_000, "a tenth of the limit pays what it owes"

    def test_a_call_that_is_larger_than_its_part_in_a_ramp_does_not_ask_again_at_once(
        self, limits: redis.Redis
    ):
        store = Store(limits, [bucket(100, 100, seconds=60)])
        store.part = 0.1
        assert store.admit((1, 50)).groups[0].wait_us == 30_000_000, "as long as the whole limit pays for it"
        assert store.contents() == {}
