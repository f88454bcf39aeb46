"""``admit.lua`` on a real server, in virtual time: what it admits, refuses and leaves alone."""

import pytest
import redis

from fuseboard.admission.calendar import period_around
from fuseboard.contract.policy import BreakerPolicy, Limit
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from tests.agents.scripts import START_US, Group, Store


def window(limit: int, seconds: float = 1.0, name: str = "vendor", **more) -> Limit:
    ms = int(seconds * 1000)
    return Limit(name=name, limit=limit, window_ms=ms, algorithm=Algorithm.SLIDING_WINDOW, **more)


def slots(limit: int, seconds: float = 1.0, **more) -> Limit:
    ms = int(seconds * 1000)
    return Limit(name="slots", limit=limit, window_ms=ms, algorithm=Algorithm.CONCURRENCY, **more)


def daily(limit: int, **more) -> Limit:
    return Limit(
        name="daily",
        limit=limit,
        window_ms=86_400_000,
        algorithm=Algorithm.FIXED_WINDOW,
        period=Period.DAY,
        **more,
    )


def bucket(
    limit: int, burst: int | None = None, seconds: float = 1.0, name: str = "requests", **more
) -> Limit:
    burst = limit if burst is None else burst
    return Limit(name=name, limit=limit, window_ms=int(seconds * 1000), burst=burst, **more)


def test_a_window_admits_its_limit_and_says_exactly_when_there_is_room_again(limits: redis.Redis):
    store = Store(limits, [window(5)])
    assert store.admit((7, 1)).groups == [Group(granted=5, blocked=1, wait_us=1_100_000)]
    store.now_us += 1_100_000 - 1
    assert store.admit().granted == 0
    store.now_us += 1
    assert store.admit((7, 1)).granted == 5


def test_a_refusal_leaves_every_key_byte_for_byte(limits: redis.Redis):
    store = Store(limits, [window(2), bucket(100, 50)])
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


class TestUnreadable:
    """A counter that cannot be read is decided by the failure policy of its limit, and heals."""

    @pytest.mark.parametrize("make", [window, bucket])
    def test_a_strict_limit_counts_it_as_spent_for_one_window(self, limits: redis.Redis, make):
        store = Store(limits, [make(5, failure_policy=FailurePolicy.FAIL_CLOSED)])
        key = store.limit_key(store.limits[0])
        for poison in (b"garbage", b"\xc1\xc1", b"-1 -1 -1 -1", b"1 2 3", b""):
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
            limits.rpush(store.limit_key(store.limits[0]), "a list")
            assert store.admit((9, 1)).granted == granted
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


class TestSharing:
    """Groups of one class share what is scarce; a more important class is served first."""

    def test_what_is_scarce_is_shared_evenly(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        assert [group.granted for group in store.admit((100, 1), (100, 1)).groups] == [5, 5]

    def test_what_a_modest_group_leaves_goes_to_the_others(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        assert [group.granted for group in store.admit((100, 1), (2, 1), (100, 1)).groups] == [4, 2, 4]

    def test_the_odd_one_goes_to_whoever_came_first(self, limits: redis.Redis):
        store = Store(limits, [window(5)])
        assert [group.granted for group in store.admit((3, 1), (3, 1)).groups] == [3, 2]
        assert store.admit().granted == 0

    def test_a_more_important_class_is_served_whole_before_another(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        granted = [group.granted for group in store.admit((8, 1), (8, 1), classes=(90, 10)).groups]
        assert granted == [8, 2]

    def test_probes_are_shared_too(self, limits: redis.Redis):
        store = Store(limits, policy=BreakerPolicy(probes=4), guarded=True)
        limits.set("{d}:breaker", "half_open 5 0 1 0 0 test")
        assert [group.granted for group in store.admit((9, 1), (9, 1)).groups] == [2, 2]


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

    def test_a_bucket_never_holds_more_than_its_burst(self, limits: redis.Redis):
        store = Store(limits, [bucket(10, 5)])
        store.admit()
        store.settle(amount=-100)
        assert store.admit((10, 1)).granted == 5


class TestQuiet:
    """A vendor that asked to be left alone, and one that has just come back."""

    def test_the_whole_fleet_is_quiet_until_its_time(self, limits: redis.Redis):
        store = Store(limits, guarded=True)
        generation = store.admit().generation
        store.report(generation, cooldown_us=2_000_000)
        quiet = store.admit()
        assert (quiet.verdict, quiet.granted, quiet.wait_us) == ("cooling_down", 0, 2_000_000)
        store.advance(2)
        assert store.admit().granted == 1

    def test_the_longest_wish_counts(self, limits: redis.Redis):
        store = Store(limits, guarded=True)
        generation = store.admit().generation
        store.report(generation, cooldown_us=3_000_000)
        store.report(generation, cooldown_us=1_000_000)
        assert store.admit().wait_us == 3_000_000

    def test_the_wish_of_an_old_call_counts_too(self, limits: redis.Redis):
        store = Store(limits, guarded=True)
        store.admit()
        assert store.report(5, cooldown_us=1_000_000).change == "stale"
        assert store.admit().verdict == "cooling_down"

    def test_a_time_beyond_reason_is_garbage(self, limits: redis.Redis):
        store = Store(limits, guarded=True)
        for text in ("x", "-1", str(START_US + 10**13)):
            limits.set("{d}:cooldown", text)
            assert store.admit().verdict == "admits", text

    def test_after_closing_traffic_grows_back(self, limits: redis.Redis):
        store = Store(limits, policy=BreakerPolicy(slow_start_ms=10_000), guarded=True)
        limits.set("{d}:breaker", f"closed 5 0 {START_US} 0 0 probes_passed")
        passed = []
        for _ in range(4):
            passed.append(store.admit((100, 1)).granted)
            store.advance(3.4)
        assert passed[0] == 10
        assert passed == sorted(passed)
        assert passed[-1] == 100

    def test_a_single_caller_passes_in_its_turn(self, limits: redis.Redis):
        store = Store(limits, policy=BreakerPolicy(slow_start_ms=1_000_000), guarded=True)
        limits.set("{d}:breaker", f"closed 5 0 {START_US} 0 0 probes_passed")
        passed = 0
        for _ in range(1000):
            store.now_us += 7
            passed += store.admit().granted
        assert 80 <= passed <= 120


def test_keys_expire_when_they_say_nothing_any_more(limits: redis.Redis):
    store = Store(limits, [window(5, seconds=2), bucket(5, 5, seconds=2)])
    store.admit()
    assert 2200 <= limits.pttl("{d}:limit:vendor") <= 2400
    assert 300 <= limits.pttl("{d}:limit:requests") <= 402


class TestBreaker:
    policy = BreakerPolicy(probes=2, probe_lease_ms=1000, open_ms=2000, open_max_ms=8000)

    def store(self, limits: redis.Redis, *vendor: Limit) -> Store:
        return Store(limits, list(vendor), policy=self.policy, guarded=True)

    def tripped(self, store: Store) -> Store:
        generation = store.admit().generation
        assert store.report(generation, failure=5).change == "tripped"
        return store

    def test_a_new_breaker_is_closed_and_gets_a_generation(self, limits: redis.Redis):
        store = self.store(limits)
        assert store.admit().verdict == "admits"
        assert store.breaker().generation == START_US

    def test_an_open_breaker_refuses_and_changes_nothing(self, limits: redis.Redis):
        store = self.tripped(self.store(limits, window(5)))
        before = store.contents()
        refused = store.admit((3, 1))
        assert (refused.verdict, refused.granted, refused.wait_us) == ("open", 0, 2_000_000)
        assert store.contents() == before

    def test_when_its_time_is_over_the_first_callers_are_the_probes(self, limits: redis.Redis):
        store = self.tripped(self.store(limits))
        store.advance(2)
        probing = store.admit((5, 1))
        assert (probing.verdict, probing.granted) == ("probes", 2)
        assert probing.groups[0].blocked == -1
        assert set(store.breaker().permits) == {"b2.1", "b2.2"}
        busy = store.admit()
        assert (busy.verdict, busy.granted, busy.wait_us) == ("probe_busy", 0, 1_000_000)

    def test_a_probe_that_died_frees_its_slot_with_its_lease(self, limits: redis.Redis):
        store = self.tripped(self.store(limits))
        store.advance(2)
        store.admit((2, 1))
        store.advance(0.5)
        assert store.admit().granted == 0
        store.advance(0.5)
        assert store.admit((5, 1)).granted == 2

    def test_asking_does_not_prolong_a_lease(self, limits: redis.Redis):
        store = self.tripped(self.store(limits))
        store.advance(2)
        store.admit((2, 1))
        for _ in range(10):
            store.advance(0.1)
            store.admit()
        assert store.breaker().permits

    def test_a_limit_that_refuses_takes_no_permit(self, limits: redis.Redis):
        store = self.tripped(self.store(limits, window(1)))
        store.advance(2)
        store.limits = [window(1)]
        assert store.admit((2, 1)).granted == 1
        assert len(store.breaker().permits) == 1

    def test_no_content_of_the_key_can_leave_it_stuck(self, limits: redis.Redis):
        far = START_US + 10**15
        contents = [
            f"open 5 {far} 1 1 0 ratio",
            f"open 5 {far} {far} 1 0 ratio",
            f"open {far} {far} {far} 99 0 forced",
            f"half_open 5 0 1 0 0 x a={far} b={far} c={far}",
            "half_open 5 0 1 0 0 x a=1 b=2",
            "half-open 5 0 1 0 0 x",
            "open",
            "",
            "nil",
            "closed 1e99 nan inf 0 0 x",
        ]
        for text in contents:
            limits.flushall()
            store = self.store(limits)
            limits.set("{d}:breaker", text)
            reached = False
            for _ in range(8):
                admitted = store.admit()
                if admitted.verdict == "admits" and admitted.granted:
                    reached = True
                    break
                if admitted.granted:
                    token = next(iter(store.breaker().permits))
                    store.report(admitted.generation, probes=((token, 1),))
                store.advance(2.2)
            assert reached, text

    def test_a_key_of_another_type_is_no_breaker(self, limits: redis.Redis):
        store = self.store(limits)
        for key in Store.GUARD:
            limits.sadd(key, "poison")
        generation = store.admit().generation
        assert store.report(generation, failure=5).change == "tripped"
        assert store.admit().verdict == "open"

    def test_the_history_records_each_transition_once(self, limits: redis.Redis):
        store = self.tripped(self.store(limits))
        store.advance(2)
        probing = store.admit((2, 1), server="web-7")
        store.report(probing.generation, probes=(("b2.1", 1), ("b2.2", 1)))
        moves = [(e[b"from"], e[b"to"], e[b"cause"]) for _, e in limits.xrange("{d}:transitions")]
        assert moves == [
            (b"closed", b"open", b"consecutive"),
            (b"open", b"half_open", b"open_time_over"),
            (b"half_open", b"closed", b"probes_passed"),
        ]


class TestOverride:
    def store(self, limits: redis.Redis) -> Store:
        return Store(limits, [window(5)], policy=TestBreaker.policy, guarded=True)

    def test_forced_open_refuses_until_it_expires(self, limits: redis.Redis):
        store = self.store(limits)
        store.hold("forced_open", 10)
        refused = store.admit()
        assert (refused.verdict, refused.granted, refused.wait_us) == ("forced_open", 0, 10_000_000)

    def test_the_other_modes_admit_through_an_open_breaker_but_keep_the_vendor_limit(
        self, limits: redis.Redis
    ):
        for mode in ("forced_closed", "metrics_only", "disabled"):
            limits.flushall()
            store = self.store(limits)
            store.report(store.admit().generation, failure=5)
            store.hold(mode, 10)
            admitted = store.admit((9, 1))
            assert (admitted.verdict, admitted.granted) == ("bypass", 4), mode

    def test_a_hold_that_ends_by_itself_starts_a_new_generation_with_nothing_counted(
        self, limits: redis.Redis
    ):
        store = self.store(limits)
        before = store.admit().generation
        store.report(before, failure=4)
        store.hold("forced_closed", 1)
        store.advance(2)
        after = store.admit()
        assert after.generation > before
        assert store.report(before, failure=1).change == "stale"
        assert store.report(after.generation, failure=4).consecutive == 4

    def test_garbage_is_no_override(self, limits: redis.Redis):
        store = self.store(limits)
        for text in ("forced_open", "forced_open x 1", "open 9 9", ""):
            limits.set("{d}:override", text)
            assert store.admit(server="w").verdict == "admits", text
