"""The stored top lists: never too high, bounded, added up to hours, and forgotten in time."""

from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from controlplane.erasure import erase
from controlplane.gateway.servers.counter_delta import tenants_left_out
from controlplane.gateway.servers.top_refusals import MAX_WAITING, SIZE, TopRefusals
from controlplane.refusals.heavy_hitters import HeavyHitters
from controlplane.refusals.models import TopList
from controlplane.refusals.top_lists import (
    CALLS_BY_DEPENDENCY,
    CALLS_BY_REASON,
    CALLS_BY_TENANT,
    MAX_STORED,
    REQUESTS_BY_ENDPOINT,
    REQUESTS_BY_REASON,
    REQUESTS_BY_TENANT,
    Of,
    forget,
    read_top,
    roll_up,
)
from fuseboard.contract.refusal_samples import RefusalSample
from fuseboard.contract.sync import Counters, DependencyCounters, TenantCounters
from fuseboard.contract.words import Reason
from tests.controlplane.calling import API, send, token_of
from tests.controlplane.gateway.manual_gateway import NOON, beat
from tests.controlplane.series.test_series_gateway import Setting, setting  # noqa: F401
from tests.controlplane.series.test_tenant_hours import obey

START = datetime(2026, 11, 28, 10, tzinfo=UTC)


@given(st.integers(1, 6), st.lists(st.tuples(st.integers(0, 40).map(str), st.integers(1, 50))))
def test_a_count_is_never_too_high_and_too_low_by_no_more_than_is_stated(
    size: int, added: list[tuple[str, int]]
) -> None:
    exact: Counter[str] = Counter()
    found = HeavyHitters(size)
    for name, weight in added:
        exact[name] += weight
        found.add(name, weight)
        assert len(found.counts) <= 2 * size
    assert found.total == exact.total()
    assert found.missed * (size + 1) <= found.total
    lines, short_by = found.top(size)
    listed = dict(lines)
    for name, true in exact.items():
        assert listed.get(name, 0) <= true <= listed.get(name, 0) + short_by
    if len(exact) <= size:
        assert (listed, short_by) == (exact, 0)


@given(
    st.lists(
        st.dictionaries(st.integers(0, 80).map(str), st.integers(1, 9), max_size=70), min_size=1, max_size=4
    )
)
@pytest.mark.django_db
def test_added_up_hours_state_their_bound_too(minutes: list[dict[str, int]]) -> None:
    TopList.objects.all().delete()
    exact: Counter[str] = Counter()
    for number, counts in enumerate(minutes):
        exact.update(counts)
        store(START + timedelta(minutes=number), counts)
    roll_up(START + timedelta(minutes=59))
    hour = TopList.objects.get(grain_s=3600)
    assert len(hour.names) <= MAX_STORED
    assert hour.total == exact.total()
    listed = dict(zip(hour.names, hour.counts, strict=True))
    for name, true in exact.items():
        assert listed.get(name, 0) <= true <= listed.get(name, 0) + hour.short_by


def store(
    at: datetime,
    counts: dict[str, int],
    *,
    kind: Any = REQUESTS_BY_TENANT,
    writer: int = 1,
    environment: str = "production",
) -> None:
    found = HeavyHitters(SIZE)
    for name, count in counts.items():
        found.add(name, count)
    lines, short_by = found.top(MAX_STORED)
    TopList.objects.create(
        environment=environment,
        kind=kind.number,
        grain_s=60,
        at=at,
        writer=writer,
        names=[name for name, _ in lines],
        counts=[count for _, count in lines],
        total=found.total,
        short_by=short_by,
    )


@pytest.mark.django_db
def test_a_range_has_the_minutes_of_all_gateways_and_the_hours_before() -> None:
    now = START + timedelta(hours=5, minutes=30)
    store(START, {"acme": 7, "globex": 1})
    store(now - timedelta(minutes=5), {"acme": 2, "globex": 4})
    store(now - timedelta(minutes=5), {"globex": 3}, writer=2)
    for hour in range(6):
        roll_up(START + timedelta(hours=hour, minutes=59))

    def counted(**ago: int) -> list[tuple[str, float]]:
        top = read_top("production", now - timedelta(**ago), now, now=now).lists[REQUESTS_BY_TENANT]
        return [(line.name, line.count) for line in top.lines]

    assert counted(minutes=15) == [("globex", 7), ("acme", 2)]
    assert counted(hours=24) == [("acme", 9), ("globex", 8)]
    assert not read_top("production", now - timedelta(minutes=2), now, now=now).known
    # Minutes of an hour that the worker has not added up yet count all the same.
    TopList.objects.filter(grain_s=3600, at__gte=now - timedelta(hours=1)).delete()
    assert counted(hours=24) == [("acme", 9), ("globex", 8)]


@pytest.mark.django_db
def test_a_worker_that_was_stopped_for_hours_adds_up_what_it_missed() -> None:
    store(START + timedelta(minutes=5), {"acme": 1})
    roll_up(START + timedelta(minutes=20))
    # It had added up a part of the first hour. The other environment has only this hour.
    for minutes in (30, 70, 200, 290):
        store(START + timedelta(minutes=minutes), {"acme": 1})
    store(START + timedelta(minutes=290), {"globex": 3}, environment="staging")
    back = START + timedelta(hours=5, minutes=20)
    forget(back)
    roll_up(back)
    now = START + timedelta(hours=12)
    forget(now)
    assert set(TopList.objects.values_list("grain_s", flat=True)) == {3600}
    for environment, lines in (("production", [("acme", 5)]), ("staging", [("globex", 3)])):
        top = read_top(environment, START, now, now=now).lists[REQUESTS_BY_TENANT]
        assert [(line.name, line.count) for line in top.lines] == lines


@pytest.mark.django_db
def test_only_the_present_hour_and_the_one_before_are_added_up_again() -> None:
    for hour in range(3):
        store(START + timedelta(hours=hour), {"acme": 1})
        store(START + timedelta(hours=hour), {"acme": 1}, environment="staging")
    roll_up(START + timedelta(hours=2, minutes=1))
    with CaptureQueriesContext(connection) as asked:
        roll_up(START + timedelta(hours=2, minutes=2))
    assert sum("INSERT" in query["sql"] for query in asked.captured_queries) == 4


@pytest.mark.django_db
def test_minutes_are_deleted_by_whole_hours() -> None:
    """So that an hour is never added up from a part of its minutes."""
    store(START, {"acme": 1})
    store(START + timedelta(minutes=59), {"acme": 1})
    assert forget(START + timedelta(hours=6, minutes=30)) == 0
    assert forget(START + timedelta(hours=7)) == 2


@pytest.mark.django_db
def test_the_range_is_answered_as_it_was_counted() -> None:
    now = START + timedelta(hours=5, minutes=30, seconds=20)

    def counted(start: datetime, end: datetime) -> tuple[datetime, datetime]:
        found = read_top("production", start, end, now=now)
        return found.start, found.end

    minute, hour = timedelta(minutes=1), timedelta(hours=1)
    assert counted(START + 5 * minute, START + 7 * minute) == (START, START + hour)
    assert counted(START + 5 * minute, START + hour) == (START, START + hour)
    assert counted(START, now) == (START, START + 5 * hour + 31 * minute)
    assert counted(now - minute, now)[0] == START + 5 * hour + 29 * minute


@pytest.mark.django_db(transaction=True)
def test_the_api_answers_the_lists(production: str) -> None:
    at = datetime.now(UTC).replace(second=0, microsecond=0)
    store(at, {"acme": 7, "globex": 1})
    store(at, {"payments-api": 3}, kind=CALLS_BY_DEPENDENCY)
    found = send(token_of("viewer"), "GET", f"{API}/refusals/top").json()
    assert found["lists"] == [
        {
            "of": "requests",
            "by": "tenant",
            "sampled": False,
            "total": 8,
            "short_by": 0,
            "lines": [{"name": "acme", "count": 7}, {"name": "globex", "count": 1}],
        },
        {
            "of": "calls",
            "by": "dependency",
            "sampled": False,
            "total": 3,
            "short_by": 0,
            "lines": [{"name": "payments-api", "count": 3}],
        },
    ]
    assert found["stored_since"] is not None
    assert found["start"] < found["stored_since"] < found["end"]


@pytest.mark.django_db
def test_minutes_are_kept_for_hours_and_hours_for_four_weeks() -> None:
    store(START, {"acme": 1})
    roll_up(START + timedelta(minutes=1))
    forget(START + timedelta(hours=5))
    assert TopList.objects.count() == 2
    forget(START + timedelta(hours=7))
    assert TopList.objects.get().grain_s == 3600
    now = START + timedelta(days=28)
    top = read_top("production", now - timedelta(days=28), now, now=now).lists[REQUESTS_BY_TENANT]
    assert [line.name for line in top.lines] == ["acme"]
    forget(START + timedelta(days=30))
    assert TopList.objects.count() == 0


def test_what_waits_for_postgres_is_bounded() -> None:
    tops = TopRefusals()
    for minute in range(3 * MAX_WAITING):
        for batch in range(30):
            tenants = tuple(
                TenantCounters(tenant=f"invented-{minute}-{batch}-{number}", refused=1)
                for number in range(50)
            )
            tops.count(Counters(refused={Reason.QUOTA: 50}, tenants=tenants), 60.0 * minute)
    assert len(tops.minutes) == MAX_WAITING
    assert all(len(one.counts) <= 2 * SIZE for m in tops.minutes.values() for one in m.lists.values())


def test_a_minute_that_is_written_does_not_begin_again_when_the_clock_steps_back() -> None:
    tops = TopRefusals()
    refused = Counters(refused={Reason.QUOTA: 1})
    tops.count(refused, 600.0)
    tops.count(refused, 660.0)
    for minute in tops.dirty():
        minute.dirty = False
    tops.written()
    tops.count(refused, 601.0)
    assert [minute.at for minute in tops.dirty()] == [660]


def test_a_list_says_how_much_of_tenants_that_a_pod_did_not_list_is_missing() -> None:
    tops, acme = TopRefusals(), TenantCounters(tenant="acme", refused=4)
    counted = Counters(refused={Reason.QUOTA: 9}, tenants=(acme,))
    tops.count(counted, 0.0)
    tops.count(counted, 60.0, tenants_left_out=True)
    lists = [tops.minutes[at].of(REQUESTS_BY_TENANT) for at in (0, 60)]
    assert [found.total for found in lists] == [9, 9]
    assert [found.top(MAX_STORED) for found in lists] == [([("acme", 4)], 0), ([("acme", 4)], 5)]


def test_a_short_list_has_all_tenants_and_a_full_or_cut_one_may_not() -> None:
    def listed(many: int, requests: int = 99) -> Counters:
        tenants = tuple(TenantCounters(tenant=f"t{number}", allowed=1) for number in range(many))
        return Counters(requests=requests, tenants=tenants)

    def left_out(was: Counters, now: Counters, *, was_cut: bool = False, now_cut: bool = False) -> bool:
        return tenants_left_out(was, now, was_cut=was_cut, now_cut=now_cut)

    assert not left_out(listed(2), listed(2))
    assert left_out(listed(50), listed(50))
    assert not left_out(listed(50, requests=50), listed(50, requests=50))
    assert left_out(listed(2), listed(2), was_cut=True)
    assert left_out(listed(2), listed(2), now_cut=True)
    # A tenant that is new beside requests without a tenant counts from its next heartbeat.
    assert left_out(listed(2), listed(3))
    assert not left_out(listed(2, requests=2), listed(3))


def refusals_of(number: int) -> Counters:
    """Totals of a pod: each heartbeat adds these."""
    return Counters(
        requests=20 * number,
        refused={Reason.QUOTA: 7 * number, Reason.SUSPENDED: 2 * number},
        tenants=(
            TenantCounters(tenant="acme", allowed=11 * number, refused=6 * number),
            TenantCounters(tenant="globex", refused=2 * number),
        ),
        dependencies=(
            DependencyCounters(dependency="payments-api", refused={Reason.BREAKER_OPEN: 4 * number}),
        ),
    )


SAMPLES = (
    RefusalSample(
        rule="requests", reason=Reason.QUOTA, tenant="acme", endpoint="POST /v1/orders", weight=9.0
    ),
    RefusalSample(dependency="payments-api", reason=Reason.BREAKER_OPEN, tenant="acme", weight=4.0),
)


@pytest.mark.usefixtures("token", "thread_connections")
async def test_the_lists_of_a_gateway_agree_with_what_pods_counted(setting, database, ada):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    fleet = gateway.fleet("production")
    setting.clock.turn(10)
    for number in (0, 1, 2, 3):
        fleet.absorb(beat(sequence=number + 1, up_ms=10_000 * number + 1, counters=refusals_of(number)))
        taken = gateway.coordination.refusals.record(beat(refusals=SAMPLES))
        fleet.sums.tops.sample(taken, setting.clock.wall())
        setting.clock.turn(10)
        await setting.write(writer)
        # A repeated write replaces what it wrote.
        for minute in fleet.sums.tops.minutes.values():
            minute.dirty = True
        await setting.write(writer)
    now = datetime.fromtimestamp(NOON, UTC) + timedelta(minutes=30)

    def read() -> Any:
        return read_top("production", now - timedelta(hours=2), now, now=now)

    def in_memory() -> set[str]:
        minutes = fleet.sums.tops.minutes.values()
        return {name for minute in minutes for name in minute.of(REQUESTS_BY_TENANT).counts}

    found = await sync_to_async(read)()
    assert {
        kind.number: [(line.name, line.count) for line in top.lines] for kind, top in found.lists.items()
    } == {
        REQUESTS_BY_TENANT.number: [("acme", 18), ("globex", 6)],
        REQUESTS_BY_REASON.number: [("quota", 21), ("suspended", 6)],
        REQUESTS_BY_ENDPOINT.number: [("POST /v1/orders", 36)],
        CALLS_BY_DEPENDENCY.number: [("payments-api", 12)],
        CALLS_BY_REASON.number: [("breaker_open", 12)],
        CALLS_BY_TENANT.number: [("acme", 16)],
        7: [("", 16)],
    }
    assert found.lists[REQUESTS_BY_TENANT].total == found.refused(Of.REQUESTS) == 27
    assert found.lists[REQUESTS_BY_TENANT].rest == 3
    assert found.refused(Of.CALLS) == 12
    assert {top.short_by for top in found.lists.values()} == {0}

    wanted = {"environment": "production", "kind": "tenant", "value": "acme", "actor": ada}
    # A gateway that writes what it has in memory brings nothing back.
    await sync_to_async(erase)(**wanted, reason="privacy request 12")
    await obey(gateway, database)
    for minute in fleet.sums.tops.minutes.values():
        minute.dirty = True
    await setting.write(writer)
    after = await sync_to_async(read)()
    assert [line.name for line in after.lists[REQUESTS_BY_TENANT].lines] == ["globex"]
    assert after.lists[CALLS_BY_TENANT].lines == []
    assert after.refused(Of.REQUESTS) == 27
    # A heartbeat that was not counted yet brings it back into memory: it is erased there again.
    fleet.absorb(beat(sequence=5, up_ms=40_001, counters=refusals_of(4)))
    setting.clock.turn(10)
    await setting.write(writer)
    assert in_memory() == {"acme", "globex"}
    await obey(gateway, database)
    assert in_memory() == {"globex"}
    await setting.write(writer)
    after = await sync_to_async(read)()
    assert [line.name for line in after.lists[REQUESTS_BY_TENANT].lines] == ["globex"]
    assert after.refused(Of.REQUESTS) == 36


@pytest.mark.usefixtures("token", "thread_connections")
async def test_a_list_that_was_on_its_way_is_erased_again(setting, database, ada):  # noqa: F811
    """A gateway that died after its write has no memory to erase."""
    gateway, _ = setting.gateway("g1")
    wanted = {"environment": "production", "kind": "tenant", "value": "acme", "actor": ada}
    await sync_to_async(erase)(**wanted, reason="privacy request 12")
    at = datetime.now(UTC).replace(second=0, microsecond=0)
    await sync_to_async(store)(at, {"acme": 3, "globex": 1})
    await gateway.coordination.orders.look(database)
    rows = await (await database.execute("SELECT names, counts, total FROM refusals_toplist")).fetchall()
    assert rows == [(["globex"], [1.0], 4.0)]
