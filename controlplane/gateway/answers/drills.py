"""Drills: the pods that pretend that Redis is slow or down, and until when. Read once per second."""

from psycopg import AsyncConnection

from controlplane.gateway.clock import Clock
from fuseboard.contract.sync import SyncRequest

_READ = """
    SELECT id, environment, kind, servers, extract(epoch FROM ends_at - now())
    FROM drills_drill WHERE ended_at IS NULL AND ends_at > now() ORDER BY id
"""


class Drills:
    """The drills that were read last. A drill ends on this process's clock, also while Postgres is down."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        #: By environment and server: id, kind, and until when on the monotonic clock.
        self._parts: dict[tuple[str, str], tuple[int, str, float]] = {}

    def part(self, beat: SyncRequest, now: float) -> bytes:
        """The part of an answer about a drill."""
        found = self._parts.get((beat.environment, beat.server))
        if found is None:
            return b""
        drill, kind, until = found
        remaining_ms = int((until - now) * 1000)
        if remaining_ms < 1:
            return b""
        return b',"drill":{"id":%d,"kind":"%b","remaining_ms":%d}' % (drill, kind.encode(), remaining_ms)

    async def look(self, connection: AsyncConnection) -> None:
        """Raises one of ``Unreachable``."""
        cursor = await connection.execute(_READ)
        now = self._clock.monotonic()
        self._parts = {
            (environment, server): (drill, kind, now + float(remaining_s))
            for drill, environment, kind, servers, remaining_s in await cursor.fetchall()
            for server in servers
        }
