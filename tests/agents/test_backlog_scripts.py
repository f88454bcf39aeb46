"""The scripts of the backlog at their bounds, with bad data, and fair between tenants."""

import pytest
import redis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuseboard.contract.policy import Limit
from fuseboard.contract.words import Algorithm
from tests.agents.backlog_scripts import SECOND, BacklogStore

LIMIT = Limit(name="calls", limit=10, window_ms=60_000, algorithm=Algorithm.SLIDING_WINDOW)


@pytest.fixture
def store(limits: redis.Redis) -> BacklogStore:
    return BacklogStore(limits)


def test_aged_low_priority_comes_before_fresh_high_priority(store: BacklogStore):
    store.submit("old", priority=1)
    store.now_us += 9 * 60 * SECOND + 1
    store.submit("new", priority=10)
    assert store.take(2).ids == ["old", "new"]


def test_an_expensive_head_is_not_overtaken_and_its_wait_is_exact(limits: redis.Redis):
    store = BacklogStore(limits, [LIMIT], lease_us=3600 * SECOND)
    for name, cost in (("first", 8), ("expensive", 5), ("cheap", 1)):
        store.submit(name, costs={"calls": cost})
    taken = store.take(3)
    assert taken.ids == ["first"]
    store.now_us += taken.wait_us - 1
    assert store.take(3).ids == []
    store.now_us += 1
    assert store.take(3).ids == ["expensive", "cheap"]


def test_a_late_question_hands_out_nothing(store: BacklogStore):
    store.submit("a")
    assert store.take(1, not_after=store.now_us - 1).ids == []
    assert store.take(1, not_after=store.now_us).ids == ["a"]


def test_one_call_moves_and_hands_out_a_bounded_number(store: BacklogStore):
    for number in range(150):
        store.submit(f"{number:03}", delay_us=1)
    store.now_us += 1
    taken = store.take(64)
    assert len(taken.jobs) == 50
    assert len(store.ordered("delayed")) == 100
    assert taken.next_us <= store.now_us
    with pytest.raises(redis.ResponseError, match="1 to 64"):
        store.take(65)


def test_dead_letters_are_bounded_and_expire(store: BacklogStore):
    for number in range(1002):
        store.submit(f"{number}", max_tries=1)
        (job,) = store.take(1).jobs
        store.end(job["id"], job["fence"], "retry", cause="ValueError")
    assert len(store.ordered("dead")) == 1000
    assert int(store.hashed("stats")[b"bytes"]) == 1000
    assert store.look("1001", "0")[1] == [b"dead ValueError", b""]
    store.now_us += 7 * 86_400 * SECOND + 1
    for _ in range(20):
        store.take(1)
    assert store.ordered("dead") == {}
    assert store.hashed("meta") == store.hashed("body") == {}


def test_results_are_bounded_in_bytes_and_expire(store: BacklogStore):
    for number in range(300):
        store.submit(f"{number}")
        (job,) = store.take(1).jobs
        store.end(job["id"], job["fence"], "done", result=b"r" * 65_000)
    kept = len(store.hashed("results"))
    assert 250 < kept < 260
    assert store.look("299")[1][0].startswith(b"done ")
    store.now_us += store.result_us
    for _ in range(10):
        store.take(1)
    assert store.hashed("results") == {}


def test_nothing_is_accepted_while_redis_is_nearly_full(store: BacklogStore, limits: redis.Redis):
    used = int(limits.info("memory")["used_memory"])
    try:
        limits.config_set("maxmemory", used + used // 5)
        assert store.submit("a") == "no_memory"
        assert store.submit("a", max_memory=95) == "accepted"
        limits.config_set("maxmemory", 100 * used)
        assert store.submit("b") == "no_memory"  # the figure is read once per second
        store.now_us += SECOND
        assert store.submit("b") == "accepted"
    finally:
        limits.config_set("maxmemory", 0)


def test_work_that_waits_for_a_worker_is_counted_with_its_age(store: BacklogStore):
    """Only a worker that asks moves overdue leases and delayed jobs that are due."""

    def waiting() -> tuple[int, int, int]:
        figures = store.look()[0]
        return figures.due, figures.overdue, figures.late_us

    assert waiting() == (0, 0, 0)
    store.submit("leased")
    store.take(1)
    store.submit("delayed", delay_us=50 * SECOND)
    store.now_us += store.lease_us - 1
    assert waiting() == (0, 0, 0)
    store.now_us += 1 + 7 * SECOND
    assert waiting() == (0, 1, 7 * SECOND)
    store.now_us += 18 * SECOND
    assert waiting() == (1, 1, 25 * SECOND)
    assert store.take(2).ids == ["leased", "delayed"]
    assert waiting() == (0, 0, 0)
    store.submit("ready")
    store.now_us += SECOND
    assert waiting() == (0, 0, SECOND)


def test_unreadable_jobs_disappear_and_do_not_block_the_others(store: BacklogStore, limits: redis.Redis):
    for name in ("a", "b", "c", "d"):
        store.submit(name)
    limits.hset(store.keys["meta"], "a", b"\xff garbage")
    limits.hdel(store.keys["meta"], "b")
    limits.hdel(store.keys["body"], "c")
    taken = store.take(4)
    assert taken.ids == ["d"]
    assert taken.again
    assert set(store.ordered("leases")) == {"d"}
    assert set(store.hashed("meta")) == set(store.hashed("body")) == {b"d"}


@pytest.mark.parametrize("part", ["ready", "delayed", "leases", "dead", "meta", "body", "stats", "results"])
def test_a_key_of_another_type_fails_before_anything_is_spent(limits: redis.Redis, part: str):
    store = BacklogStore(limits, [LIMIT])
    store.submit("a")
    limits.delete(store.keys[part])
    limits.set(store.keys[part], "text")
    before = store.contents()
    with pytest.raises(redis.ResponseError, match="WRONGTYPE"):
        store.take(1)
    assert store.contents() == before


def test_fences_rise_also_after_data_was_lost(store: BacklogStore, limits: redis.Redis):
    store.submit("a")
    before = store.take(1).jobs[0]["fence"]
    limits.flushall()
    store.now_us += 1
    store.submit("a")
    assert store.take(1).jobs[0]["fence"] > before


class TestFair:
    @pytest.fixture
    def fair(self, store: BacklogStore) -> BacklogStore:
        store.fair = True
        return store

    def test_a_tenant_with_many_jobs_does_not_delay_another(self, fair: BacklogStore):
        for number in range(100):
            fair.submit(f"a{number}", tenant="a")
        for number in range(3):
            fair.submit(f"b{number}", tenant="b")
        assert [name[0] for name in fair.take(6).ids].count("b") == 3

    def test_a_tenant_that_was_idle_has_saved_nothing_up(self, fair: BacklogStore):
        for number in range(40):
            fair.submit(f"a{number}", tenant="a")
        fair.take(20)
        for number in range(20):
            fair.submit(f"b{number}", tenant="b")
        names = [name[0] for name in fair.take(20).ids]
        assert abs(names.count("a") - names.count("b")) <= 2

    def test_priority_counts_within_a_fair_backlog(self, fair: BacklogStore):
        fair.submit("low", tenant="a", priority=1)
        fair.submit("high", tenant="b", priority=10)
        assert fair.take(1).ids == ["high"]

    def test_fairness_is_chosen_when_the_backlog_is_empty(self, fair: BacklogStore):
        fair.submit("a", tenant="a")
        fair.fair = False
        fair.submit("b", tenant="b")
        assert int(fair.hashed("stats")[b"fair"]) == 1
        fair.take(2)
        assert set(fair.hashed("fair")) == {b""}  # nothing is kept of tenants without jobs

    @pytest.mark.parametrize("first", [True, False])
    def test_a_pod_with_the_other_option_keeps_the_scale_of_the_queue(self, store: BacklogStore, first: bool):
        """As while a service is deployed that turns ``fair`` on or off."""
        store.fair = first
        store.submit("old pod", priority=1)
        store.submit("old pod, important", priority=10)
        store.fair = not first
        store.submit("new pod", priority=1)
        store.submit("new pod, important", priority=10)
        expected = ["old pod, important", "new pod, important", "old pod", "new pod"]
        assert store.take(4).ids == expected

    @pytest.mark.parametrize("fair", [True, False])
    @pytest.mark.parametrize("by", ["return", "revive"])
    def test_a_dead_job_returns_to_a_queue_of_the_other_scale_in_its_turn(
        self, store: BacklogStore, fair: bool, by: str
    ):
        store.fair = not fair
        store.submit("dead", tenant="a", max_tries=1)
        (job,) = store.take(1).jobs
        store.end("dead", job["fence"], "dead")
        store.fair = fair
        for number in range(3):
            store.now_us += SECOND
            store.submit(f"{number}", tenant="b")
        assert store.revive("dead") if by == "revive" else store.dead("return")[0] == 1
        # By its age; in a fair queue it is the first of its tenant.
        assert store.take(4).ids == (["0", "dead", "1", "2"] if fair else ["dead", "0", "1", "2"])

    def test_a_dead_job_of_an_earlier_fair_queue_is_no_later_than_a_new_one(self, fair: BacklogStore):
        for number in range(50):
            fair.submit(f"early-{number}", tenant="a", max_tries=1)
        for job in fair.take(50).jobs:
            fair.end(job["id"], job["fence"], "done" if job["id"] != "early-49" else "dead")
        fair.submit("b0", tenant="b")
        fair.submit("b1", tenant="b")
        fair.dead("return")
        assert fair.take(3).ids == ["b0", "early-49", "b1"]

    @settings(
        max_examples=40,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        derandomize=True,
        database=None,
    )
    @given(
        costs=st.lists(st.integers(1, 9), min_size=20, max_size=60),
        batches=st.lists(st.integers(1, 8), min_size=30, max_size=40),
    )
    def test_two_tenants_differ_by_at_most_two_jobs_in_any_interval(
        self, limits: redis.Redis, costs: list[int], batches: list[int]
    ):
        limits.flushall()
        fair = BacklogStore(limits, fair=True)
        for number, cost in enumerate(costs):
            fair.submit(f"a{number}", tenant="a", costs={"calls": cost})
        for number, cost in enumerate(reversed(costs)):
            fair.submit(f"b{number}", tenant="b", costs={"calls": cost})
        served: list[tuple[str, int]] = []
        left = {"a": len(costs), "b": len(costs)}
        for most in batches:
            for job in fair.take(most).jobs:
                if min(left.values()) == 0:
                    break  # one of them has nothing left to wait for
                tenant = job["id"][0]
                left[tenant] -= 1
                served.append((tenant, job["costs"][1]))
        balance, seen = 0, [0]
        for tenant, cost in served:
            balance += cost if tenant == "a" else -cost
            seen.append(balance)
        assert max(seen) - min(seen) <= 2 * max(costs)


def test_a_job_occupies_renews_and_frees_as_many_slots_as_it_costs(limits: redis.Redis):
    store = BacklogStore(
        limits, [Limit(name="slots", limit=4, window_ms=60_000, algorithm=Algorithm.CONCURRENCY)]
    )
    key = store.limit_key(store.limits[0])
    for job, cost in (("a", 3), ("b", 2)):
        store.submit(job, costs={"calls": cost})
    (taken,) = store.take(2).jobs
    assert limits.zcard(key) == 3
    store.now_us += 10_000_000
    assert store.keep((taken["id"], taken["fence"])) == [1]
    assert {score for _, score in limits.zrange(key, 0, -1, withscores=True)} == {store.now_us + 60_000_000}
    assert store.take().jobs == []
    assert store.end(taken["id"], taken["fence"], "done") == 1
    assert limits.zcard(key) == 0
    (lost,) = store.take().jobs
    assert limits.zcard(key) == 2
    store.now_us = lost["until"] + 1
    # The lease of a dead worker frees its slots; the same job is taken again.
    assert store.take().ids == ["b"]
    assert limits.zcard(key) == 2
