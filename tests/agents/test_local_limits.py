"""What one pod may spend alone: reserved shares, local shares, and time slots."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fuseboard.batching.demand import Demand, LimitRef, rule_of
from fuseboard.batching.standing_demand import StandingDemand
from fuseboard.contract.policy import Limit, Tuning
from fuseboard.contract.shares import ShareLease, reserved_calls, settled_limit
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from fuseboard.decision import Charge
from fuseboard.without_redis import local_limits, offline_counts
from fuseboard.without_redis.local_limits import LocalLimits, Reported
from fuseboard.without_redis.reserved_share import ReservedShare

VENDOR = Limit(
    name="vendor",
    limit=100,
    window_ms=10_000,
    algorithm=Algorithm.SLIDING_WINDOW,
    failure_policy=FailurePolicy.RESERVED,
)
RESERVED_KINDS = [
    VENDOR,
    msgspec.structs.replace(VENDOR, algorithm=Algorithm.TOKEN_BUCKET, burst=100),
    msgspec.structs.replace(VENDOR, algorithm=Algorithm.CONCURRENCY),
]
SECURITY = msgspec.structs.replace(VENDOR, name="logins", failure_policy=FailurePolicy.LOCAL_SHARE)


def demand_for(limit: Limit) -> Demand:
    return Demand((LimitRef(limit, f"key of {limit.name}"),), (1,))


class Clock:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(local_limits, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def with_piece(clock: Clock, *, level: int = 0, place: int = 0, lease_s: float = 900.0) -> LocalLimits:
    share = ReservedShare(lambda: clock.now)
    lease = ShareLease(level=level, place=place, terms=1, remaining_ms=int(lease_s * 1000))
    share.take(lease, asked=clock.now)
    return LocalLimits(lambda: 1, share=share, fleet_offset_s=lambda: 0.0)


def spend_all(limits: LocalLimits, limit: Limit, most: int = 1_000) -> int:
    demand = demand_for(limit)
    return sum(limits.take(demand, 1.0) is None for _ in range(most))


class TestPieces:
    def test_what_redis_grants_and_the_reserved_shares_add_up_to_the_limit(self, clock: Clock):
        shared = rule_of(VENDOR, 1.0, 0)[1]
        local = sum(spend_all(with_piece(clock, level=3, place=place), VENDOR) for place in range(8))
        assert (shared, local) == (90, 10)

    def test_a_server_without_a_piece_has_nothing_and_says_that_the_store_is_missing(self, clock: Clock):
        blocked = LocalLimits(lambda: 1).take(demand_for(VENDOR), 1.0)
        assert blocked is not None
        assert (blocked.unavailable, blocked.limit) == (True, VENDOR)

    @pytest.mark.parametrize("limit", RESERVED_KINDS)
    def test_a_cost_that_exceeds_the_share_is_refused(self, clock: Clock, limit: Limit):
        ref = LimitRef(limit, "key")
        refused = with_piece(clock).take(Demand((ref,), (11,)), 1.0)
        assert refused is not None
        assert refused.unavailable
        assert with_piece(clock).take(Demand((ref,), (10,)), 1.0) is None

    @pytest.mark.parametrize("limit", RESERVED_KINDS)
    def test_a_cost_that_redis_never_grants_never_fits(self, limit: Limit):
        ref = LimitRef(limit, "key")
        assert StandingDemand((ref,), (91,)).impossible_limit is limit
        assert StandingDemand((ref,), (90,)).impossible_limit is None
        shadow = LimitRef(msgspec.structs.replace(limit, shadow=True), "key")
        assert StandingDemand((shadow,), (101,)).impossible_limit is None

    def test_a_piece_that_has_run_out_is_nothing(self, clock: Clock):
        limits = with_piece(clock, lease_s=10.0)
        clock.now += 9.8
        assert spend_all(limits, VENDOR) == 10
        clock.now += 10.0
        assert spend_all(limits, VENDOR) == 0

    def test_a_bucket_holds_back_a_part_of_its_burst_too(self, clock: Clock):
        bucket = msgspec.structs.replace(VENDOR, algorithm=Algorithm.TOKEN_BUCKET, burst=40)
        assert rule_of(bucket, 1.0, 0)[1::2][:2] == (90, 36)
        assert spend_all(with_piece(clock), bucket) == 4
        limits = with_piece(clock)
        admitted = 0
        for _ in range(100):  # a whole window, in steps
            admitted += spend_all(limits, bucket, 5)
            clock.now += 0.1
        assert 10 <= admitted <= 14

    def test_slots_are_pieces_too(self, clock: Clock):
        slots = msgspec.structs.replace(VENDOR, algorithm=Algorithm.CONCURRENCY)
        limits = with_piece(clock, level=1, place=1)
        assert spend_all(limits, slots) == 5
        limits.free(demand_for(slots))
        assert spend_all(limits, slots) == 1

    def test_older_terms_change_nothing_and_later_answers_never_shorten_a_lease(self, clock: Clock):
        share = ReservedShare(lambda: clock.now)
        share.take(ShareLease(level=2, place=1, terms=7, remaining_ms=60_000), asked=clock.now)
        share.take(ShareLease(level=0, place=0, terms=6, remaining_ms=900_000), asked=clock.now)
        share.take(ShareLease(level=2, place=1, terms=7, remaining_ms=1_000), asked=clock.now)
        assert share.held is not None
        assert (share.held.level, share.left_s) == (2, pytest.approx(59.4))

    def test_a_lease_counts_from_the_question_however_late_its_answer_is(self, clock: Clock):
        share = ReservedShare(lambda: clock.now)
        asked = clock.now
        clock.now += 50.0
        share.take(ShareLease(level=0, place=0, terms=1, remaining_ms=60_000), asked=asked)
        assert share.left_s == pytest.approx(9.4)

    def test_who_stops_spends_no_more_whatever_is_offered(self, clock: Clock):
        limits = with_piece(clock)
        limits.share.give_up()
        limits.share.take(ShareLease(level=0, place=0, terms=9, remaining_ms=60_000), asked=clock.now)
        assert limits.share.held is None
        assert spend_all(limits, VENDOR) == 0

    @pytest.mark.parametrize(
        "limit",
        [
            msgspec.structs.replace(VENDOR, window_ms=60_001),
            msgspec.structs.replace(VENDOR, algorithm=Algorithm.TOKEN_BUCKET, burst=700),
            msgspec.structs.replace(VENDOR, algorithm=Algorithm.FIXED_WINDOW, period=Period.HOUR),
        ],
        ids=["window", "bucket", "calendar"],
    )
    def test_what_remembers_for_longer_than_pieces_rest_is_redis_alone(self, limit: Limit):
        found = settled_limit(limit, Tuning())
        assert reserved_calls(found) == 0
        assert rule_of(found, 1.0, 0)[1] == 100

    def test_the_part_is_the_fleets_unless_the_limit_has_its_own(self):
        tuning = Tuning(reserved_percent=25)
        own = msgspec.structs.replace(VENDOR, reserved_percent=40)
        assert [reserved_calls(settled_limit(limit, tuning)) for limit in (VENDOR, own)] == [25, 40]

    def test_redis_can_always_grant_one(self):
        assert reserved_calls(msgspec.structs.replace(VENDOR, reserved_percent=100)) == 99

    @given(amount=st.integers(0, 10**9), levels=st.lists(st.integers(1, 12), max_size=40))
    def test_pieces_that_do_not_overlap_never_add_up_to_more(self, amount: int, levels: list[int]):
        from fuseboard.contract.shares import calls_of

        start, held = 0, 0
        for level in sorted(levels):  # from large to small they lie side by side
            size = 2 ** (12 - level)
            if start + size <= 2**12:
                held += calls_of(level, start // size, amount)
                start += size
        assert held <= amount


class TestShares:
    def test_servers_divide_the_limit(self, clock: Clock):
        assert spend_all(LocalLimits(lambda: 8), SECURITY) == 12

    def test_below_one_call_each_server_has_a_turn_and_no_window_has_more_than_the_limit(self, clock: Clock):
        few = msgspec.structs.replace(SECURITY, limit=4)
        servers = []
        for place in range(16):
            share = ReservedShare(lambda: clock.now)
            share.take(ShareLease(level=4, place=place, terms=1, remaining_ms=3_600_000), asked=clock.now)
            servers.append(LocalLimits(lambda: 16, share=share, fleet_offset_s=lambda: 123.4))
        made: list[tuple[float, int]] = []
        demand = demand_for(few)
        while clock.now < 1_400.0:
            made += [(clock.now, n) for n, server in enumerate(servers) if server.take(demand, 1.0) is None]
            clock.now += 0.05
        assert {server for _, server in made} == set(range(16))  # nobody starves
        for moment, _ in made:
            assert sum(moment <= other < moment + 10.0 for other, _ in made) <= 4

    def test_a_pod_outside_its_time_slot_gets_the_wait(self, clock: Clock):
        few = msgspec.structs.replace(SECURITY, limit=1)
        limits = LocalLimits(lambda: 10)
        demand = demand_for(few)
        waits = 0.0
        for _ in range(3):
            blocked = limits.take(demand, 1.0)
            while blocked is not None:
                assert 0 < blocked.wait_s <= 300.0
                waits += blocked.wait_s
                clock.now += blocked.wait_s + 0.001
                blocked = limits.take(demand, 1.0)
        assert waits >= 500.0

    def test_a_limit_of_nothing_is_refused(self, clock: Clock):
        nothing = msgspec.structs.replace(SECURITY, limit=0)
        assert LocalLimits(lambda: 1).take(demand_for(nothing), 1.0) is not None


def test_a_correction_of_a_call_that_redis_counts_is_not_in_a_later_report(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    """Redis is corrected at once. The next report of the limit, not sent yet, is of other calls."""
    monkeypatch.setattr(offline_counts, "monotonic", lambda: clock.now)
    limits, settled = LocalLimits(lambda: 1), []
    limits.settle = lambda domain, ref, store_us, amount: settled.append(amount)
    tokens = msgspec.structs.replace(SECURITY, measure="tokens")
    ref = LimitRef(tokens, "fb1:production:{t:acme}:quota:tokens")
    reports = []
    for cost in (30, 5):
        assert limits.take(Demand((ref,), (cost,)), 1.0) is None
        clock.now += 1.0
        reports.append(limits.offline.close())
    counted, later = reports
    assert counted is not None
    assert later is not None
    limits.charged(ref, 30, 0, Reported(counted.until, store_us=1))
    limits.offline.closed.remove(counted)
    call = Charge("domain", Demand((ref,), (30,)), int((clock.now - 2.0) * 1_000_000), "token", local=True)
    limits.correct(call, "tokens", 50)
    assert settled == [0, 20]
    assert later.corrected == {}
