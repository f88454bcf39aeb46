"""``admit.lua`` after the store has lost its data: a strict limit is not granted twice in one window."""

import redis

from fuseboard.contract.words import FailurePolicy
from tests.agents.limit_kinds import bucket, window
from tests.agents.scripts import Store

STRICT = window(5, failure_policy=FailurePolicy.FAIL_CLOSED)
OTHER = window(9, name="other", failure_policy=FailurePolicy.FAIL_CLOSED)


def server(limits: redis.Redis, *those: object, guarded: bool = True, now_us: int = 0) -> Store:
    store = Store(limits, list(those or (STRICT,)), guarded=guarded, incarnation=not guarded)
    store.now_us = now_us or store.now_us
    return store


class TestVendorLimits:
    guarded = True

    def knowing(self, limits: redis.Redis, *those: object) -> Store:
        """A server that has seen the store as it was."""
        store = server(limits, *those, guarded=self.guarded)
        assert [store.admit().granted for _ in range(2)] == [1, 1]
        return store

    def test_for_one_window_nothing_is_granted(self, limits: redis.Redis):
        store = self.knowing(limits)
        limits.flushall()
        refused = store.admit((3, 1))
        assert (refused.granted, refused.groups[0].blocked, refused.unreadable) == (0, 1, [0])
        store.now_us += refused.groups[0].wait_us - 1
        assert store.admit().granted == 0
        store.now_us += 1
        assert store.admit((9, 1)).granted == 5

    def test_a_pod_that_ramps_up_notices_it_for_the_whole_limit(self, limits: redis.Redis):
        store = self.knowing(limits)
        limits.flushall()
        store.part = 0.2
        assert store.admit().granted == 0
        store.part = 1.0
        assert store.admit().granted == 0

    def test_a_refund_from_before_the_loss_does_not_hide_it(self, limits: redis.Redis):
        store = self.knowing(limits)
        limits.flushall()
        store.settle(amount=-1)
        assert limits.keys() == []
        assert store.admit().granted == 0

    def test_the_window_begins_when_the_loss_is_noticed_also_for_limits_asked_later(
        self, limits: redis.Redis
    ):
        store = self.knowing(limits, STRICT)
        limits.flushall()
        assert store.admit().granted == 0
        store.limits = [OTHER]
        store.advance(0.6)
        refused = store.admit()
        assert (refused.granted, refused.groups[0].wait_us <= 500_000) == (0, True)

    def test_a_new_pod_learns_of_the_loss(self, limits: redis.Redis):
        store = self.knowing(limits)
        limits.flushall()
        assert store.admit().granted == 0
        fresh = server(limits, OTHER, guarded=self.guarded, now_us=store.now_us)
        assert fresh.admit().granted == 0
        assert fresh.admit().granted == 0
        fresh.advance(1.1)
        assert fresh.admit().granted == 1

    def test_a_pod_that_knows_more_corrects_a_new_pod(self, limits: redis.Redis):
        store = self.knowing(limits)
        limits.flushall()
        store.advance(0.1)
        fresh = server(limits, guarded=self.guarded, now_us=store.now_us)
        assert fresh.admit().granted == 1  # nothing tells it from a first start
        store.limits = [OTHER]
        assert store.admit().granted == 0

    def test_a_second_loss_is_noticed_too(self, limits: redis.Redis):
        store = self.knowing(limits)
        for _ in range(2):
            limits.flushall()
            assert store.admit().granted == 0
            store.advance(1.1)
            assert [store.admit().granted for _ in range(2)] == [1, 1]

    def test_a_first_start_is_no_loss(self, limits: redis.Redis):
        store = server(limits, guarded=self.guarded)
        assert store.admit((9, 1)).granted == 5

    def test_limits_that_fail_open_and_buckets_go_on(self, limits: redis.Redis):
        store = self.knowing(limits, window(5), bucket(5, failure_policy=FailurePolicy.FAIL_CLOSED))
        limits.flushall()
        assert store.admit((9, 1)).granted == 5

    def test_a_limit_that_was_not_lost_keeps_what_it_counted(self, limits: redis.Redis):
        store = self.knowing(limits)
        for key in limits.keys("*breaker*") + limits.keys("*incarnation*"):
            limits.delete(key)
        assert store.admit((9, 1)).granted == 3


class TestQuotas(TestVendorLimits):
    """The same, where no breaker tells: by the incarnation."""

    guarded = False

    def test_it_may_be_garbage(self, limits: redis.Redis):
        store = self.knowing(limits)
        limits.set("{d}:incarnation", "garbage")
        assert store.admit((9, 1)).granted == 3
        assert limits.get("{d}:incarnation").startswith(b"lost ")
