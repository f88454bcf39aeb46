"""Asks every primary of Redis once a second whether it is there: in a thread, never in a heartbeat."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import redis
import structlog

from controlplane.gateway.servers.fleet import Fleet
from controlplane.redis.functions import primaries
from controlplane.redis.scripts import limits

LOOK_S = 1.0
#: Far more than pods wait for an answer.
DEADLINE_S = 1.0

log = structlog.get_logger(__name__)


class RedisProbe:
    """Notes in every fleet how many primaries there are, and how many give no answer."""

    def __init__(self, fleets: dict[str, Fleet]) -> None:
        self._fleets = fleets
        self._thread = ThreadPoolExecutor(1, "gateway-probes")
        self._known = 1
        self.down = 0

    async def run(self) -> None:
        """Look every second, forever."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def look(self) -> None:
        known, down = await asyncio.get_running_loop().run_in_executor(self._thread, ask, self._known)
        if bool(down) != bool(self.down):
            log.warning(
                "gateway.redis_silent" if down else "gateway.redis_answers", primaries=known, down=down
            )
        self._known, self.down = known, down
        for fleet in self._fleets.values():
            fleet.primaries, fleet.primaries_down = known, down


def ask(known: int) -> tuple[int, int]:
    """How many primaries there are, and how many give no answer. ``known``: how many there were."""
    found = down = 0
    try:
        for execute in primaries(limits(deadline_s=DEADLINE_S)):
            found += 1
            try:
                execute("PING")
            except redis.RedisError:
                down += 1
    except redis.RedisError:
        # No node of a Cluster names the others.
        return known, known
    return found, down
