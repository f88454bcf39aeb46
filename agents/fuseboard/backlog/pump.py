"""Asks Redis for jobs on behalf of all workers of one process, and sleeps while none can be sent.

One pump asks for as many jobs as workers are idle, so askers are processes, not threads. It sleeps until
the first of: the end of a refusal, the next job that is due or whose lease ends, a hint that a job was
submitted, and about a second. A lost hint costs that second, and nothing else.
"""

import asyncio
import logging
import random
from collections import deque
from collections.abc import Callable
from time import monotonic

from fuseboard.backlog.scripts import BacklogScripts, Granted, Taken
from fuseboard.contract.words import BreakerState
from fuseboard.errors import StoreUnavailable

logger = logging.getLogger("fuseboard")

#: Jobs of one question.
MAX_TAKEN = 64
#: The longest sleep, jittered by a fifth.
LOOK_S = 1.0
#: ``stop`` waits for a question in progress for at most this time.
STOP_S = 0.2
#: After a hint, each process waits a random part of this, so that not all ask at once.
HINT_SPREAD_S = 0.005
#: Redis publishes one hint per dependency in 50 ms: what was submitted after it is looked for a little later.
HINT_GAP_S = 0.055
#: Processes that wait for the end of one refusal ask within this time, and spread further while they get
#: nothing.
SPREAD_S = (0.02, 0.25)


class Pump:
    """Belongs to the event loop of the agent. ``unused`` gets a job that no worker waits for any more."""

    def __init__(self, scripts: BacklogScripts, unused: Callable[[Granted], None]) -> None:
        self._scripts = scripts
        self._unused = unused
        self._waiting: deque[asyncio.Future[Granted]] = deque()
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        #: The question in progress.
        self._asking: asyncio.Future[Taken] | None = None
        self._spread_s = SPREAD_S[0]
        #: A job may have been submitted for which there is no hint.
        self._quick = True
        #: Only time ends the refusal: no hint does.
        self._refused = False
        self.failures = 0

    async def next(self) -> Granted:
        """The next job; waits for it without a limit."""
        waiter: asyncio.Future[Granted] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(
                self._run(), name=f"fuseboard-backlog {self._scripts.dependency}"
            )
            self._task.add_done_callback(self._ended)
        try:
            return await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._unused(waiter.result())
            raise

    def hint(self) -> None:
        """A job was submitted, or a slot is free."""
        self._quick = True
        if not self._refused:
            self._wake.set()

    async def stop(self) -> None:
        """Ask no more. Workers that wait are cancelled."""
        while self._waiting:
            self._waiting.popleft().cancel()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait({task}, timeout=STOP_S)
        if self._asking is not None and not self._asking.done():
            # Otherwise the jobs of the answer would wait for their leases.
            await asyncio.wait({self._asking}, timeout=STOP_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """After an unexpected error, workers get it: otherwise they would wait for ever."""
        if task.cancelled() or (error := task.exception()) is None:
            return
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_exception(error)

    def _idle(self) -> int:
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        return sum(not waiter.done() for waiter in self._waiting)

    async def _run(self) -> None:
        """While a worker waits."""
        while idle := self._idle():
            # Also before a wait of this pod's own: otherwise a hint from before it ends every sleep at once.
            self._wake.clear()
            wait_s = self._wait_locally()
            if wait_s <= 0:
                taken = await self._ask(1 if self._probes_locally() else min(MAX_TAKEN, idle))
                if taken is not None and taken.again:
                    continue
                wait_s = LOOK_S * random.uniform(0.8, 1.2) if taken is None else self._sleep_s(taken)
            await self._sleep(wait_s)

    async def _ask(self, most: int) -> Taken | None:
        asking = self._asking = asyncio.ensure_future(self._scripts.take(most))
        try:
            taken = await asyncio.shield(asking)
        except asyncio.CancelledError:
            asking.add_done_callback(self._give_back_all)
            raise
        except StoreUnavailable as error:
            self.failures += 1
            if self.failures == 1:
                logger.warning("backlog.unavailable dependency=%s: %s", self._scripts.dependency, error.why)
            return None
        self.failures = 0
        for granted in taken.jobs:
            self._deliver(granted)
        return taken

    def _deliver(self, granted: Granted) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(granted)
                return
        self._unused(granted)

    def _give_back_all(self, asked: "asyncio.Future[Taken]") -> None:
        if not asked.cancelled() and asked.exception() is None:
            for granted in asked.result().jobs:
                self._unused(granted)

    def _wait_locally(self) -> float:
        """Seconds until this pod's own breaker, or an override, lets a job pass; 0 if it does."""
        calls = self._scripts.calls
        breaker = calls.breakers[self._scripts.dependency]
        if calls.forced_open(breaker) is not None:
            return LOOK_S
        if breaker.local.state is not BreakerState.CLOSED and calls.breakers.override(breaker.name) is None:
            return breaker.wait_locally()
        return 0.0

    def _probes_locally(self) -> bool:
        return self._scripts.calls.breakers[self._scripts.dependency].local.state is BreakerState.HALF_OPEN

    def _sleep_s(self, taken: Taken) -> float:
        if taken.jobs:
            self._spread_s, self._quick = SPREAD_S[0], True
        self._refused = taken.refused
        times = [LOOK_S * random.uniform(0.8, 1.2)]
        if taken.wait_s:
            times.append(taken.wait_s * random.uniform(1.0, 1.1) + random.uniform(0, self._spread_s))
            self._spread_s = min(SPREAD_S[1], 2 * self._spread_s)
        if taken.next_s and not taken.refused:
            times.append(taken.next_s * random.uniform(1.0, 1.1) + random.uniform(0, SPREAD_S[0]))
        if self._quick and not taken.refused:
            times.append(HINT_GAP_S)
            self._quick = False
        return min(times)

    async def _sleep(self, seconds: float) -> None:
        until = monotonic() + seconds
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        await asyncio.sleep(min(random.uniform(0, HINT_SPREAD_S), max(0.0, until - monotonic())))
