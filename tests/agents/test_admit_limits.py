"""``admit.lua`` on a real server, in virtual time: what limits admit, refuse and leave unchanged."""

import struct

import pytest
import redis

from fuseboard.contract.words import FailurePolicy
from tests.agents.limit_kinds import bucket, daily, slots, window
from tests.agents.scripts import START_US, Group, Store


def test_a_window_admits_its_limit_and_says_exactly_when_there_is_room_again(limits: redis.Redis):
    store = Store(limits, [window(5)])
    assert store.admit((7, 1)).groups == [Group(granted=5, blocked=1, wait_us=1_100_000)]
    store.now_us += 1_100_000 - 1
    assert store.admit().granted == 0
    store.now_us += 1
    assert store.admit((7, 1)).granted == 5


def test_a_refusal_leaves_every_key_byte_for_byte(limits: redis.Redis):
    # Long: the keys expire in real time, and a pause of the machine must not outlast them.
    store = Store(limits, [window(2, 600.0), bucket(100, 50, 600.0)])
    store.admit((2, 1))
    before = store.contents()
    refused = store.admit((3, 1))
    assert refused.granted == 0
    assert refused.groups[0].blocked == 1
    assert store.contents() == before


def test_a_call_spends_from_every_limit_or_from_none(limits: redis.Redis):
    tight, wide = bucket(1, 1, name="tight"), bucket(100, 50, name="wide")
    store = Store(limits, [tight, wide])
    first = store.admit((10, 1))
    assert first.groups[0].granted == 1
    assert first.groups[0].blocked == 1
    assert first.left == [0, 49]


def test_a_bucket_is_exact_over_a_rate_that_does_not_divide_the_second(limits: redis.Redis):
    store = Store(limits, [bucket(7, 3)])
    assert store.admit((5, 1)).granted == 3
    admitted = 0
    for _ in range(70):
        store.advance(0.1)
        admitted += store.admit((5, 1)).granted
    assert admitted == 49  # seven seconds at seven a second, none lost to rounding


def test_the_longest_wait_of_several_limits_counts(limits: redis.Redis):
    for order in ([window(3, 60), bucket(3)], [bucket(3), window(3, 60)]):
        limits.flushall()
        store = Store(limits, order)
        store.admit((3, 1))
        group = store.admit().groups[0]
        assert store.limits[group.blocked - 1].name == "vendor"
        assert group.wait_us > 50_000_000


def test_the_wait_of_a_bucket_is_sufficient_and_minimal(limits: redis.Redis):
    store = Store(limits, [bucket(7, 3)])
    wait_us = store.admit((4, 1)).groups[0].wait_us
    store.now_us += wait_us - 1
    assert store.admit().granted == 0
    store.now_us += 1
    assert store.admit().granted == 1


def test_a_raised_limit_counts_from_the_next_decision_and_keeps_what_was_spent(limits: redis.Redis):
    store = Store(limits, [bucket(1, 10, seconds=60)])
    assert store.admit((20, 1)).granted == 10
    store.limits = [bucket(1000, 100, seconds=60)]
    assert store.admit((200, 1)).granted == 90
    store.limits = [bucket(1, 10, seconds=60)]
    assert store.admit().granted == 0


def test_a_changed_window_keeps_what_was_spent(limits: redis.Redis):
    store = Store(limits, [window(10, seconds=1)])
    store.admit((8, 1))
    store.limits = [window(10, seconds=10)]
    assert store.admit((8, 1)).granted == 2


def test_costs_are_all_or_nothing_per_call(limits: redis.Redis):
    store = Store(limits, [window(10)])
    assert store.admit((3, 4)).groups[0].granted == 2
    assert store.admit((3, 1)).granted == 2


def test_a_shadow_limit_counts_but_never_refuses(limits: redis.Redis):
    store = Store(limits, [window(2, shadow=True), bucket(10, 10)])
    admitted = store.admit((5, 1))
    assert admitted.granted == 5
    assert admitted.shadow_refused == [3, 0]


def test_a_shadow_limit_does_not_refuse_when_another_does_either(limits: redis.Redis):
    store = Store(limits, [window(2, shadow=True), bucket(4)])
    assert store.admit((9, 1)).granted == 4


def test_a_batch_that_arrives_too_late_charges_nothing(limits: redis.Redis):
    store = Store(limits, [window(5)], guarded=True)
    assert store.admit(not_after=START_US - 1).verdict == "late"
    assert store.contents() == {}
    assert store.admit(not_after=START_US).granted == 1


def test_a_clock_that_steps_back_never_gives_a_window_twice(limits: redis.Redis):
    store = Store(limits, [window(5)])
    assert store.admit((5, 1)).granted == 5
    store.advance(-0.9)
    assert store.admit().granted == 0


def test_a_clock_that_jumped_ahead_and_back_frees_the_window_in_time(limits: redis.Redis):
    store = Store(limits, [window(5)])
    store.advance(3600)
    store.admit((5, 1))
    store.advance(-3600)
    assert store.admit().granted == 0
    store.advance(1.2)
    assert store.admit().granted == 1


def test_keys_expire_when_they_say_nothing_any_more(limits: redis.Redis):
    store = Store(limits, [window(5, seconds=2), bucket(5, 5, seconds=2)], expiring=True)
    store.admit()
    assert 2200 <= limits.pttl("{d}:limit:vendor") <= 2400
    assert 300 <= limits.pttl("{d}:limit:requests") <= 402


def test_an_idle_bucket_is_full_and_no_fuller(limits: redis.Redis):
    store = Store(limits, [bucket(10, burst=5)])
    for _ in range(3):
        store.advance(60)
        assert store.admit().left == [4]
    assert store.admit((9, 1)).granted == 4


class TestUnreadable:
    """A counter that cannot be read is decided by the failure policy of its limit, and heals."""

    @pytest.mark.parametrize("make", [window, bucket])
    def test_a_strict_limit_counts_it_as_spent_for_one_window(self, limits: redis.Redis, make):
        store = Store(limits, [make(5, failure_policy=FailurePolicy.FAIL_CLOSED)])
        key = store.limit_key(store.limits[0])
        does_not_add_up = struct.pack(">14d", 100_000, START_US // 100_000, 0, *[9] * 11)
        for poison in (b"garbage", b"\xc1\xc1", b"-1 -1 -1 -1", does_not_add_up, b"x" * 32, b""):
            limits.set(key, poison)
            poisoned = store.admit()
            assert (poisoned.granted, poisoned.unreadable) == (0, [1]), poison
            assert store.admit().unreadable == [0]
            store.advance(1.1)
            assert store.admit().granted == 1

    @pytest.mark.parametrize("make", [window, bucket])
    def test_one_that_fails_open_counts_it_as_unspent(self, limits: redis.Redis, make):
        store = Store(limits, [make(5)])
        limits.set(store.limit_key(store.limits[0]), b"garbage")
        poisoned = store.admit((5, 1))
        assert (poisoned.granted, poisoned.unreadable) == (5, [1])
        assert store.admit().granted == 0

    @pytest.mark.parametrize("make", [window, bucket])
    def test_a_key_of_another_type_cannot_be_read_either(self, limits: redis.Redis, make):
        for policy, granted in ((FailurePolicy.FAIL_CLOSED, 0), (FailurePolicy.FAIL_OPEN, 5)):
            limits.flushall()
            store = Store(limits, [make(5, failure_policy=policy)])
            for calls in (1, 9):
                limits.delete(store.limit_key(store.limits[0]))
                limits.rpush(store.limit_key(store.limits[0]), "a list")
                assert store.admit((calls, 1)).granted == min(calls, granted)
            assert store.admit().unreadable == [0]

    def test_slots_in_a_key_of_another_type(self, limits: redis.Redis):
        store = Store(limits, [slots(2, failure_policy=FailurePolicy.FAIL_CLOSED)])
        limits.set(store.limit_key(store.limits[0]), "text")
        assert store.admit().granted == 0
        assert store.admit((3, 1)).granted == 2

    def test_a_calendar_quota(self, limits: redis.Redis):
        store = Store(limits, [daily(5, failure_policy=FailurePolicy.FAIL_CLOSED)])
        limits.set(store.limit_key(store.limits[0]), "text")
        assert store.admit().granted == 0
