"""A lock of one process among all: ``async with agent.lock("nightly-report") as lock: ...``

A process has the lock for ``ttl_s`` seconds, and renews it on a thread at every third of this time. A
process that dies keeps it until the time is over. A process that is stopped for longer (SIGSTOP, a paused
machine) loses it, and cannot know at once: another may have the lock meanwhile. Therefore each holder gets
a higher ``fence`` than all before it. Write it with what the lock guards, and refuse lower numbers there:
without this check, a lock saves double work, but does not exclude it. A failover of Redis can also give
two holders. See docs/primitives.md.

The algorithm is that of ``lua/lock.lua``. Times are by the monotonic clock: a lock is valid from before
its question was sent, so the process stops relying on it before Redis gives it away.
"""

import asyncio
import logging
import os
import random
from collections.abc import Callable
from concurrent.futures import Future
from secrets import token_hex
from time import monotonic
from types import TracebackType
from typing import Any, Self

from fuseboard.agent_api.arguments import check_seconds
from fuseboard.agent_api.threads import refuse_loops
from fuseboard.calling.deadline import bounded
from fuseboard.contract import keys
from fuseboard.contract.primitives import LONG_HELD_S
from fuseboard.contract.scripts import LOCK
from fuseboard.contract.words import is_subject
from fuseboard.errors import LockLost, LockTaken, Misconfigured, StoreUnavailable
from fuseboard.primitives.store_thread import StoreThread
from fuseboard.reporting.primitive_figures import LockFigures

logger = logging.getLogger("fuseboard")

TTL_S = 30.0
SHORTEST_TTL_S, LONGEST_TTL_S = 0.1, 3600.0
#: The longest wait for a lock.
MAX_WAIT_S = 10.0
#: The clock of Redis may run faster than ours by this part.
DRIFT = 0.01
#: Redis remembers the last number for this time after the end: its clock may be set back by so much.
REMEMBERED_MS = 60_000
#: A renewal comes at the latest after this time, so that a lock held for long is noticed.
RENEW_S = 20.0
#: The pauses between two questions of one that waits: the first, and the longest.
PAUSES_S = (0.02, 0.25)
#: Seconds between two attempts to release a lock while Redis cannot be asked.
AGAIN_S = (0.25, 4.0)


class Locks:
    """The locks of one agent."""

    def __init__(self, thread: StoreThread, environment: str, figures: Callable[[], LockFigures]) -> None:
        self.thread = thread
        self.environment = environment
        self._figures = figures

    @property
    def figures(self) -> LockFigures:
        """The figures of the present run of the agent."""
        return self._figures()

    def asynchronous(self, name: str, ttl_s: float, wait_s: float) -> "AsyncLock":
        return AsyncLock(self, name, ttl_s, wait_s)

    def blocking(self, name: str, ttl_s: float, wait_s: float) -> "BlockingLock":
        return BlockingLock(self, name, ttl_s, wait_s)


def check_lock(name: object, ttl_s: object, wait_s: object) -> None:
    """Raise ``Misconfigured`` for invalid arguments of a lock."""
    if not isinstance(name, str) or not is_subject(name):
        raise Misconfigured(f"the name of a lock must be 1 to 200 printable characters, not {name!r:.80}")
    check_seconds("ttl_s", ttl_s, SHORTEST_TTL_S, LONGEST_TTL_S)
    check_seconds("wait_s", wait_s, 0.0, MAX_WAIT_S)


class Lock:
    """A lock for one block. Not reentrant: a second lock of this name waits, also in this process."""

    def __init__(self, locks: Locks, name: str, ttl_s: float, wait_s: float) -> None:
        check_lock(name, ttl_s, wait_s)
        self.name = name
        #: Higher than the number of every earlier holder; 0 before the block.
        self.fence = 0
        self._locks = locks
        self._key = keys.lock(locks.environment, name)
        self._ttl_s, self._wait_s = ttl_s, wait_s
        self._token = ""
        self._process = os.getpid()
        self._since = self._valid_until = 0.0
        self._lost = ""
        self._keeper: asyncio.Task[None] | None = None

    @property
    def valid(self) -> bool:
        """Whether this process surely has the lock now."""
        return not self._why_lost()

    def check(self) -> None:
        """Raise ``LockLost`` unless this process surely has the lock: before each write that matters."""
        if why := self._why_lost():
            raise LockLost(self.name, why)

    def _why_lost(self) -> str:
        if not self._token:
            return "its block has not begun, or has ended"
        if os.getpid() != self._process:
            return "it belongs to the parent process"
        if self._lost:
            return self._lost
        return "" if monotonic() < self._valid_until else f"it was not renewed within {self._ttl_s:g} s"

    # On the thread of the store

    async def _ask(self, action: str, not_after: int = 0, *, token: str = "") -> tuple[bool, int, float]:
        """``token``: that of an earlier block."""
        ttl_us = int(self._ttl_s * 1_000_000)
        reply = await self._locks.thread.ask(
            LOCK, self._key, action, token or self._token, ttl_us, REMEMBERED_MS, not_after
        )
        return reply[0] == 1, reply[1], reply[2] / 1_000_000

    async def _acquire(self, wait_s: float) -> None:
        figures, began = self._locks.figures, monotonic()
        try:
            sent, waited = await self._take(wait_s)
        except LockTaken:
            figures.taken += 1
            figures.waits.add(monotonic() - began)
            raise
        except StoreUnavailable:
            figures.unavailable += 1
            raise
        self._since = monotonic()
        self._valid_until = sent + self._ttl_s * (1 - DRIFT)
        figures.acquired += 1
        figures.waited += waited
        figures.waits.add(self._since - began)
        figures.held[self._token] = self.name, self._since
        self._keeper = self._locks.thread.begin(self._keep(), f"lock {self.name}")

    async def _take(self, wait_s: float) -> tuple[float, bool]:
        """Ask until the lock is free. Returns when the last question was sent, and whether it was taken."""
        began, pause_s, waited = monotonic(), PAUSES_S[0], False
        while True:
            sent = monotonic()
            mine, fence, left_s = await self._ask("take", self._locks.thread.not_after_us())
            if mine:
                self.fence = fence
                return sent, waited
            waited, wait_left_s = True, began + wait_s - monotonic()
            if wait_left_s <= 0:
                raise LockTaken(self.name, left_s)
            # A holder that lives releases it at any time; one that is dead, when its time is over.
            await asyncio.sleep(min(wait_left_s, max(left_s, 0.001), pause_s * random.uniform(0.5, 1.0)))
            pause_s = min(2 * pause_s, PAUSES_S[1])

    async def _keep(self) -> None:
        usual_s = pause_s = min(self._ttl_s / 3, RENEW_S)
        warned = False
        while True:
            await asyncio.sleep(pause_s)
            if not warned and monotonic() - self._since >= LONG_HELD_S:
                warned = True
                self._locks.figures.long_held += 1
                logger.warning("lock.long_held name=%r held_s=%.0f", self.name, monotonic() - self._since)
            sent = monotonic()
            try:
                mine, _, _ = await self._ask("renew")
            except StoreUnavailable as error:
                if monotonic() >= self._valid_until:
                    self._lose(error.why)
                    return
                pause_s = usual_s / 4
                continue
            if not mine:
                self._lose("Redis has ended it, or another process has it")
                return
            self._valid_until, pause_s = sent + self._ttl_s * (1 - DRIFT), usual_s

    def _lose(self, why: str) -> None:
        self._lost = why
        self._locks.figures.lost += 1
        self._locks.figures.held.pop(self._token, None)
        logger.error("lock.lost name=%r fence=%d: %s", self.name, self.fence, why)

    async def _release(self) -> str:
        """End the lock. Returns why it was lost before; empty when it was not."""
        if self._keeper is not None:
            self._keeper.cancel()
        figures = self._locks.figures
        figures.held.pop(self._token, None)
        figures.holds.add(monotonic() - self._since)
        known = bool(self._lost)
        why = self._why_lost()
        try:
            mine, _, _ = await self._ask("release")
        except StoreUnavailable as error:
            # It was valid until here, so its block did no harm.
            self._release_later(error)
        else:
            why = why or ("" if mine else "Redis had ended it, or another process has it")
        if why and not known:
            self._lose(why)
        self._token = ""
        return why

    async def _forget(self) -> None:
        """The caller was interrupted: Redis may have given the lock meanwhile."""
        self._locks.figures.held.pop(self._token, None)
        if self._keeper is not None:
            self._keeper.cancel()
        try:
            await self._ask("release")
        except StoreUnavailable as error:
            self._release_later(error)

    def _release_later(self, error: StoreUnavailable) -> None:
        """Others need not wait until its time is over if Redis answers before."""
        self._locks.figures.unreleased += 1
        logger.warning("lock.not_released name=%r: %s; it ends by itself", self.name, error.why)
        self._locks.thread.begin(self._go_on_releasing(self._token), f"release {self.name}")

    async def _go_on_releasing(self, token: str) -> None:
        until, pause_s = monotonic() + self._ttl_s, AGAIN_S[0]
        while monotonic() < until:
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            try:
                await self._ask("release", token=token)
            except StoreUnavailable:
                pause_s = min(2 * pause_s, AGAIN_S[1])
                continue
            return

    # In the thread of the caller

    def _begin(self) -> Any:
        if self._token:
            raise Misconfigured("a lock is for one block: call agent.lock() again")
        if os.getpid() != self._process:
            raise Misconfigured("this lock belongs to the parent process: call agent.lock() after the fork")
        self._token, self._lost = token_hex(8), ""
        wait_s = bounded(self._wait_s)
        return self._locks.thread.submit(self._acquire(self._wait_s if wait_s is None else wait_s))

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, LockTaken):
            self._locks.thread.submit(self._forget())

    def _end(self) -> Future[str]:
        """Release the lock; the answer is why it was lost before."""
        if os.getpid() != self._process:
            # A fork inside the block. The thread belongs to the parent, which still has the lock.
            answer: Future[str] = Future()
            answer.set_result(self._why_lost())
            return answer
        return self._locks.thread.submit(self._release())

    def _ended(self, why: str, error: BaseException | None) -> None:
        if why and error is None:
            raise LockLost(self.name, why)


class AsyncLock(Lock):
    """``async with``, on any event loop."""

    async def __aenter__(self) -> Self:
        acquiring = self._begin()
        try:
            await asyncio.wrap_future(acquiring)
        except BaseException as error:
            self._failed(error)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # Shielded: a cancelled block must not leave the lock for others to wait for.
        why = await asyncio.shield(asyncio.wrap_future(self._end()))
        self._ended(why, error)


class BlockingLock(Lock):
    """``with``, in any thread that may block."""

    def __enter__(self) -> Self:
        refuse_loops()
        acquiring = self._begin()
        try:
            acquiring.result()
        except BaseException as error:
            acquiring.cancel()
            self._failed(error)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended(self._end().result(), error)
