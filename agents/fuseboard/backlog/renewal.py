"""Renews the leases of the jobs that workers of this process run, on a thread of its own.

A job may block the event loop of the application for longer than its lease. So the thread of the store
renews; a job whose lease another worker has, or that was cancelled, learns it.
"""

import asyncio
import logging
import threading
from collections.abc import Callable
from time import monotonic

from fuseboard.backlog.jobs import Job
from fuseboard.batching.encoding import msgpack_encode
from fuseboard.contract.scripts import BACKLOG_KEEP
from fuseboard.errors import StoreUnavailable
from fuseboard.primitives.store_thread import StoreThread

logger = logging.getLogger("fuseboard")

#: Leases of one question.
MAX_RENEWED = 500
#: The lease is shorter here than in Redis by this part: clocks differ.
DRIFT = 0.01


class Renewal:
    """``slots`` returns the keys of limits that count slots, and what ``backlog_keep.lua`` needs of them."""

    def __init__(
        self,
        thread: StoreThread,
        *,
        keys: tuple[str, ...],
        slots: Callable[[], tuple[tuple[str, ...], list[str | int]]],
        lease_s: float,
        max_run_s: float,
    ) -> None:
        self._thread = thread
        self._keys = keys
        self._slots = slots
        self._lease_s = lease_s
        self._max_run_s = max_run_s
        self._guard = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._running = False

    def add(self, job: Job) -> None:
        """Renew its lease from now on."""
        with self._guard:
            self._jobs[job.fence] = job
            starts, self._running = not self._running, True
        if starts:
            self._thread.submit(self._run())

    def remove(self, job: Job) -> None:
        with self._guard:
            self._jobs.pop(job.fence, None)

    def _held(self) -> list[Job]:
        with self._guard:
            if not self._jobs:
                self._running = False
            return list(self._jobs.values())

    async def _run(self) -> None:
        """While a worker has a job."""
        pause_s = self._lease_s / 3
        while True:
            await asyncio.sleep(pause_s)
            jobs = self._held()
            if not jobs:
                return
            pause_s = self._lease_s / 3
            for first in range(0, len(jobs), MAX_RENEWED):
                try:
                    renewed = await self._renew(jobs[first : first + MAX_RENEWED])
                except Exception:
                    # Without this thread, every lease of this process would end.
                    logger.exception("backlog.renewal_failed jobs=%d", len(jobs))
                    renewed = False
                if not renewed:
                    pause_s = self._lease_s / 12

    async def _renew(self, jobs: list[Job]) -> bool:
        """``False`` when Redis did not answer."""
        now = monotonic()
        for job in jobs:
            if now - job.started > self._max_run_s:
                logger.warning("backlog.too_long job=%r: its lease is not renewed any more", job.id)
                self._lose(job)
        kept = [job for job in jobs if not job.lost]
        if not kept:
            return True
        keys, slots = self._slots()
        flat = [part for job in kept for part in (job.id, job.fence)]
        question = msgpack_encode([int(self._lease_s * 1e6), slots, flat])
        try:
            reply = await self._thread.ask(BACKLOG_KEEP, (*keys, *self._keys), question)
        except StoreUnavailable as error:
            # The jobs go on: without Redis, no other worker gets them. ``check`` knows that this is not sure.
            logger.debug("backlog.not_renewed: %s", error.why)
            return False
        for job, answer in zip(kept, reply, strict=False):
            if answer == 0:
                self._lose(job)
                continue
            job.renew(now + self._lease_s * (1 - DRIFT))
            if answer == 2:
                job.lose(cancelled=True)
        return True

    def _lose(self, job: Job) -> None:
        with self._guard:
            ended = self._jobs.pop(job.fence, None) is None
        if not ended:
            job.lose()
