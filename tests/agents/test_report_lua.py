"""``report.lua`` on a real server, in virtual time: what trips, closes and is ignored."""

import pytest
import redis
from msgspec.structs import replace

from fuseboard.contract.policy import BreakerPolicy
from tests.agents.scripts import Store

POLICY = BreakerPolicy(
    consecutive_failures=5,
    failure_percent=50,
    slow_percent=50,
    minimum_calls=10,
    window_s=10,
    open_ms=2000,
    open_max_ms=8000,
    probes=2,
    probe_lease_ms=1000,
    successes_to_close=2,
    minimum_servers=2,
)


@pytest.fixture
def store(limits: redis.Redis) -> Store:
    return Store(limits, policy=POLICY, guarded=True)


def open_again(store: Store) -> int:
    """Trip it, wait, and return the generation of the half-open state with two permits out."""
    store.report(store.admit().generation, failure=5)
    store.advance(store.breaker().until_us / 1e6 - store.now_us / 1e6 + 0.001)
    return store.admit((2, 1)).generation


def test_failures_of_all_servers_add_up(store: Store):
    generation = store.admit().generation
    for server in ("a", "b", "a", "b"):
        assert store.report(generation, failure=1, server=server).change == "none"
    assert store.report(generation, failure=1, server="a").change == "tripped"


def test_an_opening_is_published_with_its_length(store: Store):
    listener = store.client.pubsub(ignore_subscribe_messages=True)
    listener.subscribe("breakers")
    listener.get_message(timeout=20)
    generation = store.admit().generation
    store.report(generation, failure=4)
    assert store.report(generation, failure=1, server="b").change == "tripped"
    heard = listener.get_message(timeout=20)
    assert heard["data"] == b"payments %d 2000000" % store.breaker().generation
    assert listener.get_message() is None
    listener.close()


def figures_of_trip(store: Store, cause: str, *reports: dict[str, int]) -> list[int]:
    """What the newest transition says was counted, after pods a and b reported."""
    generation = store.admit().generation
    for server, outcomes in zip("ab", reports, strict=True):
        store.report(generation, server=server, **outcomes)
    [(_, entry)] = store.client.xrevrange("{d}:transitions", count=1)
    assert entry[b"cause"] == cause.encode()
    names = (b"calls", b"failures", b"slow", b"consecutive", b"threshold")
    return [int(entry[name]) for name in names]


def test_a_trip_by_failures_in_a_row_is_recorded_with_what_was_counted(store: Store):
    """S1.4: the counts are cleared by the trip, and nothing else says why the breaker opened."""
    assert figures_of_trip(store, "consecutive", {"failure": 4}, {"failure": 1}) == [5, 5, 0, 5, 5]


def test_a_trip_by_ratio_is_recorded_with_what_was_counted(store: Store):
    reports = ({"ok": 4, "failure": 4, "tail": 1}, {"ok": 1, "failure": 1, "tail": 0})
    assert figures_of_trip(store, "ratio", *reports) == [10, 5, 0, 0, 50]


def test_a_trip_by_slow_calls_is_recorded_with_what_was_counted(store: Store):
    assert figures_of_trip(store, "slow", {"ok": 4, "slow": 2}, {"ok": 1, "slow": 3}) == [10, 0, 5, 0, 50]


def test_other_transitions_have_no_figures(store: Store):
    open_again(store)
    newest = store.client.xrevrange("{d}:transitions")[0][1]
    assert (newest[b"to"], b"calls" in newest) == (b"half_open", False)


def test_a_success_between_ends_the_row_of_failures(store: Store):
    generation = store.admit().generation
    store.report(generation, failure=4, server="a")
    store.report(generation, ok=1, failure=1, tail=1, server="b")
    assert store.report(generation, failure=3, server="a").consecutive == 4
    assert store.breaker().state == "closed"


def test_a_slow_success_neither_ends_the_row_of_failures_nor_adds_to_it(store: Store):
    generation = store.admit().generation
    store.report(generation, failure=2, server="a")
    store.report(generation, slow=1, server="b")
    store.report(generation, failure=2, slow=1, tail=2, server="a")
    assert store.breaker().state == "closed"
    assert store.report(generation, failure=1, server="b").change == "tripped"
    assert store.breaker().cause == "consecutive"


def test_a_ratio_needs_enough_calls(store: Store):
    generation = store.admit().generation
    for _ in range(4):
        assert store.report(generation, ok=1, failure=1, tail=0, server="a").change == "none"
    assert store.report(generation, ok=1, failure=1, tail=0, server="b").change == "tripped"
    assert store.breaker().cause == "ratio"


def test_slow_calls_trip_it_too(store: Store):
    generation = store.admit().generation
    store.report(generation, ok=4, server="a", slow=2)
    assert store.report(generation, ok=1, slow=3, server="b").change == "tripped"
    assert store.breaker().cause == "slow"


def test_the_window_slides(store: Store):
    generation = store.admit().generation
    store.report(generation, ok=4, failure=4, tail=0, server="a")
    store.advance(10)
    assert store.report(generation, ok=1, failure=1, tail=0, server="b").calls == 2


#: Long, so that calls of a quiet dependency are not forgotten; judged by the last 20.
BY_CALLS = replace(POLICY, window_s=600, minimum_calls=10, window_calls=20)


def test_a_quiet_dependency_is_judged_by_its_last_calls(limits: redis.Redis):
    """An hour of traffic in ten seconds, and then one call in ten seconds: half of the last 20 fail."""

    def last_of(policy: BreakerPolicy) -> list[str]:
        limits.flushall()
        store = Store(limits, policy=policy, guarded=True)
        generation = store.admit().generation
        for server in "ab":
            store.report(generation, ok=500, server=server)
        changes = []
        for number in range(20):
            store.advance(10)
            bad = number >= 10
            changes.append(
                store.report(
                    generation, ok=int(not bad), failure=int(bad), tail=0, server="ab"[number % 2]
                ).change
            )
        return changes

    never = replace(BY_CALLS, window_calls=0)
    assert last_of(never) == ["none"] * 20
    assert last_of(BY_CALLS) == ["none"] * 19 + ["tripped"]


def test_a_busy_dependency_is_judged_by_its_newest_second(limits: redis.Redis):
    store = Store(limits, policy=BY_CALLS, guarded=True)
    generation = store.admit().generation
    store.report(generation, ok=90, failure=10, tail=0, server="a")
    store.advance(1)
    # Whole seconds: 100 calls in one of them are all judged.
    answer = store.report(generation, ok=60, failure=40, tail=0, server="b")
    assert (answer.change, answer.calls, answer.failures) == ("none", 100, 40)
    store.advance(1)
    answer = store.report(generation, ok=5, failure=5, tail=0, server="b")
    assert (answer.change, answer.calls, answer.failures) == ("none", 110, 45)
    answer = store.report(generation, ok=5, failure=5, tail=0, server="a")
    assert (answer.change, answer.calls, answer.failures) == ("tripped", 20, 10)


def test_calls_before_the_window_of_seconds_are_forgotten(limits: redis.Redis):
    store = Store(limits, policy=replace(BY_CALLS, window_s=10), guarded=True)
    generation = store.admit().generation
    store.report(generation, failure=4, tail=0, server="a")
    store.advance(10)
    answer = store.report(generation, ok=1, failure=3, tail=0, server="b")
    assert (answer.change, answer.calls) == ("none", 4)


def test_slow_calls_are_judged_by_the_last_calls_too(limits: redis.Redis):
    store = Store(limits, policy=BY_CALLS, guarded=True)
    generation = store.admit().generation
    store.report(generation, ok=500, server="a")
    store.advance(1)
    assert store.report(generation, ok=9, slow=5, server="a").change == "none"
    assert store.report(generation, ok=1, slow=5, server="b").change == "tripped"
    assert store.breaker().cause == "slow"


def test_agents_of_both_versions_count_in_the_same_ring(limits: redis.Redis):
    """A pod without the field judges by all calls of the window, and disturbs no other."""
    older = Store(limits, policy=replace(BY_CALLS, window_calls=0), guarded=True)
    newer = Store(limits, policy=BY_CALLS, guarded=True)
    generation = older.admit().generation
    older.report(generation, ok=100, server="a")
    for store in (older, newer):
        store.advance(1)
    assert older.report(generation, failure=10, tail=0, server="b").calls == 110
    # It was its failures that count; the next outcome of a newer pod judges them.
    answer = newer.report(generation, ok=9, failure=1, tail=0, server="a")
    assert (answer.change, answer.calls, answer.failures) == ("tripped", 20, 11)


def test_probes_are_reported_beside_a_window_of_calls(limits: redis.Redis):
    store = Store(limits, policy=BY_CALLS, guarded=True)
    generation = open_again(store)
    assert store.report(generation, probes=(("b2.1", 1), ("b2.2", 1))).change == "closed"


def test_one_bad_server_cannot_trip_it_for_the_others(store: Store):
    generation = store.admit().generation
    store.report(generation, ok=1, server="healthy")
    for _ in range(20):
        assert store.report(generation, failure=1, server="bad").change == "none"
    assert store.breaker().state == "closed"


def test_a_server_that_is_alone_with_its_calls_trips_it_alone(store: Store):
    generation = store.admit().generation
    assert store.report(generation, failure=5, server="only").change == "tripped"


def test_an_older_generation_changes_nothing(store: Store):
    old = store.admit().generation
    half_open = open_again(store)
    before = store.contents()
    assert store.report(old, ok=100, failure=100, probes=(("b2.1", 1),)).change == "stale"
    assert store.contents() == before
    assert store.breaker().generation == half_open


def test_enough_good_probes_close_it(store: Store):
    generation = open_again(store)
    assert store.report(generation, probes=(("b2.1", 1),)).change == "none"
    assert store.report(generation, probes=(("b2.2", 1),)).change == "closed"
    assert store.breaker().state == "closed"


def test_one_probe_reported_twice_is_one_success(store: Store):
    generation = open_again(store)
    store.report(generation, probes=(("b2.1", 1),))
    assert store.report(generation, probes=(("b2.1", 1),)).change == "none"


def test_a_failed_probe_opens_it_for_twice_as_long(store: Store):
    generation = open_again(store)
    reopened = store.report(generation, probes=(("b2.1", 2),))
    assert (reopened.change, reopened.remaining_us) == ("reopened", 4_000_000)


def test_the_open_time_has_a_maximum(store: Store):
    for _ in range(5):
        generation = open_again(store)
        reopened = store.report(generation, probes=((f"b{store.batches}.1", 2),))
    assert reopened.remaining_us == 8_000_000


def test_after_ten_open_times_of_health_it_opens_for_as_long_as_at_first(store: Store):
    for patience, open_us in ((10.0, 4_000_000), (20.1, 2_000_000)):
        store.client.flushall()
        generation = open_again(store)
        store.report(generation, probes=((f"b{store.batches}.1", 1), (f"b{store.batches}.2", 1)))
        store.advance(patience)
        assert store.report(store.admit().generation, failure=5).remaining_us == open_us


def test_servers_that_reported_nothing_for_a_window_are_no_evidence(store: Store, limits: redis.Redis):
    generation = store.admit().generation
    store.report(generation, ok=5, server="gone")
    store.advance(POLICY.window_s - 1)
    store.report(generation, ok=1, server="a")  # keeps the evidence alive
    store.advance(1.1)
    assert store.report(generation, failure=5, server="b").change == "none"
    assert set(limits.hkeys("{d}:evidence")) == {b"a", b"b"}


def test_outcomes_under_an_expired_override_do_not_count(store: Store):
    generation = store.admit().generation
    store.hold("forced_closed", 1)
    store.advance(1.1)
    assert store.report(generation, failure=50).change == "stale"


def test_a_lease_that_ran_out_counts_neither_way(store: Store):
    generation = open_again(store)
    store.advance(1.1)
    assert store.report(generation, probes=(("b2.1", 1), ("b2.2", 2))).change == "none"
    assert store.breaker().state == "half_open"


def test_a_neutral_probe_frees_its_slot(store: Store):
    generation = open_again(store)
    assert store.admit().granted == 0
    store.report(generation, probes=(("b2.1", 0),))
    assert store.admit((2, 1)).granted == 1


def test_a_lost_key_does_not_let_old_outcomes_in(store: Store, limits: redis.Redis):
    old = store.admit().generation
    open_again(store)
    limits.flushall()
    store.advance(0.001)
    new = store.admit().generation
    assert new > old
    assert store.report(old, failure=50).change == "stale"


def test_under_forced_closed_it_reports_what_would_have_tripped(store: Store):
    generation = store.admit().generation
    store.hold("metrics_only", 60)
    assert store.report(generation, failure=5).change == "would_trip"
    assert store.breaker().state == "closed"


def test_disabled_records_nothing(store: Store, limits: redis.Redis):
    generation = store.admit().generation
    store.hold("disabled", 60)
    assert store.report(generation, failure=50).change == "none"
    assert not limits.exists("{d}:outcomes")


def test_garbage_in_the_outcomes_starts_them_again(store: Store, limits: redis.Redis):
    generation = store.admit().generation
    for poison in (b"x", b"\x93\xa1a\xa1b\xa1c", b""):
        limits.set("{d}:outcomes", poison)
        assert store.report(generation, failure=1, server="a").calls == 1
