"""Pings a service outside, once a minute, while this gateway evaluates alerts of level 3."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from controlplane.alerts.delivery.watchdog import EVERY_S, MAX_IDLE_S, ping
from controlplane.gateway.counts import Counts
from controlplane.gateway.emergency.watch import Emergency


class Watchdog:
    def __init__(self, emergency: Emergency, counts: Counts) -> None:
        self._emergency, self._counts = emergency, counts
        self._thread = ThreadPoolExecutor(1, "gateway-watchdog")

    async def run(self) -> None:
        """Ping it every minute, forever, but not while the rules are not evaluated."""
        while True:
            if self._emergency.idle_s < MAX_IDLE_S:
                result = await asyncio.get_running_loop().run_in_executor(self._thread, ping)
                self._counts.watchdog_pings[result] += 1
            await asyncio.sleep(EVERY_S)
