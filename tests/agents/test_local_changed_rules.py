"""Without Redis, a pod keeps what it has spent of a limit when people change how the limit counts."""

import pytest
from msgspec.structs import replace

from fuseboard.batching.demand import Demand, LimitRef
from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from fuseboard.without_redis import local_counters, local_limits
from fuseboard.without_redis.local_limits import LocalLimits
from tests.agents.scripts import START_US

BUCKET = Limit(
    name="changed", limit=10, burst=10, window_ms=3_600_000, failure_policy=FailurePolicy.LOCAL_SHARE
)
WINDOW = replace(BUCKET, burst=1, algorithm=Algorithm.SLIDING_WINDOW)
DAY = replace(WINDOW, algorithm=Algorithm.FIXED_WINDOW, period=Period.DAY)
SLOTS = replace(WINDOW, algorithm=Algorithm.CONCURRENCY)
COUNTS = (
    BUCKET,
    replace(BUCKET, limit=13, window_ms=60_000),
    WINDOW,
    replace(WINDOW, window_ms=600_000),
    DAY,
    replace(DAY, period=Period.MONTH),
    replace(DAY, period=Period.WEEK, time_zone="Europe/Berlin"),
)


class Pod:
    """A pod that is alone, at noon of a day in virtual time."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, servers: int = 1) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(local_limits, "monotonic", lambda: self.now)
        noon_s = START_US // 1_000_000 // 86_400 * 86_400 + 43_200
        monkeypatch.setattr(local_counters, "time", lambda: noon_s + self.now - 1_000.0)
        self.limits = LocalLimits(lambda: servers)

    def spend(self, limit: Limit, calls: int, cost: int = 1) -> int:
        demand = Demand((LimitRef(limit, "key"),), (cost,))
        return sum(self.limits.take(demand, 1.0) is None for _ in range(calls))

    def still_spent(self, limit: Limit) -> int:
        return self.limits.still_spent(LimitRef(limit, "key"))


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> Pod:
    return Pod(monkeypatch)


@pytest.mark.parametrize("before", COUNTS)
@pytest.mark.parametrize("after", COUNTS)
def test_every_rule_takes_over_what_every_other_one_counts(pod: Pod, before: Limit, after: Limit):
    assert pod.spend(before, 4) == 4
    room = after.burst if after.algorithm is Algorithm.TOKEN_BUCKET else after.limit
    assert pod.spend(after, 30) == room - 4
    # The pod reports this to Redis later, also in a report that knows the rule until now.
    assert pod.still_spent(after) == pod.still_spent(before) == room


@pytest.mark.parametrize("counts", COUNTS)
def test_slots_and_rates_have_no_amount_in_common(pod: Pod, counts: Limit):
    pod.spend(counts, 4)
    assert pod.spend(SLOTS, 30) == 10
    assert pod.spend(counts, 4) == 4


def test_slots_stay_taken_when_their_length_changes(pod: Pod):
    pod.spend(SLOTS, 4)
    assert pod.spend(replace(SLOTS, window_ms=60_000), 30) == 6


def test_a_call_occupies_as_many_slots_as_it_costs(pod: Pod):
    assert pod.spend(SLOTS, 12, cost=4) == 2
    assert pod.spend(SLOTS, 12) == 2


def test_a_window_keeps_the_times_of_its_calls(pod: Pod):
    pod.spend(WINDOW, 3)
    pod.now += 1800
    pod.spend(WINDOW, 2)
    assert pod.spend(replace(WINDOW, window_ms=600_000), 30) == 8


def test_a_day_counts_only_what_was_spent_in_it(pod: Pod):
    pod.now += 42_000
    pod.spend(WINDOW, 3)
    pod.now += 1_300
    pod.spend(WINDOW, 2)
    assert pod.spend(DAY, 30) == 8


def test_a_bucket_owes_one_window_at_most(pod: Pod):
    pod.spend(replace(DAY, limit=1000), 900)
    assert pod.spend(BUCKET, 1) == 0
    pod.now += 3600
    assert pod.spend(BUCKET, 30) == 10


def test_a_pod_with_less_than_one_call_has_used_its_time_slot(monkeypatch: pytest.MonkeyPatch):
    pod = Pod(monkeypatch, servers=100)
    steps = 0
    # A time slot of a pod without a reserved share lasts 540 s.
    while not pod.spend(WINDOW, 1):
        pod.now += 500
        steps += 1
        assert steps < 1000
    assert pod.spend(replace(WINDOW, window_ms=3_000_000), 5) == 0
    assert pod.spend(BUCKET, 5) == 0
