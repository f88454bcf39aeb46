"""Writes spans of 10 s to Postgres as frames: a few rows per span, however many pods there are.

It has its own connection, so that a slow statement delays no row of a pod. A span is written when it has
ended and heartbeats had time to arrive, and again if a later one adds to it. While Postgres is down,
the last 30 spans stay in memory.
"""

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial

import structlog
from psycopg import AsyncConnection

from controlplane.fleet.models import ServerState
from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts, RefusedValue
from controlplane.gateway.postgres.keep_trying import KeepTrying
from controlplane.gateway.postgres.top_lists import write_top_lists
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.series_counts import Thing
from controlplane.gateway.servers.series_spans import FleetSeries, Span, values
from controlplane.gateway.settings import GatewaySettings
from controlplane.series.kinds import DEPENDENCY, FLEET, MAX_IN_SPAN, POD, RULE, SPAN_S, TENANT, Kind

#: How long after the end of a span it is written.
SETTLED_S = 7.0
LOOK_S = 1.0
#: Things in one row.
PART = 250
#: More things of one kind in one environment are a mistake or an attack: the others have no series.
MAX_ENTITIES = {FLEET: 1, DEPENDENCY: 2_000, POD: 50_000, TENANT: 50_000, RULE: 50_000}
#: The numbers of things are read again after this time, because old things are deleted.
ENTITIES_AGAIN_S = 3_600.0
#: Frames that no worker sealed in this time are deleted, so that they do not fill the disk.
UNSEALED_H = 48

_NEW_WRITER = """
    INSERT INTO series_writer (gateway, environment, started_at) VALUES (%s, %s, now()) RETURNING id
"""
_OTHERS = """
    SELECT count(*) FROM series_writer
    WHERE environment = %s AND id <> %s AND (
        started_at > now() - interval '5 minutes'
        OR id IN (SELECT writer FROM series_span WHERE at > now() - interval '5 minutes')
    )
"""
_HOW_MANY = "SELECT kind, count(*) FROM series_entity WHERE environment = %s GROUP BY kind"
_KNOWN = """
    SELECT kind, name, sub, id FROM series_entity
    JOIN unnest(%(kinds)s::smallint[], %(names)s::text[], %(subs)s::text[]) AS wanted (kind, name, sub)
    USING (kind, name, sub)
    WHERE environment = %(environment)s
"""
_NEW = """
    INSERT INTO series_entity (environment, kind, name, sub, first_at, last_at)
    SELECT %(environment)s, kind, name, sub, %(first)s, %(first)s
    FROM unnest(%(kinds)s::smallint[], %(names)s::text[], %(subs)s::text[]) AS wanted (kind, name, sub)
    ORDER BY kind, name, sub
    ON CONFLICT (environment, kind, name, sub)
    DO UPDATE SET first_at = LEAST(series_entity.first_at, EXCLUDED.first_at)
    RETURNING kind, name, sub, id
"""
#: All of a span is replaced: an earlier version can have more parts.
_DROP = "DELETE FROM series_frame WHERE writer = %s AND at = %s"
_FRAME = "INSERT INTO series_frame (at, writer, kind, part, ids, v) VALUES (%s, %s, %s, %s, %s, %s)"
_SPAN = """
    INSERT INTO series_span (at, writer, covered_ms, pods_heard, pods_known, tenant_floor)
    VALUES (%s, %s, %s, %s, %s, %s)
    ON CONFLICT (at, writer) DO UPDATE SET covered_ms = EXCLUDED.covered_ms,
        pods_heard = EXCLUDED.pods_heard, pods_known = EXCLUDED.pods_known,
        tenant_floor = EXCLUDED.tenant_floor
"""
_UNSEALED = "DELETE FROM series_frame WHERE at < now() - make_interval(hours => %s)"

_PRESENT = (ServerState.ONLINE, ServerState.LATE, ServerState.UNKNOWN)

log = structlog.get_logger(__name__)


class SeriesWriter:
    def __init__(
        self, fleets: dict[str, Fleet], settings: GatewaySettings, counts: Counts, clock: Clock
    ) -> None:
        self._fleets = fleets
        self._settings = settings
        self._counts = counts
        self._clock = clock
        self._postgres = KeepTrying(
            "series",
            failed="gateway.series_failed",
            recovered="gateway.series_recovered",
            count_failure=self._count_failure,
            count_refusal=partial(self._refused, ""),
        )
        #: Environment -> this run as a writer.
        self.numbers: dict[str, int] = {}
        #: Environment -> the numbers of things.
        self._ids: dict[str, dict[Thing, int]] = defaultdict(dict)
        self._full: set[tuple[str, Kind]] = set()
        self._again_at = clock.monotonic() + ENTITIES_AGAIN_S
        self._next_at = 0.0

    async def run(self) -> None:
        """Collect and write each span once, forever: several heartbeats of a pod cost as much as one."""
        while True:
            await asyncio.sleep(LOOK_S)
            wall = self._clock.wall()
            if wall < self._next_at:
                continue
            await self.collect()
            if await self._postgres.attempt(self.write(before=wall - SETTLED_S)):
                self._next_at = (wall - SETTLED_S) // SPAN_S * SPAN_S + SPAN_S + SETTLED_S

    async def finish(self) -> None:
        """Write everything, also the span that is not over, and disconnect."""
        await self.collect()
        await self._postgres.attempt(self.write(before=float("inf")))
        await self.disconnect()

    async def disconnect(self) -> None:
        await self._postgres.disconnect()

    async def collect(self) -> None:
        for fleet in list(self._fleets.values()):
            known = sum(server.state in _PRESENT for server in fleet.servers.values())
            for _ in fleet.sums.series.collect(
                self._clock.monotonic(), self._clock.wall(), known=known, present=partial(_present, fleet)
            ):
                await asyncio.sleep(0)
            fleet.sums.tenant_hours.look(self._clock.monotonic(), self._clock.wall(), _present(fleet))

    async def write(self, *, before: float) -> None:
        """Write the spans that ended before this unix time. Raises one of ``Unreachable``."""
        now = self._clock.monotonic()
        if now >= self._again_at:
            self._again_at = now + ENTITIES_AGAIN_S
            self._ids.clear()
            async with asyncio.timeout(self._settings.flush_timeout_s):
                await (await self._postgres.connection()).execute(_UNSEALED, (UNSEALED_H,))
        for environment, fleet in list(self._fleets.items()):
            writer = await self._writer(environment)
            if fleet.sums.series.erased:
                # Its number belongs to nothing any more. If it counts again, it gets a new one.
                fleet.sums.series.erased = False
                self._ids[environment].clear()
            for span in fleet.sums.series.dirty(before=before):
                # A heartbeat in the meantime makes it dirty again.
                span.dirty = False
                try:
                    async with asyncio.timeout(self._settings.flush_timeout_s):
                        await self._write(environment, writer, span)
                except RefusedValue as error:
                    self._refused(environment, error)
                    continue
                except BaseException:
                    span.dirty = True
                    raise
                self._counts.series_spans += 1
            await self._look_for_others(environment, writer, fleet.sums.series)
            async with asyncio.timeout(self._settings.flush_timeout_s):
                await write_top_lists(
                    await self._postgres.connection(),
                    environment,
                    writer,
                    fleet.sums.tops,
                    partial(self._refused, environment),
                )

    async def _writer(self, environment: str) -> int:
        if environment not in self.numbers:
            connection = await self._postgres.connection()
            async with asyncio.timeout(self._settings.flush_timeout_s):
                self.numbers[environment] = await new_writer(connection, self._settings.gateway, environment)
        return self.numbers[environment]

    async def _look_for_others(self, environment: str, writer: int, series: FleetSeries) -> None:
        connection, now = await self._postgres.connection(), self._clock.monotonic()
        async with asyncio.timeout(self._settings.flush_timeout_s):
            row = await (await connection.execute(_OTHERS, (environment, writer))).fetchone()
        series.alone, series.looked_at = row == (0,), now

    async def _write(self, environment: str, writer: int, span: Span) -> None:
        at = datetime.fromtimestamp(span.at, UTC)
        counted = values(span)
        connection = await self._postgres.connection()
        async with connection.transaction():
            ids = await self._numbers(connection, environment, at, list(counted))
            parts = _frames({ids[thing]: (thing[0], v) for thing, v in counted.items() if thing in ids})
            await connection.execute(_DROP, (writer, at))
            async with connection.cursor() as cursor:
                await cursor.executemany(_FRAME, [(at, writer, *part) for part in parts])
            await connection.execute(_SPAN, (at, writer, span.covered_ms, span.heard, span.known, span.floor))
        # Only now: until the commit, a new number can be lost.
        self._ids[environment].update(ids)

    async def _numbers(
        self, connection: AsyncConnection, environment: str, at: datetime, things: Sequence[Thing]
    ) -> dict[Thing, int]:
        known = self._ids[environment]
        found = {thing: known[thing] for thing in things if thing in known}
        if new := [thing for thing in things if thing not in known]:
            found |= await self._asked(connection, _KNOWN, environment, at, new)
        if new := [thing for thing in new if thing not in found]:
            rows = await (await connection.execute(_HOW_MANY, (environment,))).fetchall()
            there: dict[int, int] = dict(rows)
            room = {kind: most - there.get(kind.number, 0) for kind, most in MAX_ENTITIES.items()}
            fitting = []
            for thing in sorted(new, key=lambda one: (one[0].number, *one[1:])):
                if room[thing[0]] > 0:
                    room[thing[0]] -= 1
                    fitting.append(thing)
                else:
                    self._no_room(environment, thing[0])
            found |= await self._asked(connection, _NEW, environment, at, fitting)
        return found

    async def _asked(
        self,
        connection: AsyncConnection,
        statement: str,
        environment: str,
        at: datetime,
        things: Sequence[Thing],
    ) -> dict[Thing, int]:
        if not things:
            return {}
        of = {(kind.number, name, sub): (kind, name, sub) for kind, name, sub in things}
        kinds, names, subs = (list(column) for column in zip(*of, strict=True))
        asked = {"environment": environment, "kinds": kinds, "names": names, "subs": subs, "first": at}
        rows = await (await connection.execute(statement, asked)).fetchall()
        return {of[kind, name, sub]: number for kind, name, sub, number in rows}

    def _no_room(self, environment: str, kind: Kind) -> None:
        self._counts.series_refused += 1
        if (environment, kind) not in self._full:
            self._full.add((environment, kind))
            log.warning(
                "gateway.series_full", environment=environment, kind=kind.name, most=MAX_ENTITIES[kind]
            )

    def _count_failure(self) -> None:
        self._counts.series_failures += 1

    def _refused(self, environment: str, error: BaseException) -> None:
        now = self._clock.monotonic()
        self._counts.refused_writes.add("history", error, now, environment=environment)


async def new_writer(connection: AsyncConnection, gateway: str, environment: str) -> int:
    row = await (await connection.execute(_NEW_WRITER, (gateway, environment))).fetchone()
    assert row is not None  # noqa: S101 - RETURNING of an INSERT
    return int(row[0])


def _present(fleet: Fleet) -> set[str]:
    return {name for name, server in fleet.servers.items() if server.state is not ServerState.GONE}


def _frames(
    counted: dict[int, tuple[Kind, list[int | None]]],
) -> list[tuple[int, int, list[int], list[int | None]]]:
    """Kind, part, numbers, and values of each row."""
    by_kind: dict[int, list[int]] = defaultdict(list)
    for number, (kind, _) in sorted(counted.items(), key=lambda one: one[0]):
        by_kind[kind.number].append(number)
    return [
        (
            kind,
            part,
            ids[start : start + PART],
            [
                None if value is None else min(value, MAX_IN_SPAN)
                for number in ids[start : start + PART]
                for value in counted[number][1]
            ],
        )
        for kind, ids in by_kind.items()
        for part, start in enumerate(range(0, len(ids), PART))
    ]
