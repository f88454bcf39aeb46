"""The hours of all active tenants: from tallies of pods through a gateway and Postgres to a chart."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from controlplane.erasure import erase
from controlplane.gateway.postgres.tenant_hours import WRITE_S
from controlplane.gateway.servers import tenant_hours
from controlplane.series import retention
from controlplane.series.models import Writer
from controlplane.series.reading import Answer
from controlplane.series.tenant_hours import read_hours
from fuseboard.contract.sync import Counters, decode_response
from fuseboard.contract.tallies import Tally, TenantTally
from tests.controlplane.gateway import NOON, beat, post
from tests.controlplane.test_series_gateway import Setting, setting  # noqa: F401

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
    gateway.fleet("production").tenant_hours._hour(setting.clock.wall()).add("small", 4, 0)
    await pods.write(gateway, writer)
    assert (await read("small")).fields["asked"] == [4]
    assert (await read("silent")).fields["asked"] == [None]


async def test_too_many_tenants_are_left_out_and_unknown(setting, database, monkeypatch):  # noqa: F811
    monkeypatch.setattr(tenant_hours, "MOST_TENANTS", 2)
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, *(TenantTally(name, 1) for name in ("a", "b", "c", "a")))
    await pods.write(gateway, writer)
    assert [(await read(name)).fields["asked"] for name in "abc"] == [[2], [1], [None]]


async def test_what_postgres_did_not_take_is_written_later(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    pods = Pods(setting)
    await pods.tally(gateway, 1, TenantTally("small", 3))
    await writer.collect()
    setting.clock.turn(20)
    await pods.tally(gateway, None)
    await writer.collect()
    await database.execute("ALTER TABLE series_tenant_hour RENAME TO hidden")
    setting.clock.turn(WRITE_S)
    with pytest.raises(Exception, match="series_tenant_hour"):
        await setting.write(writer)
    await database.execute("ALTER TABLE hidden RENAME TO series_tenant_hour")
    await writer._postgres.disconnect()
    await setting.write(writer)
    assert (await read("small")).fields["asked"] == [3]


async def test_a_gateway_that_stops_writes_what_it_has(setting, database):  # noqa: F811
    gateway, writer = setting.gateway("g1")
    await Pods(setting).tally(gateway, 1, TenantTally("small", 3))
    setting.clock.turn(5)
    await writer.finish()
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
