"""A pod that serves requests in order with a few workers, behind a shedder or without one."""

import asyncio
from dataclasses import dataclass, field

from fuseboard.contract.protection import Shedding
from fuseboard.protection.shedding import Load, Shedder
from tests.experiments.traffic import Call, Vendor

TICK_S = 0.25


@dataclass
class SheddingPod:
    """``priorities``: of the tiers. With ``settings`` of ``None`` nothing is shed."""

    workers: int
    vendor: Vendor
    settings: Shedding | None
    priorities: tuple[int, ...] = (50,)
    #: Moments when shedding began or ended, and whether it is active then.
    switches: list[tuple[float, bool]] = field(default_factory=list)
    waiting: int = 0

    def __post_init__(self) -> None:
        self._free = asyncio.Semaphore(self.workers)
        self.shedder = Shedder(self.settings, self.priorities, seed=11) if self.settings is not None else None
        self._timer = asyncio.ensure_future(self._ticks())

    async def _ticks(self) -> None:
        loop, active = asyncio.get_running_loop(), False
        start = loop.time()
        while self.shedder is not None:
            await asyncio.sleep(TICK_S)
            self.shedder.tick(loop.time(), Load(waiting=self.waiting))
            if self.shedder.active is not active:
                active = self.shedder.active
                self.switches.append((loop.time() - start, active))

    async def stop(self) -> None:
        self._timer.cancel()
        await asyncio.gather(self._timer, return_exceptions=True)

    async def serve(self, call: Call) -> None:
        loop = asyncio.get_running_loop()
        if self.shedder is not None and self.shedder.enter(call.level, f"source-{call.level}") is not None:
            call.outcome = "shed"
            return
        asked = loop.time()
        self.waiting += 1
        try:
            await self._free.acquire()
        finally:
            self.waiting -= 1
        call.wait_s = loop.time() - asked
        try:
            await self.vendor.work()
            call.outcome = "served"
        finally:
            self._free.release()
            if self.shedder is not None:
                self.shedder.leave()
