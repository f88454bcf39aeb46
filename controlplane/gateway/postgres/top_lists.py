"""Writes the top lists of refusals: all lists of all minutes that changed in one statement."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from psycopg import AsyncConnection

from controlplane.gateway.postgres.refused_rows import write_accepted
from controlplane.gateway.servers.top_refusals import TopRefusals
from controlplane.refusals.top_lists import MAX_STORED, MINUTE_S

_Row = dict[str, Any]

_WRITE = f"""
    INSERT INTO refusals_toplist (environment, kind, grain_s, at, writer, names, counts, total, short_by)
    SELECT %s, kind, {MINUTE_S}, at, %s, names, counts, total, short_by
    FROM json_to_recordset(%s::json) AS row(
        kind smallint, at timestamptz, names text[], counts float8[], total float8, short_by float8)
    ON CONFLICT (environment, kind, grain_s, at, writer) DO UPDATE SET names = EXCLUDED.names,
        counts = EXCLUDED.counts, total = EXCLUDED.total, short_by = EXCLUDED.short_by
"""  # noqa: S608 - a number of this code


async def write_top_lists(
    connection: AsyncConnection,
    environment: str,
    writer: int,
    tops: TopRefusals,
    refused: Callable[[BaseException], None],
) -> None:
    """Each write replaces the rows of this run of the gateway. Raises one of ``Unreachable``.

    ``refused`` gets the error of each row that Postgres does not take.
    """
    minutes = tops.dirty()
    rows = [
        _row(minute.at, kind.number, counted) for minute in minutes for kind, counted in minute.lists.items()
    ]
    for minute in minutes:
        minute.dirty = False

    async def write(part: Sequence[_Row]) -> None:
        async with connection.transaction():
            await connection.execute(_WRITE, (environment, writer, msgspec.json.encode(part).decode()))

    try:
        if rows:
            await write_accepted(write, rows, lambda _, error: refused(error))
    except BaseException:
        for minute in minutes:
            minute.dirty = True
        raise
    tops.written()


def _row(at: int, kind: int, counted: Any) -> _Row:
    lines, short_by = counted.top(MAX_STORED)
    return {
        "kind": kind,
        "at": datetime.fromtimestamp(at, UTC),
        "names": [name for name, _ in lines],
        "counts": [count for _, count in lines],
        "total": counted.total,
        "short_by": short_by,
    }
