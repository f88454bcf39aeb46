"""Does what operators ordered about the fleet in memory: see ``controlplane.fleet.edits``."""

import structlog
from psycopg import AsyncConnection

from controlplane.fleet.models import OrderKind
from controlplane.gateway.clock import Clock
from controlplane.gateway.postgres.usage_rows import erase_again
from controlplane.gateway.servers.erasing import erase_tenant
from controlplane.gateway.servers.fleet import Fleet
from controlplane.refusals import top_lists
from controlplane.series.tenant_hours import ERASE, erasing

#: How long a gateway that cannot reach Postgres may be late. A tenant is erased also later, as long as there
#: is a row of it: 8 days, because pods may report what they used for a week.
_VALID = "10 minutes"
#: A write of a gateway may be on its way while a tenant is erased, and the gateway may die after it. So all
#: of them erase what is in Postgres again and again for this time: after the order, and after a gateway that
#: was late has read it.
ERASE_AGAIN_S = 20.0
#: A gateway that starts reads the orders of 8 days, and erases their tenants together.
LATE_EVERY_S = 7.0
#: Hours that gateways may have in memory.
_SINCE = "3 hours"

_READ = f"""
    SELECT id, environment, kind, server, extract(epoch FROM at)::float8,
           at > now() - interval '{ERASE_AGAIN_S} seconds', (now() - interval '{_SINCE}')::text
    FROM fleet_gatewayorder WHERE at > now() - interval '{_VALID}' OR kind = '{OrderKind.ERASE.value}'
    ORDER BY id
"""  # noqa: S608 - a text of this code

#: Deletes the row that a gateway wrote between the order and its reading.
_DELETE = """
    DELETE FROM fleet_server
    WHERE environment = %s AND name = %s AND last_seen_at <= to_timestamp(%s)
"""

log = structlog.get_logger(__name__)


#: A batch of a gateway may be on its way while a row is deleted, and would write it again. So it is deleted
#: again and again for this time, which is longer than a statement may take.
DELETE_AGAIN_S = 10.0


class Orders:
    def __init__(self, fleets: dict[str, Fleet], clock: Clock) -> None:
        self._fleets = fleets
        self._clock = clock
        #: When each order was done, monotonic.
        self._done: dict[int, float] = {}
        #: When tenants that were erased before this gateway could read it are erased again, monotonic.
        self._late_again = 0.0

    async def look(self, connection: AsyncConnection) -> None:
        """Raises one of ``Unreachable``."""
        rows = await (await connection.execute(_READ)).fetchall()
        now = self._clock.monotonic()
        late: dict[str, list[int]] = {}
        for number, environment, kind, server, at, fresh, since in rows:
            known = number in self._done
            if kind == OrderKind.ERASE.value:
                if not fresh and now - self._done.get(number, now) < ERASE_AGAIN_S:
                    late.setdefault(environment, []).append(int(server))
                await self._erase(
                    connection, environment, int(server), at, known=known, fresh=fresh, since=since
                )
                self._done.setdefault(number, now)
                continue
            if known and (kind != OrderKind.FORGET.value or now - self._done[number] > DELETE_AGAIN_S):
                continue
            changed = await self._do(connection, environment, kind, server, at)
            if changed or not known:
                log.info(
                    "gateway.order_done", environment=environment, kind=kind, server=server, changed=changed
                )
            self._done.setdefault(number, now)
        if late and now >= self._late_again:
            self._late_again = now + LATE_EVERY_S
            for environment, tenants in late.items():
                await erase_again(connection, environment, tenants)
        # An order is read as long as it is valid.
        valid = {row[0] for row in rows}
        self._done = {number: at for number, at in self._done.items() if number in valid}

    async def _erase(
        self,
        connection: AsyncConnection,
        environment: str,
        tenant: int,
        at: float,
        *,
        known: bool,
        fresh: bool,
        since: str,
    ) -> None:
        fleet = self._fleets.get(environment)
        if not known:
            forgotten = fleet is not None and erase_tenant(fleet.sums, tenant, before=at)
            # Without the tenant: the log would keep what is erased here.
            log.info("gateway.caller_erased", environment=environment, changed=forgotten)
        if fleet is not None and not fleet.sums.usage.is_erased(tenant, at):
            # The environment had no pod yet when the order was read.
            fleet.sums.usage.erase(tenant, at=at)
        if fresh:
            if fleet is not None:
                # A heartbeat that was not counted yet brings the tenant back into the present minute.
                fleet.sums.tops.erase(tenant)
                fleet.sums.descriptors.erase_examples()
                fleet.sums.usage.erase(tenant, at=at)
            await connection.execute(ERASE, erasing(environment, tenant, since=since))
            await connection.execute(top_lists.ERASE, top_lists.erasing(environment, tenant, since=since))
            await erase_again(connection, environment, [tenant])

    async def _do(
        self, connection: AsyncConnection, environment: str, kind: str, server: str, at: float
    ) -> bool:
        """Returns whether something changed."""
        fleet = self._fleets.get(environment)
        if kind != OrderKind.FORGET.value:
            return fleet is not None and fleet.lift_freeze(before=at)
        forgotten = fleet is not None and fleet.forget(server, before=at)
        deleted = await connection.execute(_DELETE, (environment, server, at))
        return forgotten or deleted.rowcount > 0
