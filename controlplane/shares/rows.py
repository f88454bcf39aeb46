"""The rows of one environment: read under the lock of its pool, and written back."""

from dataclasses import dataclass

from psycopg import AsyncConnection

from controlplane.shares.step import Row, Step

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
_INSERT = """
    INSERT INTO shares_piece (environment, server, boot, level, place, offered, terms, renewals, hold_ms)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_UPDATE = """
    UPDATE shares_piece SET server = %s, boot = %s, level = %s, place = %s, offered = %s, terms = %s,
        renewals = %s, hold_ms = %s
    WHERE id = %s
"""
#: Terms given out after a restore are above all those before.
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
    """Lock and read; ``None`` for an environment Postgres does not have (any more).

    After a restore the rows tell of another past: whatever pods hold is left to lapse, for
    ``hold_ms``, before anything is given out.
    """
    cursor = await connection.execute(_LOCK, (environment,))
    found = await cursor.fetchone()
    if found is None:
        return None
    epoch, terms, current = found
    if epoch != current:
        await connection.execute("DELETE FROM shares_piece WHERE environment = %s", (environment,))
        await connection.execute(_INSERT, (environment, "", "", 0, 0, 0, 0, 0, hold_ms))
    rows = [Row(*row) for row in await (await connection.execute(_READ, (environment,))).fetchall()]
    return Pool(environment, current, max(terms, current << _EPOCH_BITS), rows)


async def write(connection: AsyncConnection, pool: Pool, step: Step) -> None:
    if step.deleted:
        await connection.execute("DELETE FROM shares_piece WHERE id = ANY(%s)", (step.deleted,))
    async with connection.cursor() as cursor:
        # Those that become smaller first, and then what fits beside them.
        updates = [
            (r.server, r.boot, r.level, r.place, r.offered, r.terms, r.renewals, r.hold_ms, r.id)
            for r in step.changed
            if r.id is not None
        ]
        if updates:
            await cursor.executemany(_UPDATE, updates)
        inserts = [
            (pool.environment, r.server, r.boot, r.level, r.place, r.offered, r.terms, r.renewals, r.hold_ms)
            for r in step.changed
            if r.id is None
        ]
        if inserts:
            await cursor.executemany(_INSERT, inserts)
    await connection.execute(
        "UPDATE shares_pool SET epoch = %s, terms = %s WHERE environment = %s",
        (pool.epoch, pool.terms, pool.environment),
    )
