"""Does what operators ordered about the fleet in memory: see ``controlplane.fleet.edits``."""

import structlog
from psycopg import AsyncConnection

from controlplane.fleet.models import OrderKind
from controlplane.gateway.servers.fleet import Fleet

#: How long a gateway that cannot reach Postgres may be late.
_VALID = "10 minutes"

_READ = f"""
    SELECT id, environment, kind, server, extract(epoch FROM at)::float8
    FROM fleet_gatewayorder WHERE at > now() - interval '{_VALID}' ORDER BY id
"""  # noqa: S608 - a text of this code

#: What a gateway wrote between the order and its reading.
_DELETE = """
    DELETE FROM fleet_server
    WHERE environment = %s AND name = %s AND last_seen_at <= to_timestamp(%s)
"""

log = structlog.get_logger(__name__)


class Orders:
    def __init__(self, fleets: dict[str, Fleet]) -> None:
        self._fleets = fleets
        self._done: set[int] = set()

    async def look(self, connection: AsyncConnection) -> None:
        """Raises one of ``Unreachable``."""
        rows = await (await connection.execute(_READ)).fetchall()
        for number, environment, kind, server, at in rows:
            if number in self._done:
                continue
            fleet = self._fleets.get(environment)
            if kind == OrderKind.FORGET.value:
                if fleet is not None:
                    fleet.forget(server, before=at)
                await connection.execute(_DELETE, (environment, server, at))
            elif fleet is not None:
                fleet.lift_freeze(before=at)
            log.info("gateway.order_done", environment=environment, kind=kind, server=server)
        # An order is read as long as it is valid, and done once.
        self._done = {row[0] for row in rows}
