"""Pods of earlier versions count on the same keys as present ones, with their own scripts."""

from random import Random

import pytest
import redis
from msgspec.structs import replace

from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import Script, read_script
from fuseboard.contract.words import FailurePolicy
from tests.agents.models.changed_rules import Bucket, counter
from tests.agents.models.test_changed_rules import RULES
from tests.agents.old_scripts import OLD_COMMITS, old_script
from tests.agents.scripts import VIRTUAL_CLOCK, Store

pytestmark = pytest.mark.parametrize("version", OLD_COMMITS)


def admits(version: str) -> tuple[Script, Script]:
    return old_script(version, "admit"), read_script("admit", clock=VIRTUAL_CLOCK)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("policy", [FailurePolicy.FAIL_CLOSED, FailurePolicy.FAIL_OPEN])
def test_both_count_as_one_while_no_rule_changes(
    limits: redis.Redis, version: str, name: str, policy: FailurePolicy
):
    limit = replace(RULES[name], failure_policy=policy)
    store = Store(limits, [limit], expiring=True)
    exact, random = counter(limit, store.now_us), Random(name)
    for _ in range(60):
        store.now_us += random.randrange(limit.window_ms * 150)
        store.admit_script = random.choice(admits(version))
        calls = random.randrange(1, 5)
        granted = min(calls, max(0, exact.room(store.now_us)))
        reply = store.admit((calls, 1))
        assert (reply.granted, reply.unreadable) == (granted, [0])
        exact.spend(store.now_us, granted)


def most_at_once(limit: Limit) -> int:
    made = counter(limit)
    return limit.burst if isinstance(made, Bucket) else limit.limit


@pytest.mark.parametrize("after", RULES)
def test_no_strict_limit_is_exceeded_after_a_change(limits: redis.Redis, version: str, after: str):
    old, new = admits(version)
    for before in RULES:
        for order in ((old, new), (new, old), (new, old, new), (old, new, old, new)):
            limits.flushall()
            store = Store(limits, [RULES[before]], expiring=True)
            store.admit_script = order[-1]
            store.admit((4, 1))
            store.limits = [RULES[after]]
            granted = 0
            for script in order * 3:
                store.admit_script = script
                granted += store.admit((3, 1)).granted
            assert granted <= most_at_once(RULES[after]), (before, after)


@pytest.mark.parametrize("after", RULES)
def test_pods_with_different_rules_read_each_other_without_an_error(
    limits: redis.Redis, version: str, after: str
):
    """While the new rule is on its way."""
    old, new = admits(version)
    for before in RULES:
        limits.flushall()
        store = Store(limits, [RULES[before]], expiring=True)
        for _ in range(3):
            for script, rule in ((old, before), (new, after), (new, before), (old, after)):
                store.admit_script, store.limits = script, [RULES[rule]]
                store.admit((2, 1))
                store.now_us += 1_000_000
