"""``admit.lua``: breakers, overrides, and cooldowns that a vendor asked for."""

import redis

from fuseboard.contract.policy import BreakerPolicy, Limit
from tests.agents.limit_kinds import window
from tests.agents.scripts import START_US, Store

MINUTE_US, HOUR_US = 60_000_000, 3_600_000_000


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

    def test_the_permit_of_a_call_that_runs_on_is_renewed_and_its_outcome_counts(self, limits: redis.Redis):
        store = self.tripped(self.store(limits))
        store.advance(2)
        lease_us = store.policy.probe_lease_ms * 1000
        probes = store.admit((store.policy.probes, 1))
        assert probes.verdict == "probes"
        tokens = [f"b{store.batches}.{number + 1}" for number in range(store.policy.probes)]
        for _ in range(5):
            store.now_us += lease_us - 1
            store.report(probes.generation, probes=tuple((token, lease_us) for token in tokens))
            assert store.admit().verdict == "probe_busy"
        assert store.breaker().successes == 0
        assert store.report(probes.generation, probes=((tokens[0], 2),)).change == "reopened"

    def test_a_permit_that_has_expired_is_not_renewed(self, limits: redis.Redis):
        store = self.tripped(self.store(limits))
        store.advance(2)
        lease_us = store.policy.probe_lease_ms * 1000
        probes = store.admit((store.policy.probes, 1))
        token = f"b{store.batches}.1"
        store.now_us += lease_us
        store.report(probes.generation, probes=((token, lease_us),))
        assert store.admit((store.policy.probes, 1)).granted == store.policy.probes

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

    def test_a_breaker_that_was_seen_at_rest_can_be_held(self, limits: redis.Redis):
        store = self.store(limits)
        assert [store.admit().verdict for _ in range(2)] == ["admits", "admits"]
        assert store.known[0]
        store.hold("forced_open", 10)
        assert store.admit().verdict == "forced_open"

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

    def test_an_expired_override_starts_a_new_generation_with_nothing_counted(self, limits: redis.Redis):
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

    def test_a_cooldown_is_obeyed_although_the_breaker_was_seen_closed(self, limits: redis.Redis):
        store = Store(limits, guarded=True)
        generation = [store.admit().generation for _ in range(2)][-1]
        assert store.known[1] == generation
        store.report(generation, cooldown_us=2_000_000)
        assert store.admit().verdict == "cooling_down"

    def test_the_longest_wish_counts(self, limits: redis.Redis):
        store = Store(limits, guarded=True)
        generation = store.admit().generation
        store.report(generation, cooldown_us=3_000_000)
        store.report(generation, cooldown_us=1_000_000)
        assert store.admit().wait_us == 3_000_000

    def test_one_pod_stops_the_fleet_for_a_minute_at_most(self, limits: redis.Redis):
        store = Store(limits, guarded=True)
        generation = store.admit().generation
        store.report(generation, cooldown_us=HOUR_US)
        assert store.admit().wait_us == MINUTE_US
        store.advance(60)
        assert store.admit().granted == 1, "the first call after it asks the vendor again"
        store.report(generation, cooldown_us=HOUR_US)
        assert store.admit().wait_us == MINUTE_US, "the same pod confirms nothing"

    def test_a_second_pod_confirms_the_time_that_both_ask_for(self, limits: redis.Redis):
        for mine, others, both in ((HOUR_US, 600_000_000, 600_000_000), (600_000_000, HOUR_US, 600_000_000)):
            limits.flushall()
            store = Store(limits, guarded=True)
            generation = store.admit().generation
            store.report(generation, cooldown_us=mine)
            store.report(generation, cooldown_us=others, server="web-2")
            assert store.admit().wait_us == both
            store.report(generation, cooldown_us=HOUR_US, server="web-3")
            assert store.admit().wait_us == HOUR_US

    def test_a_short_wish_of_a_second_pod_confirms_no_long_one(self, limits: redis.Redis):
        store = Store(limits, guarded=True)
        generation = store.admit().generation
        store.report(generation, cooldown_us=HOUR_US)
        store.report(generation, cooldown_us=1_000_000, server="web-2")
        assert store.admit().wait_us == MINUTE_US
        store.advance(90)
        store.report(generation, cooldown_us=HOUR_US, server="web-3")
        assert store.admit().wait_us == HOUR_US - 90_000_000, "the claim of the first pod is remembered"

    def test_a_probe_confirms_the_claim_of_its_own_pod(self, limits: redis.Redis):
        # A probe that ended, one whose permit has expired, and one that is renewed.
        cases = ((0, 200, 60, True), (0, 60, 61, False), (2000, 200, 60, False))
        for outcome, lease_s, after_s, confirms in cases:
            limits.flushall()
            store = Store(limits, policy=BreakerPolicy(probe_lease_ms=lease_s * 1000), guarded=True)
            limits.set("{d}:breaker", f"open 5 {store.now_us} {store.now_us} 0 0 ratio")
            store.advance(1)
            permit = store.admit()
            assert permit.verdict == "probes"
            store.report(permit.generation, cooldown_us=HOUR_US)
            store.advance(after_s)
            token = f"b{store.batches}.1"
            store.report(permit.generation, cooldown_us=HOUR_US, probes=((token, outcome),))
            left_us = HOUR_US - after_s * 1_000_000 if confirms else MINUTE_US
            assert int(limits.get("{d}:cooldown") or 0) - store.now_us == left_us

    def test_garbage_is_no_claim(self, limits: redis.Redis):
        for text in ("x", "-1 web-2", "9", f"{START_US + 10**13} web-2"):
            store = Store(limits, guarded=True)
            limits.set("{d}:cooldown_claim", text)
            store.report(store.admit().generation, cooldown_us=HOUR_US)
            assert store.admit().wait_us == MINUTE_US, text
            limits.flushall()
        limits.hset("{d}:cooldown_claim", "field", "value")
        store = Store(limits, guarded=True)
        store.report(store.admit().generation, cooldown_us=HOUR_US)
        assert store.admit().wait_us == MINUTE_US

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
