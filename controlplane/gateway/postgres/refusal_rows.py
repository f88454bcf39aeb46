"""Writes samples of refusals, and deletes what is older than the setting, or too many."""

from collections.abc import Sequence
from datetime import UTC, datetime

import structlog
from django.conf import settings
from psycopg import AsyncConnection

from controlplane.gateway.answers.digest_keys import DigestKeys
from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts
from controlplane.gateway.postgres.refused_rows import write_accepted
from controlplane.gateway.servers.refusal_log import LoggedRefusal, RefusalLog
from fuseboard.contract.refusal_samples import RefusalSample
from fuseboard.contract.sync import SyncRequest

#: Rows of one environment. A gateway writes at most 84 in 15 s: 484,000 in a day.
MAX_ROWS = 500_000
#: Between two deletions.
CLEAN_S = 60.0

_INSERT = """
    INSERT INTO refusals_refusalsample (environment, at, service, server, rule, dependency, reason, mode,
        tenant, endpoint, revision, retry_after_ms, ip, "user", api_key, trace, weight)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_OLD = "DELETE FROM refusals_refusalsample WHERE at < now() - make_interval(hours => %s)"
_TOO_MANY = """
    DELETE FROM refusals_refusalsample WHERE environment = %(environment)s AND id <= (
        SELECT id FROM refusals_refusalsample WHERE environment = %(environment)s
        ORDER BY id DESC OFFSET %(most)s LIMIT 1)
"""
_ENVIRONMENTS = "SELECT DISTINCT environment FROM refusals_digestkey"
#: Its digests are all deleted: samples of a day are kept for ``hours`` after its end.
_OLD_KEYS = """
    DELETE FROM refusals_digestkey WHERE "on" + 1 + make_interval(hours => %s) < now() AT TIME ZONE 'UTC'
"""

log = structlog.get_logger(__name__)


class RefusalRows:
    """The log of refusals in a gateway: keys for pods, samples, rows."""

    def __init__(self, clock: Clock, counts: Counts) -> None:
        self._clock = clock
        self.keys = DigestKeys(clock)
        self.log = RefusalLog(clock, counts)
        self._refused_writes = counts.refused_writes
        self._clean_at = clock.monotonic()

    def record(self, beat: SyncRequest) -> list[tuple[float, RefusalSample]]:
        """Returns the samples that are taken, with their weights."""
        return self.log.record(beat) if beat.refusals and settings.REFUSAL_LOG_H else []

    async def look(self, connection: AsyncConnection) -> None:
        """Raises one of ``Unreachable``."""
        await self.keys.look(connection)
        while rows := self.log.finished():
            await self._write(connection, rows)
            self.log.drop()
        if self._clock.monotonic() >= self._clean_at:
            await self._clean(connection)
            self._clean_at = self._clock.monotonic() + CLEAN_S

    async def _write(self, connection: AsyncConnection, rows: list[LoggedRefusal]) -> None:
        async def write(part: Sequence[LoggedRefusal]) -> None:
            async with connection.transaction(), connection.cursor() as cursor:
                await cursor.executemany(_INSERT, [_values(row) for row in part])

        def refused(row: LoggedRefusal, error: BaseException) -> None:
            now = self._clock.monotonic()
            self._refused_writes.add("refusal samples", error, now, environment=row.environment)

        await write_accepted(write, rows, refused)

    async def _clean(self, connection: AsyncConnection) -> None:
        hours = settings.REFUSAL_LOG_H
        await connection.execute(_OLD, (hours,))
        for (environment,) in await (await connection.execute(_ENVIRONMENTS)).fetchall():
            cut = await connection.execute(_TOO_MANY, {"environment": environment, "most": MAX_ROWS})
            if cut.rowcount > 0:
                log.warning("gateway.refusal_log_full", environment=environment, deleted=cut.rowcount)
        await connection.execute(_OLD_KEYS, (hours,))


def _values(row: LoggedRefusal) -> tuple[object, ...]:
    heard = row.heard
    sample = heard.sample
    return (
        row.environment,
        datetime.fromtimestamp(heard.at, UTC),
        heard.service,
        heard.server,
        sample.rule,
        sample.dependency,
        str(sample.reason),
        str(sample.mode),
        sample.tenant,
        sample.endpoint,
        sample.revision,
        sample.retry_after_ms,
        sample.ip,
        sample.user,
        sample.api_key,
        sample.trace,
        row.weight,
    )
