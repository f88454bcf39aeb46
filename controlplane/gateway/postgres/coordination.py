"""Gateways agree through Postgres, once per second: which one hears which pod, shares, and drills.

They also record here which services got a key for the tokens of their refusals, and samples of refusals.
"""

import asyncio
from collections.abc import Callable, Iterable

from controlplane.gateway.answers.drills import Drills
from controlplane.gateway.answers.refusal_keys import RefusalKeys
from controlplane.gateway.answers.seal_keys import SealKeyParts
from controlplane.gateway.answers.shares import Shares
from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts, RefusedValue
from controlplane.gateway.postgres.keep_trying import KeepTrying
from controlplane.gateway.postgres.orders import Orders
from controlplane.gateway.postgres.peers import Peers
from controlplane.gateway.postgres.refusal_rows import RefusalRows
from fuseboard.contract.policy import Tuning
from fuseboard.contract.sync import SyncRequest

LOOK_S = 1.0
#: If Postgres takes longer for a look, the next attempt uses a new connection.
TIMEOUT_S = 3.0


class Coordination:
    def __init__(
        self,
        clock: Clock,
        tunings: Callable[[], Iterable[tuple[str, Tuning]]],
        peers: Peers,
        orders: Orders,
        counts: Counts | None = None,
    ) -> None:
        self.peers = peers
        self.shares = Shares(clock, tunings)
        self.drills = Drills(clock)
        self.refusal_keys = RefusalKeys(clock)
        self.seal_keys = SealKeyParts(clock)
        counts = counts or Counts()
        self.refusals = RefusalRows(clock, counts)
        self.orders = orders
        self._clock, self._refused_writes = clock, counts.refused_writes
        self._postgres = KeepTrying(
            "agree", failed="gateway.agree_failed", recovered="gateway.agree_recovered"
        )

    def part(self, beat: SyncRequest, now: float) -> bytes:
        """The parts of an answer about the pod's reserved share, its drill, and its keys for refusals."""
        keys = self.refusal_keys.part(beat) + self.refusals.keys.part(beat)
        return self.shares.part(beat, now) + self.drills.part(beat, now) + keys

    async def run(self) -> None:
        """Look every second, forever."""
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                await self._postgres.attempt(self.look())
        finally:
            await self.disconnect()

    async def disconnect(self) -> None:
        await self._postgres.disconnect()

    async def look(self) -> None:
        """Raises one of `Unreachable`."""
        async with asyncio.timeout(TIMEOUT_S):
            connection = await self._postgres.connection()
            for what, look in (
                ("orders", self.orders.look),
                ("peers", self.peers.look),
                ("drills", self.drills.look),
                ("shares", self.shares.look),
                ("refusal keys", self.refusal_keys.look),
                ("refusal samples", self.refusals.look),
            ):
                try:
                    await look(connection)
                except RefusedValue as error:
                    # The other parts do not depend on it.
                    self._refused_writes.add(what, error, self._clock.monotonic())
