"""What gateways agree on through Postgres, once per second: who hears whom, shares and drills."""

import asyncio
from collections.abc import Callable, Iterable

import structlog
from psycopg import AsyncConnection

from controlplane.gateway.answers.drills import Drills
from controlplane.gateway.answers.shares import Shares
from controlplane.gateway.clock import Clock
from controlplane.gateway.postgres.connections import Backoff, Unreachable, close, connect
from controlplane.gateway.postgres.peers import Peers
from fuseboard.contract.policy import Tuning
from fuseboard.contract.sync import SyncRequest

LOOK_S = 1.0
#: A look that Postgres has not answered by then is tried again on a new connection.
TIMEOUT_S = 3.0

log = structlog.get_logger(__name__)


class Agreed:
    def __init__(
        self, clock: Clock, tunings: Callable[[], Iterable[tuple[str, Tuning]]], peers: Peers
    ) -> None:
        self.peers = peers
        self.shares = Shares(clock, tunings)
        self.drills = Drills(clock)
        self._connection: AsyncConnection | None = None
        self._failing = False

    def part(self, beat: SyncRequest, now: float) -> bytes:
        """What an answer says of its server's share, and of the drill it takes part in."""
        return self.shares.part(beat, now) + self.drills.part(beat, now)

    async def run(self) -> None:
        """Look every second; for ever."""
        backoff = Backoff()
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                try:
                    await self.look()
                except Unreachable as error:
                    if not self._failing:
                        log.warning("gateway.agree_failed", error=str(error), kind=type(error).__name__)
                    self._failing = True
                    await self._disconnect()
                    await backoff.pause()
                else:
                    if self._failing:
                        log.info("gateway.agree_recovered")
                    self._failing = False
                    backoff.reset()
        finally:
            await self._disconnect()

    async def look(self) -> None:
        """Raises one of ``Unreachable``."""
        async with asyncio.timeout(TIMEOUT_S):
            if self._connection is None:
                self._connection = await connect("agree")
            await self.peers.look(self._connection)
            await self.drills.look(self._connection)
            await self.shares.look(self._connection)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        await close(connection)
