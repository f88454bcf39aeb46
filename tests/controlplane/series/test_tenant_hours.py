"""The hours of all active tenants: from tallies of pods through a gateway and Postgres to a chart."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from structlog.testing import capture_logs

from controlplane.erasure import erase
from controlplane.gateway.postgres import tenant_hours as hours_rows
from controlplane.gateway.postgres.tenant_hours import WRITE_S, HoursWriter
from controlplane.gateway.process import Gateway
from controlplane.gateway.servers import tenant_hours
from controlplane.series import retention
from controlplane.series.kinds import TENANT_PARTS, tenant_number, tenant_part
from controlplane.series.models import Writer
from controlplane.series.reading import Answer
from controlplane.series.tenant_hours import erase_hours, read_hours
from fuseboard.contract.sync import Counters, decode_response
from fuseboard.contract.tallies import Tally, TenantTally
from tests.controlplane.gateway.manual_gateway import NOON, TurnedClock, beat, post, ready_gateway
from tests.controlplane.series.test_series_gateway import Setting, setting  # noqa: F401
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("token", "thread_connections")

START = datetime.fromtimestamp(int(NOON) // 3600 * 3600, UTC)


class Pods:
    def __init__(self, setting: Setting) -> None:  # noqa: F811
        self.setting = setting
        self.sequence = 0

    async def tally(self, gateway: Any, number: int | None, *tenants: TenantTally, **fields: Any) -> None:
        self.sequence += 1
        partial = fields.pop("partial", False)
        tally = None if number is None else Tally(number=number, tenants=tenants, partial=partial)
        answer = await post(gateway, beat(sequence=self.sequence, tally=tally, **fields))
        assert decode_response(answer.content).next_ms

    async def write(self, gateway: Any, writer: Any) -> None:
        """Heartbeats for 20 s, and a write later."""
        await writer.collect()
        self.setting.clock.turn(20)
        await self.tally(gateway, None)
        await writer.collect()
        self.setting.clock.turn(WRITE_S)
        await self.setting.write(writer)
        assert await hours_of(gateway, writer).write()


def hours_of(gateway: Any, writer: Any) -> HoursWriter:
    return HoursWriter(gateway.fleets, writer.numbers, gateway.settings, gateway.counts, gateway.clock)


async def read(tenant: str, hours: int = 1) -> Answer:
    end = START + timedelta(hours=hours)
    return await sync_to_async(read_hours)(
        "production", tenant, fields=["asked", "refused"], start=START, end=end, now=end
    )


async def test_a_tenant_that_is_never_listed_has_its_hours(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3, 1), TenantTally("other", 9))
    await pods.write(gateway, writer)
    await pods.tally(gateway, 2, TenantTally("small", 2, 1))
    await pods.write(gateway, writer)
    answer = await read("small")
    assert answer.fields == {"asked": [5], "refused": [2]}
    assert answer.step_s == 3600
    assert answer.known_s == [40]
    assert answer.first_at == int(START.timestamp())
    # Every pod tallies, so a tenant in no tally asked for nothing.
    assert (await read("silent")).fields == {"asked": [0], "refused": [0]}


async def test_an_hour_without_a_gateway_is_unknown(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3))
    await pods.write(gateway, writer)
    answer = await read("small", hours=2)
    assert answer.fields["asked"] == [3, None]
    assert answer.known_s[1] == 0
    end = START + timedelta(hours=1)
    nothing = await sync_to_async(read_hours)(
        "staging", "small", fields=["asked"], start=START, end=end, now=end
    )
    assert (nothing.fields, nothing.first_at) == ({"asked": [None]}, None)


async def test_a_tally_that_arrives_twice_counts_once(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    for _ in range(3):
        await pods.tally(gateway, 1, TenantTally("small", 3))
    await pods.tally(gateway, 1, TenantTally("small", 3), boot="another-process")
    await pods.write(gateway, writer)
    await pods.write(gateway, writer)
    assert (await read("small")).fields["asked"] == [6]


async def test_gateways_and_their_restarts_add_up(setting, database):  # noqa: F811
    pods = Pods(setting)
    for name, number in (("g1", 1), ("g2", 2), ("g1", 3)):
        gateway, writer = setting.gateway(name)
        await pods.tally(gateway, number, TenantTally("small", 10**number))
        await pods.write(gateway, writer)
    assert (await read("small")).fields["asked"] == [1_110]


async def test_an_older_pod_makes_the_tenants_without_a_tally_unknown(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    counters = Counters(requests=5)
    await pods.tally(gateway, None, counters=counters)
    setting.clock.turn(tenant_hours.SILENT_S + 1)
    await pods.tally(gateway, None, counters=counters)
    gateway.fleet("production").sums.tenant_hours._hour(setting.clock.wall()).add("small", 4, 0)
    await pods.write(gateway, writer)
    assert (await read("small")).fields["asked"] == [4]
    assert (await read("silent")).fields["asked"] == [None]


async def test_too_many_tenants_are_left_out_and_unknown(setting, database, monkeypatch):  # noqa: F811
    monkeypatch.setattr(tenant_hours, "MAX_TENANTS", 2)
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, *(TenantTally(name, 1) for name in ("a", "b", "c", "a")))
    await pods.write(gateway, writer)
    assert [(await read(name)).fields["asked"] for name in "abc"] == [[2], [1], [None]]


async def test_a_pod_leaves_room_for_the_tenants_of_others(setting, database, monkeypatch):  # noqa: F811
    monkeypatch.setattr(tenant_hours, "MAX_OF_POD", 2)
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, *(TenantTally(name, 1) for name in ("a", "b", "invented", "a")))
    # A new process of it brings no more, and what is known counts on.
    await pods.tally(gateway, 1, TenantTally("more", 1), TenantTally("b", 1), boot="boot-0002", up_ms=1)
    await pods.tally(gateway, 1, TenantTally("other", 1), server="pod-2")
    await pods.write(gateway, writer)
    assert [(await read(name)).fields["asked"] for name in ("a", "b", "other")] == [[2], [2], [1]]
    assert [(await read(name)).fields["asked"] for name in ("invented", "more")] == [[None], [None]]


@pytest.mark.parametrize(
    ("tallied", "kept"),
    [
        ([(0, 2**31 - 1), (0, 2**31 - 1)], (0, 0)),
        ([(2**31 - 1, 2**31 - 1), (2**31 - 1, 2**31 - 1)], (2**31 - 1, 2**31 - 1)),
        ([(2**31 - 1, 0), (9, 2**31 - 1)], (2**31 - 1, 9)),
        ([(5, 7), (5, 1)], (10, 6)),
    ],
)
async def test_a_pod_that_counts_nonsense_stops_no_hour(setting, database, tallied, kept):  # noqa: F811
    """Sums fit into Postgres, and no more is refused than was asked."""
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, *(TenantTally("x", *one) for one in tallied), TenantTally("good", 3, 1))
    await pods.write(gateway, writer)
    fields = (await read("x")).fields
    assert (fields["asked"], fields["refused"]) == ([kept[0]], [kept[1]])
    assert (await read("good")).fields == {"asked": [3], "refused": [1]}


async def test_an_environment_that_fails_stops_no_other(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3))
    gateway.fleet("broken").sums.tenant_hours._hour(setting.clock.wall()).add("small", 1, 0)
    await setting.write(writer)
    setting.clock.turn(20)
    await pods.tally(gateway, None)
    await writer.collect()
    hours = hours_of(gateway, writer)
    hours._numbers = {"broken": -1, "production": writer.numbers["production"]}
    await database.execute("ALTER TABLE series_tenant_hour ADD CHECK (writer > 0)")
    try:
        with capture_logs() as logs:
            assert not await hours.write()
    finally:
        await database.execute(
            "ALTER TABLE series_tenant_hour DROP CONSTRAINT series_tenant_hour_writer_check"
        )
    assert [one["environment"] for one in logs if one["event"] == "gateway.write_refused"] == ["broken"]
    assert (await read("small")).fields["asked"] == [3]


async def test_a_part_that_is_refused_stops_no_other_part_of_its_transaction(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    hour = gateway.fleet("production").sums.tenant_hours._hour(setting.clock.wall())
    names = {tenant_part(tenant_number(name)): name for name in (f"customer-{n}" for n in range(3_000))}
    for name in names.values():
        hour.add(name, 3, 1)
    bad = names.pop(7)
    # No tally of a pod can bring this: sums are cut before.
    hour.parts[7][tenant_number(bad)] = 2**40 << 32
    with capture_logs() as logs:
        await pods.write(gateway, writer)
    rows = await database.execute("SELECT part FROM series_tenant_hour WHERE part >= 0 ORDER BY part")
    assert [part for (part,) in await rows.fetchall()] == sorted(names)
    assert (await read(names[8])).fields == {"asked": [3], "refused": [1]}
    assert gateway.counts.refused_writes.total["production", "hours of tenants"] == 1
    assert [one["what"] for one in logs if one["event"] == "gateway.write_refused"] == ["hours of tenants"]
    await pods.write(gateway, writer)
    assert gateway.counts.refused_writes.total["production", "hours of tenants"] == 1, "it is dropped"


async def test_an_hour_that_is_refused_stops_no_other_hour(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3))
    await pods.write(gateway, writer)
    hours = gateway.fleet("production").sums.tenant_hours
    hours._hour(setting.clock.wall() - 3_600).known_s = 2**40
    hours.hours = dict(sorted(hours.hours.items()))
    await pods.tally(gateway, 2, TenantTally("small", 2))
    assert not await hours_of(gateway, writer).write()
    assert (await read("small")).fields["asked"] == [5]


async def test_what_postgres_did_not_take_is_written_later(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3))
    await setting.write(writer)
    hours = hours_of(gateway, writer)
    await database.execute("ALTER TABLE series_tenant_hour RENAME TO hidden")
    with capture_logs() as logs:
        assert not await hours.write()
    [line] = [line for line in logs if line["event"] == "gateway.hours_failed"]
    assert line["environment"] == "production"
    assert gateway.counts.series_failures == 1
    await database.execute("ALTER TABLE hidden RENAME TO series_tenant_hour")
    await pods.write(gateway, writer)
    assert (await read("small")).fields["asked"] == [3]


async def test_a_write_ends_while_tallies_arrive(setting, database, monkeypatch):  # noqa: F811
    """Each transaction writes parts that count again meanwhile: those are for the next write."""
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    hour = gateway.fleet("production").sums.tenant_hours._hour(setting.clock.wall())
    names = [f"customer-{n}" for n in range(3_000)]
    for name in names:
        hour.add(name, 1, 0)
    assert len(hour.parts) == TENANT_PARTS
    first = [name for name in names if tenant_part(tenant_number(name)) < hours_rows.PARTS_AT_ONCE]
    write, transactions = hours_rows._write, []

    async def with_tallies(*args: Any) -> None:
        await write(*args)
        transactions.append(args)
        assert len(transactions) <= 1 + TENANT_PARTS // hours_rows.PARTS_AT_ONCE, "it does not end"
        for name in first:
            hour.add(name, 1, 0)

    monkeypatch.setattr(hours_rows, "_write", with_tallies)
    await pods.write(gateway, writer)
    for name in names:
        if name not in first:
            assert not hour.dirty & {tenant_part(tenant_number(name))}
    assert hour.dirty == {tenant_part(tenant_number(name)) for name in first}
    monkeypatch.undo()
    await pods.write(gateway, writer)
    assert not hour.dirty
    assert (await read(first[0])).fields["asked"] == [1 + len(transactions)]


async def test_spans_of_10_s_do_not_wait_for_hours(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3))
    await setting.write(writer)
    async with database.transaction():
        await database.execute("LOCK TABLE series_tenant_hour")
        hours = asyncio.create_task(hours_of(gateway, writer).write())
        for _ in range(4):
            setting.clock.turn(10)
            await pods.tally(gateway, None)
            await setting.write(writer)
        cursor = await database.execute("SELECT count(*) FROM series_span")
        assert await cursor.fetchone() == (3,)
        assert not hours.done()
    assert await hours
    assert (await read("small")).fields["asked"] == [3]


async def test_a_gateway_that_stops_writes_what_it_has(token):
    clock = TurnedClock()
    gateway = ready_gateway(clock)
    Gateway.start(gateway)
    answer = await post(gateway, beat(tally=Tally(number=1, tenants=(TenantTally("small", 3),))))
    assert answer.status_code == 200
    clock.turn(5)
    await gateway.stop()
    assert (await read("small")).fields["asked"] == [3]


async def test_a_tenant_is_erased_from_its_hours(setting, database, ada):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    names = [f"customer-{n}" for n in range(600)]
    for number, at in enumerate(range(0, 600, 200), start=1):
        await pods.tally(gateway, number, *(TenantTally(name, 7) for name in names[at : at + 200]))
    await pods.write(gateway, writer)
    wanted = {"environment": "production", "kind": "tenant", "value": "customer-300", "actor": ada}
    await sync_to_async(erase)(**wanted, reason="privacy request 12")
    assert (await read("customer-300")).fields["asked"] == [0]
    for name in ("customer-299", "customer-301", "customer-0"):
        assert (await read(name)).fields["asked"] == [7]


async def test_an_erased_tenant_does_not_come_back_with_its_neighbours(setting, database, ada):  # noqa: F811
    """A gateway writes all tenants of a part together, also when only one of them counts again."""
    gateway, writer = setting.gateway("g1")
    part = tenant_part(tenant_number("customer-0"))
    names = (f"customer-{n}" for n in range(1, 3_000))
    other = next(name for name in names if tenant_part(tenant_number(name)) == part)
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("customer-0", 7), TenantTally(other, 7))
    await pods.write(gateway, writer)
    wanted = {"environment": "production", "kind": "tenant", "value": "customer-0", "actor": ada}
    await sync_to_async(erase)(**wanted, reason="privacy request 12")
    await obey(gateway, database)
    await pods.tally(gateway, 2, TenantTally(other, 2))
    await pods.write(gateway, writer)
    assert (await read("customer-0")).fields["asked"] == [0]
    assert (await read(other)).fields["asked"] == [9]
    # A tenant that asks again is counted again, and the order is obeyed once.
    await pods.tally(gateway, 3, TenantTally("customer-0", 1))
    await obey(gateway, database)
    await pods.write(gateway, writer)
    assert (await read("customer-0")).fields["asked"] == [1]
    [order] = await (
        await database.execute("SELECT row_to_json(o)::text FROM fleet_gatewayorder o")
    ).fetchall()
    assert "customer-0" not in order[0]


async def obey(gateway: Any, database: Any) -> None:
    """A gateway looks for orders. Its clock is not that of Postgres."""
    await database.execute("UPDATE fleet_gatewayorder SET at = to_timestamp(%s)", [gateway.clock.wall()])
    await gateway.coordination.orders.look(database)


async def test_a_row_that_was_on_its_way_is_erased_again(setting, database, ada):  # noqa: F811
    """A gateway that died after its write has no memory to erase: any other one corrects its row."""
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("acme", 7), TenantTally("other", 7))
    wanted = {"environment": "production", "kind": "tenant", "value": "acme", "actor": ada}
    await sync_to_async(erase)(**wanted, reason="privacy request 12")
    await pods.write(gateway, writer)
    assert (await read("acme")).fields["asked"] == [7]
    await database.execute("UPDATE series_tenant_hour SET hour = date_trunc('hour', now())")
    other, _ = setting.gateway("g2")
    await obey(other, database)
    cursor = await database.execute("SELECT count(*) FROM series_tenant_hour WHERE cardinality(ids) > 0")
    assert await cursor.fetchone() == (1,)


async def test_an_erasure_waits_for_a_write_and_takes_out_the_right_tenant(setting, database):  # noqa: F811
    """The gateway commits other places for the tenants of a row while the erasure waits for it."""
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("acme", 7))
    await pods.write(gateway, writer)
    number, neighbour = tenant_number("acme"), 12_345
    async with database.transaction():
        await database.execute(
            "UPDATE series_tenant_hour SET ids = %s, asked = '{1,7}', refused = '{0,0}' WHERE part = %s",
            [[neighbour, number], tenant_part(number)],
        )
        erasing = asyncio.create_task(sync_to_async(erase_hours)("production", "acme"))

        async def waits() -> bool:
            cursor = await database.execute("SELECT 1 FROM pg_locks WHERE NOT granted")
            return await cursor.fetchone() is not None

        await eventually(waits)
    assert await erasing == 1
    query = "SELECT ids, asked, refused FROM series_tenant_hour WHERE part = %s"
    cursor = await database.execute(query, [tenant_part(number)])
    assert await cursor.fetchall() == [([neighbour], [1], [0])]


async def test_old_hours_are_deleted_and_their_gateways_after_them(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3))
    await pods.write(gateway, writer)
    await database.execute("UPDATE series_writer SET started_at = to_timestamp(%s)", [NOON - 60])
    await sync_to_async(retention.forget)(START + timedelta(days=34))
    assert (await read("small")).fields["asked"] == [3]
    await sync_to_async(retention.forget)(START + timedelta(days=36))
    assert (await read("small")).fields["asked"] == [None]
    assert not await sync_to_async(Writer.objects.exists)()
