"""Pods of earlier versions count on the same keys as present ones, with their own scripts."""

from random import Random

import pytest
import redis
from msgspec.structs import replace

from fuseboard.batching.demand import slot_names
from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import Script, read_script
from fuseboard.contract.words import FailurePolicy
from tests.agents.models.changed_rules import Bucket, counter
from tests.agents.models.test_changed_rules import RULES
from tests.agents.old_scripts import EARLIER_COMMITS, OLD_COMMITS, old_script
from tests.agents.scripts import VIRTUAL_CLOCK, Store

pytestmark = pytest.mark.parametrize("version", EARLIER_COMMITS)


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


def use(store: Store, version: str | None) -> None:
    """Let a pod of this version ask next; ``None`` is the present one."""
    for name in ("admit", "settle", "drain"):
        script = read_script(name, clock=VIRTUAL_CLOCK) if version is None else old_script(version, name)
        setattr(store, f"{name}_script", script)


@pytest.mark.parametrize("name", [name for name in RULES if name != "slots"])
def test_corrections_and_reports_of_both_leave_what_those_of_one_leave(
    limits: redis.Redis, version: str, name: str
):
    """Through ends of windows and periods. Old pods forget a debt that is longer than two bursts, so the
    corrections here owe nothing.
    """
    random, rule = Random(name), RULES[name]
    mixed, present = Store(limits, [replace(rule, name="mixed")]), Store(limits, [replace(rule, name="one")])
    both, earlier = (mixed, present), mixed.now_us
    mixed.expiring = present.expiring = True
    for step in range(50):
        mixed.now_us += random.randrange(rule.window_ms * 200)
        present.now_us = mixed.now_us
        use(mixed, random.choice([version, None]))
        what, amount = random.choice(["admit", "admit", "settle", "refund", "drain"]), random.randrange(1, 4)
        if min([store.admit((1, 1)).left[0] for store in both]) < amount:
            what = "refund"
        at, earlier = earlier, mixed.now_us
        if what == "admit":
            groups = [(random.randrange(1, 4), amount), (1, amount + 1)][: random.randrange(1, 3)]
            answers = [store.admit(*groups) for store in both]
            assert answers[0] == answers[1]
        elif what in ("settle", "refund"):
            for store in both:
                store.settle(amount=amount if what == "settle" else -amount, at=at)
        else:
            for store in both:
                store.drain(amount, f"{step} {store is mixed}")
        left = [store.admit((1, 1)).left for store in both]
        assert left[0] == left[1], (step, what, amount)


def test_calls_of_both_never_occupy_more_slots_than_there_are(limits: redis.Redis, version: str):
    """A call of an old pod occupies one slot, whatever it costs."""
    rule, random = RULES["slots"], Random(version)
    store = Store(limits, [rule], expiring=True)
    running: list[tuple[str | None, tuple[str, ...]]] = []
    for _ in range(300):
        store.now_us += random.randrange(100_000)
        by, cost = random.choice([version, None]), random.randrange(1, 5)
        use(store, by)
        if running and random.random() < 0.5:
            # Any pod may be the one that is asked next, but a call is ended by its own.
            by, tokens = running.pop(random.randrange(len(running)))
            use(store, by)
            store.settle(tokens=tokens)
        elif store.admit((1, cost)).granted:
            token = f"b{store.batches}.1"
            running.append((by, (token,) if by in OLD_COMMITS else slot_names(token, cost)))
        taken = sum(len(tokens) for _, tokens in running)
        assert limits.zcard(store.limit_key(rule)) == taken <= rule.limit
