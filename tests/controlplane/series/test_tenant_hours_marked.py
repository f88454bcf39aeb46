"""Hours whose counts are not complete say so, and no tally counts twice or is overwritten."""

from datetime import timedelta

import pytest
from asgiref.sync import sync_to_async

from controlplane.gateway.servers import tenant_hours
from controlplane.series.reading import Partial
from controlplane.series.tenant_hours import read_hours
from fuseboard.contract.tallies import Tally, TenantTally
from tests.controlplane.gateway.manual_gateway import NOON, beat
from tests.controlplane.series.test_series_gateway import setting  # noqa: F401
from tests.controlplane.series.test_tenant_hours import START, Pods, read

pytestmark = pytest.mark.usefixtures("token", "thread_connections")

FIRST = int(START.timestamp())


async def test_hours_without_some_requests_are_partial(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3), partial=True)
    await pods.write(gateway, writer)
    assert (await read("small")).partial == [Partial(start=FIRST, end=FIRST + 3_600, heard=0, known=0)]
    # Unknown hours need no mark.
    assert (await read("silent")).partial == []
    # Neighbours are one run.
    await database.execute(
        "INSERT INTO series_tenant_hour SELECT part, hour + n * interval '1 hour', writer, known_s, partial,"
        " ids, asked, refused FROM series_tenant_hour, generate_series(1, 4) n WHERE n <> 3"
    )
    end = START + timedelta(hours=5)
    answer = await sync_to_async(read_hours)(
        "production", "small", fields=["asked"], start=START, end=end, now=end
    )
    assert [(run.start - FIRST, run.end - FIRST) for run in answer.partial] == [(0, 10_800), (14_400, 18_000)]


async def test_a_stale_heartbeat_does_not_make_a_tally_count_twice(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3), up_ms=60_000)
    # An older process of the same name, which the pod replaced.
    await pods.tally(gateway, None, boot="boot-0000", up_ms=7_200_000)
    await pods.tally(gateway, 1, TenantTally("small", 3), up_ms=60_000)
    await pods.write(gateway, writer)
    answer = await read("small")
    assert (answer.fields["asked"], answer.partial) == ([3], [])
    # Its tally is answered and not counted, so the hour says that requests are missing.
    await pods.tally(gateway, 9, TenantTally("small", 1), boot="boot-0000", up_ms=7_200_000)
    await pods.write(gateway, writer)
    answer = await read("small")
    assert (answer.fields["asked"], len(answer.partial)) == ([3], 1)


async def test_a_repeated_part_can_say_that_more_is_left(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3))
    await pods.tally(gateway, 1, TenantTally("small", 3), partial=True)
    await pods.write(gateway, writer)
    answer = await read("small")
    assert (answer.fields["asked"], len(answer.partial)) == ([3], 1)


async def test_a_clock_that_steps_back_overwrites_no_hour(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    clock, pods = setting.clock, Pods(setting)

    def show(hours: int) -> None:
        clock.wall = lambda: NOON + clock.now + hours * tenant_hours.HOUR_S

    await pods.tally(gateway, 1, TenantTally("small", 3))
    await pods.write(gateway, writer)
    show(1)
    await pods.tally(gateway, 2, TenantTally("small", 10))
    await pods.write(gateway, writer)
    assert list(gateway.fleet("production").sums.tenant_hours.hours) == [FIRST + tenant_hours.HOUR_S]
    show(0)
    await pods.tally(gateway, 3, TenantTally("small", 4))
    await pods.write(gateway, writer)
    assert (await read("small", hours=2)).fields["asked"] == [7, 10]
    # The same again, and what is written twice counts once.
    await pods.write(gateway, writer)
    show(1)
    await pods.write(gateway, writer)
    assert (await read("small", hours=2)).fields["asked"] == [7, 10]


def test_a_repeated_heartbeat_marks_nothing() -> None:
    hours = tenant_hours.TenantHours()
    one = beat(tally=Tally(number=1, tenants=(TenantTally("small", 3),)))
    hours.record(one, 0.0, NOON)
    hours.record(one, 0.0, NOON, stale=True)
    assert [(hour.partial, hour.tenants) for hour in hours.hours.values()] == [(False, 1)]
