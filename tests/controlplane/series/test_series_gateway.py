"""Gateways and a real Postgres: what is counted is written once, through restarts and outages."""

from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest
from asgiref.sync import sync_to_async

from controlplane.gateway.postgres import series_frames
from controlplane.gateway.postgres.series_frames import SeriesWriter
from controlplane.series.kinds import FLEET, KINDS, POD
from controlplane.status.last_hour import refused_lately, retries_lately
from fuseboard.contract.load import CallLoad, TierLoad
from fuseboard.contract.sync import Counters, TenantCounters
from tests.controlplane.gateway.manual_gateway import NOON, TurnedClock, beat, ready_gateway

pytestmark = pytest.mark.usefixtures("token", "thread_connections")


class Setting:
    """Gateways with one clock, and one pod that sends them heartbeats."""

    def __init__(self) -> None:
        self.clock = TurnedClock()
        self.requests = self.sequence = 0
        self.writers: list[SeriesWriter] = []

    def gateway(self, name: str) -> tuple[Any, SeriesWriter]:
        gateway = ready_gateway(self.clock, gateway=name)
        writer = SeriesWriter(gateway.fleets, gateway.settings, gateway.counts, self.clock)
        self.writers.append(writer)
        return gateway, writer

    def beat(self, gateway: Any, requests: int, **fields: Any) -> None:
        self.requests += requests
        self.sequence += 1
        gateway.fleet("production").absorb(
            beat(sequence=self.sequence, counters=Counters(requests=self.requests), **fields)
        )

    async def write(self, writer: SeriesWriter) -> None:
        await writer.collect()
        await writer.write(before=self.clock.wall() - series_frames.SETTLED_S)


@pytest.fixture
async def setting():
    setting = Setting()
    yield setting
    for writer in setting.writers:
        await writer._postgres.disconnect()


async def stored(database, kind=FLEET) -> dict[int, int]:
    """Start of a span, since noon -> the first field, of all gateways and things."""
    query = "SELECT extract(epoch FROM at)::bigint, ids, v FROM series_frame WHERE kind = %s"
    found: dict[int, int] = {}
    for at, ids, v in await (await database.execute(query, [kind.number])).fetchall():
        counted = sum(v[:: len(v) // len(ids)])
        found[at - int(NOON)] = found.get(at - int(NOON), 0) + counted
    return found


async def test_a_span_is_written_once_its_heartbeats_have_arrived(setting, database):
    gateway, writer = setting.gateway("g1")
    setting.beat(gateway, 0)
    for _ in range(5):
        setting.clock.turn(5)
        setting.beat(gateway, 20)
        await setting.write(writer)
    # It is second 25. The span from 10 on ended 5 s ago.
    assert await stored(database) == {1_000: 40}
    assert await stored(database, POD) == {1_000: 40}
    query = "SELECT kind, name, extract(epoch FROM first_at)::bigint FROM series_entity ORDER BY kind"
    rows = await (await database.execute(query)).fetchall()
    kinds = {kind.number: kind.name for kind in KINDS}
    assert [(kinds[kind], name, at - int(NOON)) for kind, name, at in rows] == [
        ("fleet", "", 1_000),
        ("pod", "pod-1", 1_000),
    ]
    spans = await (
        await database.execute("SELECT pods_heard, pods_known, covered_ms FROM series_span")
    ).fetchall()
    assert spans == [(1, 1, 5_001)]  # the gateway looked for the first time at second 5


def slots(full: int, timed_out: int = 0) -> tuple[CallLoad, ...]:
    """A bulkhead that refused so many calls of its second tier since the pod started."""
    tiers = (TierLoad(limit=5), TierLoad(limit=3, full=full, timed_out=timed_out), TierLoad(limit=2))
    return (CallLoad(dependency="payments-api", tiers=tiers),)


async def refused_by_payments_api(setting: Setting) -> dict[str, tuple[int | None, int | None]]:
    now = datetime.fromtimestamp(setting.clock.wall(), UTC)
    [found] = await sync_to_async(refused_lately)("production", ["payments-api"], now)
    return {tier.tier: (tier.full, tier.timed_out) for tier in found.tiers}


async def test_the_refusals_of_a_bulkhead_are_stored_by_tier(setting):
    gateway, writer = setting.gateway("g1")
    setting.beat(gateway, 1, protection=slots(100))
    for full, timed_out in ((130, 2), (130, 2), (170, 5)):
        setting.clock.turn(5)
        setting.beat(gateway, 1, protection=slots(full, timed_out))
        await setting.write(writer)
    # A new process counts from zero, and so does its bulkhead.
    setting.clock.turn(5)
    setting.beat(gateway, 1, protection=slots(7), boot="boot-0002", up_ms=4_000)
    await setting.write(writer)
    setting.clock.turn(20)
    await setting.write(writer)
    assert await refused_by_payments_api(setting) == {
        "critical": (0, 0),
        "standard": (77, 5),
        "optional": (0, 0),
    }


async def test_what_retries_did_is_stored_for_the_last_hour(setting):
    gateway, writer = setting.gateway("g1")

    def calls(first: int, retries: int, **more: int) -> tuple[CallLoad, ...]:
        return (CallLoad(dependency="payments-api", first_calls=first, retries=retries, **more),)

    setting.beat(gateway, 1, protection=calls(1_000, 100, helped=10, no_budget=7, exhausted=3))
    for count in (1, 2):
        setting.clock.turn(5)
        grown = calls(
            1_000 + 40 * count, 100 + 4 * count, helped=10 + 3 * count, no_budget=7, exhausted=3 + count
        )
        setting.beat(gateway, 1, protection=grown)
        await setting.write(writer)
    setting.clock.turn(20)
    await setting.write(writer)
    now = datetime.fromtimestamp(setting.clock.wall(), UTC)
    [found] = await sync_to_async(retries_lately)("production", ["payments-api"], now)
    assert (found.attempts, found.retries, found.helped, found.success_percent) == (88, 8, 6, 75.0)
    assert (found.no_budget, found.exhausted) == (0, 2)


async def test_two_gateways_count_what_a_bulkhead_refused_once(setting):
    (one, first), (two, second) = setting.gateway("g1"), setting.gateway("g2")
    heard = 0
    for number, gateway in enumerate([one, one, one, two, two, two, one, one], start=1):
        setting.clock.turn(5)
        setting.beat(gateway, 10, protection=slots(100 * number))
        heard += number not in (1, 4, 7)  # the first heartbeat after a move
        await setting.write(first)
        await setting.write(second)
    setting.clock.turn(1)
    for writer in (first, second, first):
        await writer.finish()
    assert (await refused_by_payments_api(setting))["standard"] == (100 * heard, 0)


async def test_a_span_that_grows_is_replaced_and_not_added(setting, database, monkeypatch):
    monkeypatch.setattr(series_frames, "PART", 1)
    gateway, writer = setting.gateway("g1")
    setting.beat(gateway, 0)
    setting.clock.turn(5)
    setting.beat(gateway, 10)
    await writer.collect()
    await writer.write(before=float("inf"))
    await writer.write(before=float("inf"))
    assert await stored(database) == {1_000: 10}
    setting.clock.turn(4)
    setting.beat(gateway, 8)
    await writer.collect()
    await writer.write(before=float("inf"))
    assert await stored(database) == {1_000: 18}


async def test_two_gateways_never_add_twice(setting, database):
    """A pod moves from one gateway to the other and back: its calls are in the series of one of them."""
    (one, first), (two, second) = setting.gateway("g1"), setting.gateway("g2")
    heard = 0
    for number, gateway in enumerate([one, one, one, two, two, two, one, one]):
        setting.clock.turn(5)
        setting.beat(gateway, 10)
        heard += number not in (0, 3, 6)  # the first heartbeat after a move
        await setting.write(first)
        await setting.write(second)
    setting.clock.turn(1)
    for writer in (first, second, first):
        await writer.finish()
    assert sum((await stored(database)).values()) == 10 * heard


async def test_a_gateway_that_restarts_is_another_writer(setting, database):
    """What the old process wrote of a span stays beside what the new one counts."""
    gateway, writer = setting.gateway("g1")
    setting.beat(gateway, 0)
    setting.clock.turn(2)
    setting.beat(gateway, 10)
    await writer.finish()
    again, next_writer = setting.gateway("g1")
    setting.beat(again, 0)
    setting.clock.turn(2)
    setting.beat(again, 7)
    await next_writer.finish()
    assert await stored(database) == {1_000: 17}


@asynccontextmanager
async def no_postgres(writer: SeriesWriter):
    """Every connection fails, as while Postgres is down."""

    async def refused() -> psycopg.AsyncConnection:
        raise psycopg.OperationalError("connection refused")

    await writer._postgres.disconnect()
    usual = writer._postgres.connection
    writer._postgres.connection = refused  # type: ignore[method-assign]
    try:
        yield
    finally:
        writer._postgres.connection = usual  # type: ignore[method-assign]


async def test_an_outage_of_postgres_loses_nothing_that_is_in_memory(setting, database):
    gateway, writer = setting.gateway("g1")
    setting.beat(gateway, 0)
    async with no_postgres(writer):
        for _ in range(48):  # 4 minutes
            setting.clock.turn(5)
            setting.beat(gateway, 10)
            await writer.collect()
            with pytest.raises(psycopg.OperationalError):
                await writer.write(before=setting.clock.wall())
    await writer.finish()
    found = await stored(database)
    assert sum(found.values()) == 480
    assert set(found.values()) == {20}


async def test_a_longer_outage_keeps_the_last_five_minutes(setting, database):
    gateway, writer = setting.gateway("g1")
    setting.beat(gateway, 0)
    for _ in range(200):
        setting.clock.turn(5)
        setting.beat(gateway, 10)
        await writer.collect()
    await writer.finish()
    found = await stored(database)
    assert len(found) == 30
    assert len(gateway.fleet("production").sums.series.spans) == 31


async def test_names_are_bounded_and_the_refused_are_counted(setting, database, monkeypatch):
    from controlplane.series.kinds import TENANT

    monkeypatch.setitem(series_frames.MAX_ENTITIES, TENANT, 2)
    gateway, writer = setting.gateway("g1")
    tenants = tuple(TenantCounters(tenant=f"t-{number}", allowed=1) for number in range(5))
    gateway.fleet("production").absorb(
        beat(sequence=1, up_ms=4_000, counters=Counters(requests=5, tenants=tenants))
    )
    await writer.finish()
    query = "SELECT name FROM series_entity WHERE kind = 4 ORDER BY name"
    assert await (await database.execute(query)).fetchall() == [("t-0",), ("t-1",)]
    assert gateway.counts.series_refused == 3


async def test_a_gateway_knows_whether_it_is_alone(setting, database):
    (one, first), (two, second) = setting.gateway("g1"), setting.gateway("g2")
    await database.execute(
        "INSERT INTO series_writer (gateway, environment, started_at) VALUES ('g9', 'other', now())"
    )
    setting.beat(one, 1)
    assert one.fleet("production").sums.series.alone is False
    await first.finish()
    assert one.fleet("production").sums.series.alone is True
    row = await (await database.execute("SELECT max(id) FROM series_writer")).fetchone()
    await database.execute("INSERT INTO series_span VALUES (now(), %s, 10000, 1, 1, 0)", [row[0]])
    setting.beat(two, 1)
    await second.finish()
    assert two.fleet("production").sums.series.alone is False
