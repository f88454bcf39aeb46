"""The rows of one environment, read under the lock of its pool and written back."""

import asyncio
from dataclasses import dataclass

from msgspec import json
from psycopg import AsyncConnection

from controlplane.shares.assignment_round import Round, Row
from controlplane.shares.cells import CHUNK

_LOCK = """
    INSERT INTO shares_pool (environment, epoch, terms)
    SELECT slug, epoch, 0 FROM policies_environment WHERE slug = %s
    ON CONFLICT (environment) DO UPDATE SET terms = shares_pool.terms
    RETURNING epoch, terms, (SELECT epoch FROM policies_environment WHERE slug = environment)
"""
_READ = """
    SELECT id, server, boot, level, place, offered, terms, renewals, hold_ms
    FROM shares_piece WHERE environment = %s ORDER BY id
"""
_TYPES = (
    "server text, boot text, level int, place int, offered int, terms bigint, renewals bigint, hold_ms bigint"
)
_NAMES = [column.split()[0] for column in _TYPES.split(", ")]
# All rows in one text: a fleet that starts all at once has 10,000, and one statement for each would
# delay heartbeats.
_INSERT = f"""
    INSERT INTO shares_piece (environment, {", ".join(_NAMES)})
    SELECT %s, {", ".join(_NAMES)} FROM json_to_recordset(%s::json) AS made({_TYPES})
"""  # noqa: S608 - names of columns, from above
_UPDATE = f"""
    UPDATE shares_piece SET {", ".join(f"{name} = made.{name}" for name in _NAMES)}
    FROM json_to_recordset(%s::json) AS made(id bigint, {_TYPES})
    WHERE shares_piece.id = made.id
"""  # noqa: S608
#: Terms assigned after a restore are above all those before it.
_EPOCH_BITS = 32


@dataclass(slots=True)
class Pool:
    """The whole of one environment, locked until the transaction ends."""

    environment: str
    epoch: int
    terms: int
    rows: list[Row]

    def new_terms(self) -> int:
        self.terms += 1
        return self.terms


async def read(connection: AsyncConnection, environment: str, *, hold_ms: int) -> Pool | None:
    """Lock and read; ``None`` for an environment that is not in Postgres.

    After a restore the rows describe another past. So nothing is assigned for ``hold_ms``, until
    whatever pods still hold has expired.
    """
    cursor = await connection.execute(_LOCK, (environment,))
    found = await cursor.fetchone()
    if found is None:
        return None
    epoch, terms, current = found
    if epoch != current:
        await connection.execute("DELETE FROM shares_piece WHERE environment = %s", (environment,))
        lapsing = Row(None, "", "", 0, 0, 0, 0, 0, hold_ms)
        await connection.execute(_INSERT, (environment, _encode([lapsing])))
    rows: list[Row] = []
    cursor = await connection.execute(_READ, (environment,))
    while chunk := await cursor.fetchmany(CHUNK):
        rows += [Row(*row) for row in chunk]
        await asyncio.sleep(0)
    return Pool(environment, current, max(terms, current << _EPOCH_BITS), rows)


async def write(connection: AsyncConnection, pool: Pool, round_: Round) -> None:
    if round_.deleted:
        await connection.execute("DELETE FROM shares_piece WHERE id = ANY(%s)", (round_.deleted,))
    updates = [row for row in round_.changed if row.id is not None]
    if updates:
        await connection.execute(_UPDATE, (_encode(updates),))
    inserts = [row for row in round_.changed if row.id is None]
    if inserts:
        await connection.execute(_INSERT, (pool.environment, _encode(inserts)))
    await connection.execute(
        "UPDATE shares_pool SET epoch = %s, terms = %s WHERE environment = %s",
        (pool.epoch, pool.terms, pool.environment),
    )


def _encode(rows: list[Row]) -> str:
    return json.encode(rows).decode()
