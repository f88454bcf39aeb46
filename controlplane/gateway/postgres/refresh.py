"""Keeps the copy in memory up to date: at each notification, and every few seconds in any case."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import structlog
from django.db import Error as DatabaseError
from django.db import connections

from controlplane import notify_channels
from controlplane.breakers.override_in_gateways import HandedOverride
from controlplane.gateway.postgres.connections import Backoff, Unreachable, close, connect
from controlplane.gateway.postgres.keep_trying import KeepTrying
from controlplane.gateway.postgres.loading import Reading, read
from fuseboard.contract.policy import ConfigHead

CHANNELS = (notify_channels.CONFIG, notify_channels.TOKENS)

log = structlog.get_logger(__name__)


class Refresher:
    """Reads Postgres in a thread, and passes every ``Reading`` to ``take`` on the event loop."""

    def __init__(
        self,
        *,
        heads: Callable[[], dict[str, ConfigHead]],
        take: Callable[[Reading], None],
        failed: Callable[[], None],
        holds: Callable[[], list[HandedOverride]],
        every_s: float,
        gateway: str,
    ) -> None:
        self._heads, self._take, self._holds = heads, take, holds
        self._every_s = every_s
        # Django keeps the connection: it belongs to the thread.
        self._postgres = KeepTrying(
            "refresh",
            failed="gateway.reload_failed",
            recovered="gateway.reload_recovered",
            count_failure=failed,
            passing=(DatabaseError,),
            most_s=every_s,
        )
        self._gateway = gateway
        self._wanted = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "gateway-reads")
        self._with_servers = True

    async def run(self) -> None:
        """Read whenever something changed, forever."""
        while True:
            self._wanted.clear()
            if not await self._postgres.attempt(self.refresh()):
                continue
            try:
                async with asyncio.timeout(self._every_s):
                    await self._wanted.wait()
            except TimeoutError:
                pass

    def hurry(self) -> None:
        """Read soon."""
        self._wanted.set()

    async def refresh(self) -> None:
        """Read once. Raises `DatabaseError`, and then everything read before stays in force."""
        reading = await asyncio.get_running_loop().run_in_executor(
            self._thread, _read, self._heads(), self._with_servers, self._gateway, self._holds()
        )
        self._with_servers = False
        self._take(reading)

    async def listen(self) -> None:
        """Request a reading at every notification and after every new connection, forever."""
        backoff = Backoff()
        while True:
            connection = None
            try:
                connection = await connect("listen", direct=True)
                for channel in CHANNELS:
                    await connection.execute(f"LISTEN {channel}")
                backoff.reset()
                # Postgres does not repeat notifications that nothing received.
                self._wanted.set()
                async for _ in connection.notifies():
                    self._wanted.set()
            except Unreachable as error:
                log.warning("gateway.listen_failed", error=str(error))
            finally:
                await close(connection)
            await backoff.pause()

    async def close(self) -> None:
        """End the thread and its connection after its current reading."""
        await asyncio.get_running_loop().run_in_executor(self._thread, connections.close_all)
        self._thread.shutdown(wait=False)


def _read(
    known: dict[str, ConfigHead], with_servers: bool, gateway: str, holds: list[HandedOverride]
) -> Reading:
    try:
        return read(known, with_servers=with_servers, gateway=gateway, holds=holds)
    except DatabaseError:
        # A connection that failed once is not used again.
        connections["default"].close()
        raise
