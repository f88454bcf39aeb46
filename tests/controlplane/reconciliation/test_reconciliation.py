"""What pods allowed without Redis: copied once from Redis, compared with the limits, and reported."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.db import connections
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controlplane.editing import edits
from controlplane.erasure import erase
from controlplane.fleet.models import Event
from controlplane.reconciliation import copying
from controlplane.reconciliation.models import AllowedAlone, Copying
from controlplane.reconciliation.report import Certainty, Line, reconciled
from controlplane.usage.models import RuleDemand
from fuseboard.contract import keys
from tests.controlplane.calling import API
from tests.controlplane.publishing.test_publishing_crashes import killed_at
from tests.people import ADA

ACME = keys.tenant_quota("production", "acme", "requests")
HASH = keys.offline_totals(ACME)
#: The first second of a minute.
AT = 1_763_931_600
START = datetime.fromtimestamp(AT, UTC)
WHY: dict[str, Any] = {"environment": "production", "reason": "for a test", "actor": ADA}


def limit(number: int, **fields: Any) -> None:
    usual = {
        "limit": number,
        "window_s": 60,
        "burst": 1,
        "algorithm": "sliding_window",
        "expected_version": None,
    }
    edits.set_tenant_quota(tenant="acme", quota="requests", **{**usual, **fields}, **WHY)


def report(limits: redis.Redis, parts: dict[str, int], *, identity: str = "one", of: str = ACME) -> None:
    """As ``drain.lua`` adds them: spans, and their sum."""
    name, rest = keys.offline_totals(of), keys.offline_field(of)
    for part, amount in parts.items():
        limits.hincrby(name, f"{rest}@{part}", amount)
    limits.hincrby(name, rest, sum(parts.values()))
    if identity:
        limits.hsetnx(name, "@id", identity)


def amounts() -> dict[str, int]:
    return dict(AllowedAlone.objects.values_list("field", "amount"))


def the_line(minutes: int = 10) -> Line:
    (line,) = reconciled("production", START, START + timedelta(minutes=minutes)).lines
    return line


def allowed_by_pods(*each_minute: int) -> None:
    """What pods counted in all, from the first minute on."""
    for number, asked in enumerate(each_minute):
        at = START + timedelta(minutes=number)
        of = {"environment": "production", "tenant": "acme", "rule": "requests", "grain_s": 60, "at": at}
        RuleDemand.objects.create(asked=asked + 5, refused=5, shadow=0, **of)


def test_totals_are_copied_once_and_then_by_difference(production: str, limits: redis.Redis) -> None:
    report(limits, {f"{AT}+60": 7, f"{AT + 60}+60": 2})
    assert copying.copy() == 1
    assert copying.copy() == 1
    assert amounts() == {
        "quota:requests": 9,
        f"quota:requests@{AT}+60": 7,
        f"quota:requests@{AT + 60}+60": 2,
    }
    report(limits, {f"{AT + 60}+60": 5})
    copying.copy()
    assert amounts()[f"quota:requests@{AT + 60}+60"] == 7
    assert AllowedAlone.objects.filter(tenant="acme", rule="requests").count() == 3


def test_totals_that_redis_lost_count_from_zero(production: str, limits: redis.Redis) -> None:
    report(limits, {f"{AT}+60": 7})
    copying.copy()
    limits.flushall()
    # More than before, so only its name says that it is another hash.
    report(limits, {f"{AT}+60": 9}, identity="two")
    copying.copy()
    assert amounts()[f"quota:requests@{AT}+60"] == 16


def test_a_replica_that_is_behind_counts_nothing_again(production: str, limits: redis.Redis) -> None:
    report(limits, {f"{AT}+60": 7})
    copying.copy()
    limits.hincrby(HASH, f"quota:requests@{AT}+60", -3)
    copying.copy()
    report(limits, {f"{AT}+60": 2})
    copying.copy()
    assert amounts()[f"quota:requests@{AT}+60"] == 9


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("report"), st.integers(1, 9)),
            st.tuples(st.sampled_from(["copy", "flush", "dies"]), st.just(0)),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_whatever_happens_each_reported_call_is_copied_once(
    production: str, limits: redis.Redis, steps: list[tuple[str, int]]
) -> None:
    """What Redis loses before a copy is lost; everything else counts once."""
    AllowedAlone.objects.all().delete()
    Copying.objects.all().delete()
    limits.flushall()
    copied = waiting = hashes = 0
    for step, amount in steps:
        if step == "report":
            report(limits, {f"{AT}+60": amount}, identity=str(hashes))
            waiting += amount
        elif step == "flush":
            limits.flushall()
            waiting, hashes = 0, hashes + 1
        elif step == "dies":
            with pytest.MonkeyPatch.context() as patched:
                # The last thing before the transaction ends.
                patched.setattr(copying.timezone, "now", lambda: 1 / 0)
                with pytest.raises(ZeroDivisionError):
                    copying.copy(START)
        else:
            copying.copy()
            copied, waiting = copied + waiting, 0
    copying.copy()
    assert amounts().get(f"quota:requests@{AT}+60", 0) == copied + waiting


def test_a_killed_worker_loses_nothing_and_counts_nothing_twice(production: str, limits: redis.Redis) -> None:
    report(limits, {f"{AT}+60": 7})
    module = "controlplane.reconciliation.copying"
    for step, before in ((f"{module}._store", True), (f"{module}._store", False), (f"{module}._step", False)):
        killed_at(step, before=before, work=copying.copy)
        assert amounts() == {}
    assert copying.copy() == 1
    assert amounts()[f"quota:requests@{AT}+60"] == 7


def test_two_workers_never_copy_at_once(production: str, limits: redis.Redis) -> None:
    report(limits, {f"{AT}+60": 7})
    Copying.objects.create(pk=1)
    other = connections.create_connection("default")
    try:
        other.set_autocommit(False)
        with other.cursor() as cursor:
            cursor.execute("SELECT 1 FROM reconciliation_copying FOR UPDATE")
            assert copying.copy() == 0
            assert amounts() == {}
        other.rollback()
    finally:
        other.close()
    assert copying.copy() == 1


def test_a_run_that_takes_too_long_continues_with_the_next(
    production: str, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "SCANNED", 100)
    for number in range(300):
        report(limits, {f"{AT}+60": 1}, of=keys.tenant_quota("production", f"t-{number}", "requests"))
    runs, read = 0, 0
    while runs == 0 or Copying.objects.get().running_since is not None:
        read += copying.copy(run_s=0.0)
        runs += 1
    assert runs > 1
    assert read >= 300
    assert AllowedAlone.objects.filter(length_s=60).count() == 300


def test_rows_are_bounded_and_the_report_says_so(
    production: str, limits: redis.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copying, "MAX_ROWS", 2)
    report(limits, {f"{AT + 60 * n}+60": 1 for n in range(5)})
    copying.copy()
    assert AllowedAlone.objects.count() == 2
    found = reconciled("production", START, START + timedelta(hours=1))
    assert found.full
    assert not found.is_certain


def test_it_runs_after_an_outage_and_else_once_an_hour(production: str, limits: redis.Redis) -> None:
    now = timezone.now()
    report(limits, {f"{AT}+60": 1})
    assert copying.copy_if_needed(now) == 1
    assert copying.copy_if_needed(now + timedelta(minutes=1)) == 0
    about = {"environment": "production", "server": "web-1", "boot": "boot-1", "kind": "mode"}
    Event.objects.create(detail="local -> ramping", at=now + timedelta(minutes=1), **about)
    assert copying.copy_if_needed(now + timedelta(minutes=2)) == 1
    assert copying.copy_if_needed(now + timedelta(minutes=3)) == 1
    assert copying.copy_if_needed(now + timedelta(minutes=5)) == 1
    assert copying.copy_if_needed(now + timedelta(minutes=6)) == 0
    assert copying.copy_if_needed(now + timedelta(minutes=70)) == 1


def test_what_is_over_the_limit_is_exact_where_all_is_known(production: str, limits: redis.Redis) -> None:
    limit(100)
    # First minute: 80 + 40 are 20 over. Second: 50 alone is not. Third: 130 alone are 30 over.
    report(limits, {f"{AT}+60": 80, f"{AT + 60}+60": 50, f"{AT + 120}+60": 130})
    allowed_by_pods(120, 50, 130)
    copying.copy(timezone.now())
    line = the_line()
    assert (line.without_redis, line.with_redis, line.capacity) == (260, 40, 300)
    assert (line.over, line.over_at_most, line.certainty) == (50, 50, Certainty.EXACT)
    found = reconciled("production", START, START + timedelta(minutes=10))
    assert (found.without_redis, found.over, found.untimed, found.is_certain) == (260, 50, 0, True)
    # Only the second minute.
    second = reconciled("production", START + timedelta(seconds=60), START + timedelta(seconds=120))
    assert (second.without_redis, second.over) == (50, 0)


def test_what_was_over_is_never_more_than_what_was_allowed_without_redis(
    production: str, limits: redis.Redis
) -> None:
    limit(100)
    report(limits, {f"{AT}+60": 3})
    allowed_by_pods(150)
    copying.copy()
    assert the_line().over == 3


def test_a_window_shorter_than_a_minute_gives_bounds(production: str, limits: redis.Redis) -> None:
    limit(10, window_s=1)
    report(limits, {f"{AT}+60": 700})
    allowed_by_pods(700)
    copying.copy()
    line = the_line()
    assert (line.capacity, line.over, line.over_at_most) == (600, 100, 700)
    assert line.certainty is Certainty.AT_LEAST


def test_without_the_requests_that_redis_allowed_it_is_at_least(production: str, limits: redis.Redis) -> None:
    limit(100)
    report(limits, {f"{AT}+60": 130})
    copying.copy()
    line = the_line()
    assert (line.with_redis, line.over, line.over_at_most) == (None, 30, 130)
    assert line.certainty is Certainty.AT_LEAST


def test_a_token_bucket_allows_its_burst_too(production: str, limits: redis.Redis) -> None:
    limit(100, burst=20, algorithm="token_bucket")
    report(limits, {f"{AT}+60": 125})
    allowed_by_pods(125)
    copying.copy()
    assert (the_line().capacity, the_line().over) == (120, 5)


def test_shadow_limits_are_apart_and_in_no_sum(production: str, limits: redis.Redis) -> None:
    limit(100)
    report(limits, {f"{AT}+60~": 500})
    copying.copy()
    found = reconciled("production", START, START + timedelta(minutes=1))
    assert [line.shadow for line in found.lines] == [True]
    assert (found.without_redis, found.over) == (0, 0)


def test_a_limit_is_the_one_of_the_copy_and_not_of_a_later_edit(production: str, limits: redis.Redis) -> None:
    limit(100)
    report(limits, {f"{AT}+60": 130})
    copying.copy()
    edits.set_tenant_quota(
        tenant="acme", quota="requests", expected_version=None, limit=1000, window_s=60, burst=1, **WHY
    )
    copying.copy()
    assert the_line().over == 30


def test_counters_of_dependencies_callers_and_strangers_have_names(
    production: str, limits: redis.Redis
) -> None:
    for of in (
        keys.vendor_limit("production", "openai", "vendor"),
        keys.dependency_quota("production", "openai", "acme", "llm"),
        keys.tenant_quota("production", "nobody", "requests"),
        keys.subject_limit("production", "203.0.113.7", "addresses"),
        keys.own_limit("production", "edge slow", "addresses"),
        keys.member_quota("production", "acme", "unknown", "requests"),
        keys.tenant_quota("production", "acme", "by-user", "u-1"),
        keys.tenant_quota("gone", "acme", "requests"),
    ):
        report(limits, {f"{AT}+60": 2}, of=of)
    copying.copy()
    rows = AllowedAlone.objects.filter(length_s=60).values_list("tenant", "dependency", "rule", "divided")
    assert sorted(rows) == [
        ("", "", "addresses", True),
        ("", "", "addresses", True),
        ("", "", "requests", False),
        ("", "", "requests", False),
        ("", "openai", "vendor", False),
        ("acme", "", "by-user", True),
        ("acme", "openai", "llm", False),
    ]


def test_fields_that_nobody_writes_are_left_alone(production: str, limits: redis.Redis) -> None:
    limits.hset(HASH, mapping={"quota:requests": "many", "quota:x@later": "3", "@id": "one", "a" * 500: "1"})
    limits.set("fb1:production:{t:" + "0" * 20 + "}:offline", "not a hash")
    limits.delete("fb1:production:{t:" + "0" * 20 + "}:offline")
    assert copying.copy() == 1
    assert amounts() == {}


def test_a_value_that_postgres_refuses_stops_no_other(production: str, limits: redis.Redis) -> None:
    """Pods can write these hashes: names with NUL, and numbers whose sum is out of range."""
    report(limits, {f"{AT}+60": 4})
    limits.hset(HASH, mapping={"quota:a\0b": "3", "quota:big": str(10**18 - 1)})
    limits.hset("fb1:production:{d:a\0b}:offline", mapping={"quota:requests": "3", "@id": "one"})
    for number in range(12):
        limits.hset(HASH, "@id", f"an\0id-{number}")
        copying.copy()
    assert not any("\0" in field for field in amounts())
    limits.hincrby(HASH, f"quota:requests@{AT}+60", 1)
    before = amounts()
    copying.copy()
    assert sum(amounts().values()) > sum(before.values()), "the others go on"


def test_calls_of_the_former_release_have_no_time(production: str, limits: redis.Redis) -> None:
    report(limits, {f"{AT}+60": 4})
    limits.hincrby(HASH, "quota:requests", 6)
    limits.hincrby(HASH, "quota:requests@0+0", 1)
    limits.hincrby(HASH, "quota:requests", 1)
    copying.copy()
    found = reconciled("production", START, START + timedelta(minutes=1))
    assert (found.without_redis, found.untimed, found.is_certain) == (4, 7, False)


def test_a_tenant_is_erased_and_not_copied_again(production: str, limits: redis.Redis) -> None:
    report(limits, {f"{AT}+60": 7})
    copying.copy()
    erased = erase(environment="production", kind="tenant", value="acme", reason="asked for it", actor=ADA)
    assert erased.without_redis == 2
    copying.copy()
    assert not AllowedAlone.objects.filter(tenant="acme").exists()
    assert reconciled("production", START, START + timedelta(minutes=1)).lines == []


def test_old_rows_are_forgotten(production: str, limits: redis.Redis) -> None:
    report(limits, {f"{AT}+60": 7})
    copying.copy()
    assert copying.forget(timezone.now() + timedelta(days=39)) == 0
    assert copying.forget(timezone.now() + timedelta(days=41)) == 2


def test_the_api_answers_the_report(production: str, limits: redis.Redis, call: Any) -> None:
    limit(100)
    report(limits, {f"{AT}+60": 130})
    allowed_by_pods(140)
    copying.copy()
    address = f"{API}/reconciliation?since=2025-11-23T21:00:00Z&until=2025-11-23T21:10:00Z"
    answer = call("viewer", "GET", address)
    assert answer.status_code == 200
    found = json.loads(answer.content)
    assert (found["over"], found["certain"], found["limits"][0]["with_redis"]) == (40, True, 10)
    assert json.loads(call("viewer", "GET", f"{API}/reconciliation/outages").content) == []
    wrong = f"{API}/reconciliation?since=2025-11-23T21:00:00Z&until=2025-11-22T21:10:00Z"
    assert call("viewer", "GET", wrong).status_code in (400, 422)
    long = f"{API}/reconciliation?since=2025-01-01T00:00:00Z&until=2025-11-22T21:10:00Z"
    assert call("viewer", "GET", long).status_code in (400, 422)
