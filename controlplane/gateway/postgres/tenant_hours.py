"""Writes what tenants asked for in each hour: a few hundred tenants in one row.

Each write replaces the rows of this run of the gateway, so that a repeated write is harmless.
"""

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime

from psycopg import AsyncConnection

from controlplane.gateway.servers.tenant_hours import Hour, TenantHours
from controlplane.series.kinds import ABOUT_HOUR

#: Between two writes. A gateway that crashes loses what pods tallied since the last one.
WRITE_S = 300.0
#: Rows of one transaction.
PARTS_AT_ONCE = 32
_MOST = 2**31 - 1
_Row = tuple[object, ...]

_WRITE = """
    INSERT INTO series_tenant_hour (part, hour, writer, known_s, partial, ids, asked, refused)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s)
    ON CONFLICT (part, hour, writer) DO UPDATE SET known_s = EXCLUDED.known_s, partial = EXCLUDED.partial,
        ids = EXCLUDED.ids, asked = EXCLUDED.asked, refused = EXCLUDED.refused
"""


async def write_hours(
    connection: AsyncConnection, writer: int, hours: TenantHours, *, wall: float, timeout_s: float
) -> None:
    """Write what changed. Raises one of ``Unreachable``: the rest is written the next time."""
    for hour in list(hours.hours.values()):
        await _write(connection, [(ABOUT_HOUR, *_about(hour, writer), [], [], [])], timeout_s)
        while hour.dirty:
            parts = sorted(hour.dirty)[:PARTS_AT_ONCE]
            hour.dirty.difference_update(parts)
            try:
                await _write(connection, (_row(hour, part, writer) for part in parts), timeout_s)
            except BaseException:
                hour.dirty.update(parts)
                raise
    hours.written(wall)


async def _write(connection: AsyncConnection, rows: Iterable[_Row], timeout_s: float) -> None:
    async with asyncio.timeout(timeout_s), connection.transaction():
        for row in rows:
            # One at a time: to put 100,000 tenants into text would stop heartbeats for some 100 ms.
            await connection.execute(_WRITE, row)


def _about(hour: Hour, writer: int) -> tuple[object, ...]:
    return (datetime.fromtimestamp(hour.at, UTC), writer, int(hour.known_s), hour.partial)


def _row(hour: Hour, part: int, writer: int) -> _Row:
    ids, asked, refused = hour.columns(part)
    return (part, *_about(hour, writer), ids, [min(count, _MOST) for count in asked], refused)
