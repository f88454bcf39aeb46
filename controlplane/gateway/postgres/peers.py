"""The other gateways and their pods, read from Postgres once per second and never in a heartbeat.

Servers keep their connection, so each is heard by one gateway at a time, but moves when a gateway
stops or a balancer decides so. A server that this process no longer hears may be heard elsewhere:
then it is handed over, and its silence here means nothing. A server of a gateway that stopped is
taken over, so that one gateway notices when it falls silent.

While Postgres is down, the last count stays, and no pod is handed over.
"""

import asyncio

import structlog
from psycopg import AsyncConnection

from controlplane.fleet.call_figures import add_calls
from controlplane.fleet.live import FIGURES_FRESH_FOR, SPENDING_FOR
from controlplane.gateway.clock import Clock
from controlplane.gateway.servers.fleet import Fleet
from controlplane.gateway.servers.known_names import MAX_NAMES, KnownNames
from controlplane.publishing.models import HISTORY
from controlplane.publishing.publish import NOTE_AHEAD
from controlplane.publishing.unknown_revisions import SELECT, UnknownRevision

#: Two gateways' clocks, and the same beat written twice, differ by less than this.
SAME_BEAT_S = 0.05

_COUNT = f"""
    SELECT environment,
           (coalesce(sum(spending), 0) + count(*) FILTER (
               WHERE spending > 0 AND alternations > 1
                 AND alternated_at > now() - interval '10 minutes'))::bigint,
           (count(*) + coalesce(sum(rivals), 0))::bigint
    FROM fleet_server
    WHERE state <> 'gone'
      AND (state <> 'offline' OR last_seen_at > now() - interval '{SPENDING_FOR.total_seconds():.0f} s')
    GROUP BY environment
"""  # noqa: S608 - a number of this code

#: First calls per second by dependency, of the pods that other gateways hear.
_CALLING = f"""
    SELECT environment, document->'protection' FROM fleet_figures
    WHERE gateway <> %s AND at > now() - interval '{FIGURES_FRESH_FOR.total_seconds():.0f} s'
      AND document ? 'protection' AND document->'protection' <> '{{}}'
"""  # noqa: S608 - a number of this code

_ELSEWHERE = """
    SELECT name, extract(epoch FROM last_seen_at)::float8 FROM fleet_server
    WHERE environment = %s AND name = ANY(%s) AND gateway <> %s
"""


log = structlog.get_logger(__name__)


#: The newest, if there are more than are remembered.
_NAMES = f"""
    SELECT id, environment, name FROM fleet_server WHERE id > %s ORDER BY id DESC LIMIT {MAX_NAMES}
"""  # noqa: S608 - a number of this code
#: Rows of it that are taken in before other tasks run.
_CHUNK = 2_000
#: How often names of deleted rows are forgotten.
NAMES_AGAIN_S = 3_600.0


class Peers:
    def __init__(self, fleets: dict[str, Fleet], names: KnownNames, clock: Clock, *, gateway: str) -> None:
        self._fleets = fleets
        self._names = names
        self._names_again = clock.monotonic() + NAMES_AGAIN_S
        self._clock = clock
        self._gateway = gateway

    async def look(self, connection: AsyncConnection) -> None:
        """Raises one of ``Unreachable``."""
        await self._read_names(connection)
        rows = await (await connection.execute(_COUNT)).fetchall()
        counts: dict[str, tuple[int, int]] = {row[0]: (row[1], row[2]) for row in rows}
        calling = await (await connection.execute(_CALLING, (self._gateway,))).fetchall()
        for environment, fleet in list(self._fleets.items()):
            documents = [{"protection": found} for of, found in calling if of == environment]
            fleet.protection.caps.elsewhere = {
                name: (calls.first_calls_per_s, calls.callers) for name, calls in add_calls(documents).items()
            }
            await self._hand_over(connection, fleet)
            fleet.size.note_everywhere(*counts.get(environment, (0, 0)))
            await self._look_for_unknown_revisions(connection, fleet)

    async def _read_names(self, connection: AsyncConnection) -> None:
        now = self._clock.monotonic()
        again = now >= self._names_again
        if again:
            # Now, so that a look that fails does not read all of them every second.
            self._names_again = now + NAMES_AGAIN_S
        cursor = await connection.execute(_NAMES, (0 if again else self._names.read_from(now),))
        # Until all are read, the earlier ones stay known.
        names = KnownNames() if again else self._names
        while rows := await cursor.fetchmany(_CHUNK):
            names.add(rows, now)
            await asyncio.sleep(0)
        if again:
            self._names.replace(names)

    async def _hand_over(self, connection: AsyncConnection, fleet: Fleet) -> None:
        silent = {server.beat.server: server.seen_wall for server in fleet.overdue(self._clock.monotonic())}
        if not silent:
            return
        cursor = await connection.execute(_ELSEWHERE, (fleet.environment, list(silent), self._gateway))
        for name, seen_wall in await cursor.fetchall():
            if seen_wall > silent[name] + SAME_BEAT_S:
                fleet.hand_over(name)

    async def _look_for_unknown_revisions(self, connection: AsyncConnection, fleet: Fleet) -> None:
        """Report pods with a revision that Postgres never made.

        Only the history in Postgres can confirm that Postgres is behind; the report of a pod stops no edit.
        """
        rows = await (await connection.execute(SELECT, (fleet.environment,))).fetchall()
        found = {row[0]: UnknownRevision(*row) for row in rows}
        for name, one in found.items():
            if name not in fleet.unknown_revisions:
                log.warning(
                    "fleet.unknown_revision",
                    environment=fleet.environment,
                    server=name,
                    epoch=one.epoch,
                    revision=one.revision,
                )
            if one.in_history:
                known = [one.epoch, one.revision]
                who = f"{HISTORY}, and {name},"
                await connection.execute(NOTE_AHEAD, [*known, who, fleet.environment, *known])
        fleet.unknown_revisions = frozenset(found)
