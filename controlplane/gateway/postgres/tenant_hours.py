"""Writes what tenants asked for in each hour: a few hundred tenants in one row.

Each write replaces the rows of this run of the gateway, so that a repeated write is harmless. It has its own
task and connections, so that spans of 10 s never wait for it, and environments fail separately.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from functools import partial

from psycopg import AsyncConnection

from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts, RefusedValue
from controlplane.gateway.postgres.keep_trying import KeepTrying
from controlplane.gateway.postgres.refused_rows import write_accepted
from controlplane.gateway.postgres.series_frames import new_writer
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.tenant_hours import Hour, TenantHours
from controlplane.gateway.settings import GatewaySettings
from controlplane.series.kinds import ABOUT_HOUR

#: Between two writes. A gateway that crashes loses what pods tallied since the last one.
WRITE_S = 300.0
#: After a write that Postgres did not take.
RETRY_S = 30.0
#: Rows of one transaction.
PARTS_AT_ONCE = 32
_Row = tuple[object, ...]

_WRITE = """
    INSERT INTO series_tenant_hour (part, hour, writer, known_s, partial, ids, asked, refused)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (part, hour, writer) DO UPDATE SET known_s = EXCLUDED.known_s, partial = EXCLUDED.partial,
        ids = EXCLUDED.ids, asked = EXCLUDED.asked, refused = EXCLUDED.refused
"""


class HoursWriter:
    def __init__(
        self,
        fleets: dict[str, Fleet],
        numbers: dict[str, int],
        settings: GatewaySettings,
        counts: Counts,
        clock: Clock,
    ) -> None:
        """``numbers`` has this run as a writer of each environment, once there is a row of it."""
        self._fleets, self._numbers = fleets, numbers
        self._settings, self._counts, self._clock = settings, counts, clock
        self._postgres: dict[str, KeepTrying] = {}

    async def run(self) -> None:
        """Write every few minutes, forever."""
        written = True
        while True:
            await asyncio.sleep(WRITE_S if written else RETRY_S)
            written = await self.write()

    async def write(self) -> bool:
        """Write what changed. Returns whether Postgres took the hours of every environment."""
        written = True
        for environment, writer in list(self._numbers.items()):
            if not self._fleets[environment].sums.tenant_hours.hours:
                continue
            postgres = self._postgres.get(environment)
            if postgres is None:
                postgres = self._postgres[environment] = self._keep_trying(environment)
            try:
                written &= await postgres.attempt(self._write(postgres, environment, writer))
            finally:
                # The next write is minutes away.
                await postgres.disconnect()
        return written

    async def _write(self, postgres: KeepTrying, environment: str, writer: int) -> None:
        connection, timeout_s = await postgres.connection(), self._settings.flush_timeout_s
        hours = self._fleets[environment].sums.tenant_hours
        for hour in list(hours.hours.values()):
            if hour.again and hour.writer is None:
                async with asyncio.timeout(timeout_s):
                    hour.writer = await new_writer(connection, self._settings.gateway, environment)
        await write_hours(
            connection,
            writer,
            hours,
            refused=partial(self._refused, environment),
            wall=self._clock.wall(),
            timeout_s=timeout_s,
        )

    def _keep_trying(self, environment: str) -> KeepTrying:
        return KeepTrying(
            "hours",
            failed="gateway.hours_failed",
            recovered="gateway.hours_recovered",
            count_failure=self._count_failure,
            count_refusal=partial(self._refused, environment),
            about={"environment": environment},
        )

    def _count_failure(self) -> None:
        self._counts.series_failures += 1

    def _refused(self, environment: str, error: BaseException) -> None:
        now = self._clock.monotonic()
        self._counts.refused_writes.add("hours of tenants", error, now, environment=environment)


async def write_hours(
    connection: AsyncConnection,
    writer: int,
    hours: TenantHours,
    *,
    refused: Callable[[BaseException], None],
    wall: float,
    timeout_s: float,
) -> None:
    """Write what changed until now; what changes meanwhile is for the next write, so that this one ends.

    ``refused`` gets each refusal of a part, which is dropped. Raises one of ``Unreachable``: the rest is
    written the next time. Raises one of ``RefusedValue`` after the other hours, if an hour is refused.
    """
    hour_refused: BaseException | None = None
    for hour in list(hours.hours.values()):
        try:
            await _write(connection, [(ABOUT_HOUR, *_about(hour, writer), [], [], [])], timeout_s)
        except RefusedValue as error:
            hour_refused = error
            continue
        await _write_parts(connection, writer, hour, refused=refused, timeout_s=timeout_s)
    if hour_refused is not None:
        raise hour_refused
    hours.written(wall)


async def _write_parts(
    connection: AsyncConnection,
    writer: int,
    hour: Hour,
    *,
    refused: Callable[[BaseException], None],
    timeout_s: float,
) -> None:
    async def write(parts: Sequence[int]) -> None:
        await _write(connection, (_row(hour, part, writer) for part in parts), timeout_s)

    todo = sorted(hour.dirty)
    for start in range(0, len(todo), PARTS_AT_ONCE):
        parts = todo[start : start + PARTS_AT_ONCE]
        hour.dirty.difference_update(parts)
        try:
            await write_accepted(write, parts, lambda _, error: refused(error))
        except BaseException:
            hour.dirty.update(parts)
            raise


async def _write(connection: AsyncConnection, rows: Iterable[_Row], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s), connection.transaction():
        for row in rows:
            # One at a time: to put 100,000 tenants into text would stop heartbeats for some 100 ms.
            await connection.execute(_WRITE, row)


def _about(hour: Hour, writer: int) -> tuple[object, ...]:
    return (datetime.fromtimestamp(hour.at, UTC), hour.writer or writer, int(hour.known_s), hour.partial)


def _row(hour: Hour, part: int, writer: int) -> _Row:
    return (part, *_about(hour, writer), *hour.columns(part))
