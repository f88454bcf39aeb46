"""``admit.lua``: how scarce calls are divided."""

import redis

from fuseboard.contract.policy import BreakerPolicy
from tests.agents.limit_kinds import window
from tests.agents.scripts import Store


class TestSharing:
    """Groups of one class share what is scarce; a more important class is served first."""

    def test_what_is_scarce_is_shared_evenly(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        assert [group.granted for group in store.admit((100, 1), (100, 1)).groups] == [5, 5]

    def test_what_a_modest_group_leaves_goes_to_the_others(self, limits: redis.Redis):
        store = Store(limits, [window(10)])
        assert [group.granted for group in store.admit((100, 1), (2, 1), (100, 1)).groups] == [4, 2, 4]

    def test_the_odd_call_goes_to_the_first_group(self, limits: redis.Redis):
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
