"""A pod that serves requests in order with a few workers, behind a shedder or without one."""

import asyncio
from dataclasses import dataclass, field

from fuseboard.contract.protection import PodProtection, Route, Shedding
from fuseboard.protection.pod import Pod
from fuseboard.protection.shedding import Shed, Shedder
from tools.experiments.traffic import Call, Vendor

TICK_S = 0.25
ENDPOINT = "GET /orders"


@dataclass
class SheddingPod:
    """``priorities``: of the tiers. With ``settings`` of ``None`` nothing is shed.

    The agent's pod measures what it measures in an application: how many requests were not answered yet, and
    how long they took beside the SLA of their route. Nothing reports the line for the workers to it.
    """

    workers: int
    vendor: Vendor
    settings: Shedding | None
    priorities: tuple[int, ...] = (50,)
    sla_ms: int = 200
    #: Moments when shedding began or ended, and whether it is active then.
    switches: list[tuple[float, bool]] = field(default_factory=list)

    def __post_init__(self) -> None:
        loop = asyncio.get_running_loop()
        self._free = asyncio.Semaphore(self.workers)
        routes = (Route(pattern=ENDPOINT, sla_ms=self.sla_ms),)
        self.pod = Pod(PodProtection(shedding=self.settings, routes=routes), self.priorities, clock=loop.time)
        if self.settings is not None:
            # Draws the same numbers in each run.
            self.pod.shedder = Shedder(self.settings, self.priorities, seed=11)
        self._timer = asyncio.ensure_future(self._ticks())

    async def _ticks(self) -> None:
        loop, active = asyncio.get_running_loop(), False
        start = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            self.pod.tick(loop.time())
            if self.pod.shedder is not None and self.pod.shedder.active is not active:
                active = self.pod.shedder.active
                self.switches.append((loop.time() - start, active))

    async def stop(self) -> None:
        self._timer.cancel()
        await asyncio.gather(self._timer, return_exceptions=True)

    async def serve(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        visit = self.pod.enter(ENDPOINT, call.level, f"source-{call.level}")
        if isinstance(visit, Shed):
            call.outcome = "shed"
            return
        asked = loop.time()
        try:
            async with self._free:
                call.wait_s = loop.time() - asked
                await self.vendor.work()
                call.outcome = "served"
            visit.answered(200)
        finally:
            visit.leave()
