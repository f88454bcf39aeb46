"""Gives servers their pieces of what is spent without Redis: from memory, off the path of a beat.

What may be promised is agreed with the other gateways in Postgres, once per second at most;
see ``controlplane.shares.grantor`` for why it holds. While Postgres is away nothing is renewed:
promises run out, and with them the pieces, which is late but never wrong.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from psycopg import AsyncConnection

from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import RefusedValue
from controlplane.shares.grantor import Grantor, held_ms
from controlplane.shares.rows import read, write
from fuseboard.contract.policy import Tuning
from fuseboard.contract.sync import SyncRequest

#: Between two looks at the rows of an environment where nothing waits; and so much longer per row,
#: for a look at 10,000 rows takes a tenth of a second.
QUIET_S = 5.0
PER_ROW_S = 0.001


class Shares:
    """The pieces of every environment, as this process may promise them."""

    def __init__(self, clock: Clock, tunings: Callable[[], Iterable[tuple[str, Tuning]]]) -> None:
        self._clock = clock
        self._tunings = tunings
        self._grantors: dict[str, Grantor] = {}
        self._looked: dict[str, float] = {}

    def part(self, beat: SyncRequest, now: float) -> bytes:
        """Record a heartbeat. Returns the part of its answer about the reserved share."""
        grantor = self._grantors.get(beat.environment)
        if grantor is None:
            grantor = self._grantors[beat.environment] = Grantor()
        grantor.record(beat.server, beat.boot, share=beat.share, leaving=beat.leaving, now=now)
        promise = grantor.promises.get((beat.server, beat.boot))
        if promise is None or beat.leaving:
            return b""
        remaining_ms = int((promise.until - now) * 1000)
        if remaining_ms < 1:
            return b""
        return b',"share":{"level":%d,"place":%d,"terms":%d,"remaining_ms":%d}' % (
            promise.level,
            promise.place,
            promise.terms,
            remaining_ms,
        )

    async def look(self, connection: AsyncConnection) -> None:
        """Agree where something waits, and everywhere now and then. Raises one of ``Unreachable``.

        Raises one of ``RefusedValue`` after it looked at all environments.
        """
        refused: BaseException | None = None
        for environment, tuning in self._tunings():
            grantor = self._grantors.get(environment)
            if grantor is None:
                continue
            now, rows = self._clock.monotonic(), len(grantor.promises)
            passed = now - self._looked.get(environment, float("-inf"))
            wants = grantor.wants_a_look(now, tuning.share_lease_ms / 1000)
            if passed < (0.0 if wants else QUIET_S) + rows * PER_ROW_S:
                continue
            try:
                await self._agree(connection, environment, grantor, tuning)
            except RefusedValue as error:
                refused = error
            self._looked[environment] = now
        if refused is not None:
            raise refused

    async def _agree(
        self, connection: AsyncConnection, environment: str, grantor: Grantor, tuning: Tuning
    ) -> None:
        lease_s, rest_s = tuning.share_lease_ms / 1000, tuning.share_rest_ms / 1000
        # Before anything is locked: what is promised counts from here.
        begun, step = self._clock.monotonic(), None
        try:
            async with connection.transaction():
                hold_ms = held_ms(tuning.share_lease_ms, tuning.share_rest_ms)
                pool = await read(connection, environment, hold_ms=hold_ms)
                if pool is None:
                    return
                step = grantor.begin(pool.rows, begun=begun)
                await _gently(
                    grantor.decide(
                        step,
                        seen=self._clock.monotonic(),
                        lease_s=lease_s,
                        rest_s=rest_s,
                        new_terms=pool.new_terms,
                    )
                )
                await write(connection, pool, step)
        except BaseException:
            if step is not None:
                grantor.abandon(step)
            raise
        await _gently(grantor.commit(step, lease_s))


async def _gently(work: Iterator[None]) -> None:
    """Do all of it, and let other tasks run in between."""
    for _ in work:
        await asyncio.sleep(0)
