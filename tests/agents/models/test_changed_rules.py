"""After an edit of a limit, what was spent stays spent: under every rule, from every other one."""

import pytest
import redis
from hypothesis.stateful import run_state_machine_as_test
from msgspec.structs import replace

from fuseboard.contract.policy import Limit
from fuseboard.contract.scripts import read_script
from fuseboard.contract.words import Algorithm, FailurePolicy, Period
from tests.agents.models.changed_rules import changed, counter
from tests.agents.models.changed_rules_machine import changed_rules_machine
from tests.agents.models.test_models import THOROUGH
from tests.agents.scripts import VIRTUAL_CLOCK, Store

STRICT = Limit(name="changed", limit=10, window_ms=3_600_000, failure_policy=FailurePolicy.FAIL_CLOSED)


def calendar(period: Period, zone: str = "UTC", limit: int = 10) -> Limit:
    return replace(STRICT, algorithm=Algorithm.FIXED_WINDOW, period=period, time_zone=zone, limit=limit)


RULES = {
    "window": replace(STRICT, algorithm=Algorithm.SLIDING_WINDOW),
    "window of a minute": replace(STRICT, algorithm=Algorithm.SLIDING_WINDOW, window_ms=60_000),
    "larger window": replace(STRICT, algorithm=Algorithm.SLIDING_WINDOW, limit=25, window_ms=7_200_000),
    "bucket": replace(STRICT, burst=10),
    "bucket of one": replace(STRICT, burst=1),
    "bucket with a rate that does not divide": replace(STRICT, limit=7, burst=9),
    "large bucket": replace(STRICT, limit=20, burst=50, window_ms=600_000),
    "hour": calendar(Period.HOUR),
    "day": calendar(Period.DAY),
    "day in Berlin": calendar(Period.DAY, "Europe/Berlin"),
    "day in Auckland": calendar(Period.DAY, "Pacific/Auckland", limit=25),
    "week": calendar(Period.WEEK),
    "month": calendar(Period.MONTH, limit=25),
    "month in Honolulu": calendar(Period.MONTH, "Pacific/Honolulu"),
    "slots": replace(STRICT, algorithm=Algorithm.CONCURRENCY),
}


@pytest.mark.parametrize("policy", [FailurePolicy.FAIL_CLOSED, FailurePolicy.FAIL_OPEN])
@pytest.mark.parametrize("before", RULES)
def test_every_rule_takes_over_what_every_other_one_counts(
    limits: redis.Redis, before: str, policy: FailurePolicy
):
    for after in RULES:
        for spent, later_us in ((1, 0), (4, 17 * 60_000_000), (9, 1), (7, 50 * 60_000_000 + 7)):
            limits.flushall()
            old, new = (replace(RULES[name], failure_policy=policy) for name in (before, after))
            store = Store(limits, [old], expiring=True)
            exact = counter(old, store.now_us)
            granted = store.admit((spent, 1)).granted
            exact.spend(store.now_us, granted)
            store.now_us += later_us
            if after != before:
                store.limits, exact = [new], changed(exact, new, store.now_us)
            for calls in (3, 30):
                case = before, after, spent, later_us, calls
                room = max(0, exact.room(store.now_us))
                reply = store.admit((calls, 1))
                assert reply.unreadable == [0], case
                assert reply.granted == min(calls, room), case
                exact.spend(store.now_us, reply.granted)
                assert reply.left == [max(0, exact.room(store.now_us))], case


def test_a_change_of_rules_neither_forgets_nor_invents(limits: redis.Redis):
    admit = read_script("admit", clock=VIRTUAL_CLOCK)
    run_state_machine_as_test(changed_rules_machine(limits, admit), settings=THOROUGH)
