"""Runs the jobs of a backlog, and reports how they ended: to the breaker, and to the backlog."""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Any, Protocol

from fuseboard.agent_api.arguments import check_seconds
from fuseboard.agent_api.loop_agent import LoopAgent
from fuseboard.backlog.jobs import Job, JobLost, TryAgain, Undeliverable
from fuseboard.backlog.options import DAY_S, MAX_RESULT, Options, to_bytes
from fuseboard.backlog.renewal import Renewal
from fuseboard.backlog.scripts import DEAD, DONE, NOT_OURS, RELEASE, RETRY, BacklogScripts
from fuseboard.calling.exception_paths import paths
from fuseboard.cancellation import stop_tasks
from fuseboard.contract.words import Outcome
from fuseboard.errors import Misconfigured, StoreUnavailable

logger = logging.getLogger("fuseboard")

#: The result of a handler, and the handler.
Value = bytes | str | None
Handler = Callable[[Job], Awaitable[Value]]

MAX_WORKERS = 1000
#: The wait before the next try: full jitter between a half and the whole, doubling up to the last.
RETRY_S = (1.0, 60.0)
#: While Redis is unavailable, the end of a job is reported again after up to this time, for this many leases.
END_AGAIN_S, END_LEASES = 0.5, 3
#: Why a job of a sealed backlog is not handed out, or its result not returned.
NOT_SEALED = "no key of this pod opens its seal"
#: A handler that is cancelled may take this long to clean up.
CANCEL_S = 1.0


class JobSource(Protocol):
    """The backlog, as its workers see it."""

    options: Options
    renewal: Renewal

    @property
    def scripts(self) -> BacklogScripts: ...

    async def next_job(self) -> Job: ...

    def hint(self) -> None: ...


class Workers:
    """Belongs to the event loop of the agent."""

    def __init__(self, backlog: JobSource, agent: LoopAgent) -> None:
        self._backlog = backlog
        self._agent = agent
        self._stopping: set[asyncio.Event] = set()
        self._kept: set[asyncio.Future[Any]] = set()

    async def run(self, handler: Handler, *, workers: int, grace_s: float) -> None:
        check_work(handler, workers, grace_s)
        stopping = asyncio.Event()
        self._stopping.add(stopping)
        busy: set[asyncio.Task[None]] = set()
        tasks = [
            asyncio.create_task(self._work(handler, busy, stopping), name="fuseboard-job")
            for _ in range(workers)
        ]
        ending = asyncio.create_task(stopping.wait())
        try:
            await asyncio.wait({*tasks, ending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._stopping.discard(stopping)
            ending.cancel()
            waiting = [task for task in tasks if task not in busy]
            await stop_tasks(*waiting, within_s=CANCEL_S)
            if busy:
                await asyncio.wait(busy, timeout=grace_s)
            # A worker that is busy now is in a job that did not end in time: it gives the job back.
            await stop_tasks(*tasks, within_s=3 * CANCEL_S, again_s=2 * CANCEL_S)
            await self.flush(CANCEL_S)
        for task in tasks:
            if task.done() and not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def stop(self) -> None:
        for stopping in self._stopping:
            stopping.set()

    async def _work(self, handler: Handler, busy: set[asyncio.Task[None]], stopping: asyncio.Event) -> None:
        me = asyncio.current_task()
        while not stopping.is_set():
            job = await self._backlog.next_job()
            if me is not None:
                busy.add(me)
            try:
                await self._run_one(job, handler)
            finally:
                if me is not None:
                    busy.discard(me)

    async def _run_one(self, job: Job, handler: Handler) -> None:
        started, loop = monotonic(), asyncio.get_running_loop()
        running = asyncio.ensure_future(_call(handler, job))
        job.on_lost(lambda: _cancel_soon(loop, running))
        try:
            await asyncio.wait({running})
        except asyncio.CancelledError:
            # Shutdown: the job did not end within the grace.
            running.cancel()
            await asyncio.wait({running}, timeout=CANCEL_S)
            if running.done() and not running.cancelled() and running.exception() is None:
                self.keep(asyncio.ensure_future(self.finish(job, running.result(), None, started)))
            else:
                self.keep(asyncio.ensure_future(self.hand_back(job)))
            raise
        finally:
            job.on_lost(None)
        if running.cancelled():
            await self.finish(job, None, asyncio.CancelledError(), started)
        else:
            error = running.exception()
            await self.finish(job, None if error else running.result(), error, started)

    async def finish(self, job: Job, value: Value, error: BaseException | None, started: float) -> None:
        """The handler has returned ``value`` or raised ``error``: report it."""
        agent = self._agent
        if error is None:
            agent.report(job.permit, Outcome.OK, monotonic() - started)
            try:
                result = to_bytes("a result", value, MAX_RESULT)
            except Misconfigured as wrong:
                logger.error("backlog.bad_result job=%r: %s", job.id, wrong)
                await self._end(job, DEAD, cause="its result cannot be stored")
            else:
                await self._end(job, DONE, result=result)
            return
        # A handler that uses a ``TaskGroup`` raises a group of what its tasks raised.
        members = [path[0] for path in paths(error)]
        if all(isinstance(member, asyncio.CancelledError | JobLost) for member in members):
            # Nothing is known about the dependency.
            agent.report(job.permit, Outcome.NEUTRAL)
            if job.cancelled:
                await self._end(job, RETRY)
            elif not job.lost and any(isinstance(member, JobLost) for member in members):
                await self._end(job, RELEASE)
            elif not job.lost:
                # The handler cancelled itself. That costs a try, or such a job would run for ever.
                await self._end(job, RETRY, delay_s=_pause_s(job.attempt), cause=_kind(error))
            return
        self._report_error(job, error, members)
        for member in members:
            if isinstance(member, Undeliverable):
                cause = f"Undeliverable: {member}".encode(errors="replace").decode()
                await self._end(job, DEAD, cause=cause)
                return
        waits = [member.after_s for member in members if isinstance(member, TryAgain)]
        delay_s = max(waits) if waits else _pause_s(job.attempt)
        # Only the kind: a message may contain what the payload contains.
        await self._end(job, RETRY, delay_s=delay_s, cause=_kind(error))

    def _report_error(self, job: Job, error: BaseException, members: list[BaseException]) -> None:
        """Report the cause of an error that the handler raised on purpose. The error alone says nothing."""
        meant = [member for member in members if isinstance(member, TryAgain | Undeliverable)]
        if not meant:
            self._agent.report_error(job.permit, error)
            return
        said = [member for member in members if member not in meant]
        said += [member.__cause__ for member in meant if member.__cause__ is not None]
        if said:
            error = said[0] if len(said) == 1 else BaseExceptionGroup("a job", said)
            self._agent.report_error(job.permit, error)
        else:
            self._agent.report(job.permit, Outcome.NEUTRAL)

    # A job is returned in four ways: released before it began, handed back after that, tried again when no
    # key opens it, or left alone when its lease has ended.

    def release(self, job: Job) -> None:
        """The job was not begun: hand it out again, without spending a try."""
        self._agent.give_back(job.permit)
        self.keep(asyncio.ensure_future(self._end(job, RELEASE)))

    def return_unopened(self, job: Job) -> None:
        """No key opens the seal of the job. It is tried again: another worker may have a newer key."""
        logger.warning("backlog.not_sealed job=%r: %s", job.id, NOT_SEALED)
        self._agent.give_back(job.permit)
        self.keep(
            asyncio.ensure_future(self._end(job, RETRY, delay_s=_pause_s(job.attempt), cause=NOT_SEALED))
        )

    async def hand_back(self, job: Job) -> None:
        """The job was begun, and its worker cannot finish it: hand it out again, without spending a try."""
        self._agent.report(job.permit, Outcome.NEUTRAL)
        await self._end(job, RELEASE)

    def return_call_only(self, job: Job) -> None:
        """The lease has ended before the job began: only its call is given back."""
        self._agent.give_back(job.permit)

    async def _end(
        self, job: Job, how: int, *, delay_s: float = 0.0, result: bytes = b"", cause: str = ""
    ) -> None:
        until = monotonic() + END_LEASES * self._backlog.options.lease_s
        try:
            while True:
                try:
                    answer = await self._backlog.scripts.end(
                        job.id, job.fence, how, delay_s=delay_s, result=result, cause=cause[:200]
                    )
                except (StoreUnavailable, Misconfigured) as error:
                    if monotonic() > until or isinstance(error, Misconfigured):
                        logger.warning("backlog.not_ended job=%r: %s; it runs again", job.id, error)
                        return
                    await asyncio.sleep(random.uniform(0.0, END_AGAIN_S))
                    continue
                if answer == NOT_OURS:
                    logger.info("backlog.late job=%r fence=%d: another worker has it", job.id, job.fence)
                return
        finally:
            self._backlog.renewal.remove(job)
            # A slot may be free, or the job ready again: Redis does not publish every hint.
            self._backlog.hint()

    async def flush(self, within_s: float) -> None:
        """Wait until Redis has what is handed back, for at most this time."""
        if self._kept:
            await asyncio.wait(self._kept, timeout=within_s)

    def keep(self, task: asyncio.Future[Any]) -> None:
        """The loop itself keeps only weak references to its tasks."""
        self._kept.add(task)
        task.add_done_callback(self._kept.discard)


def check_work(handler: object, workers: object, grace_s: object) -> None:
    """Raise ``Misconfigured`` for invalid arguments of ``work``."""
    if not callable(handler):
        raise Misconfigured(f"the handler must be a function that takes a job, not {handler!r:.80}")
    if type(workers) is not int or not 1 <= workers <= MAX_WORKERS:
        raise Misconfigured(f"workers must be 1 to {MAX_WORKERS}, not {workers!r}")
    check_seconds("grace_s", grace_s, 0.0, DAY_S)


async def _call(handler: Handler, job: Job) -> Value:
    return await handler(job)


def _cancel_soon(loop: asyncio.AbstractEventLoop, running: asyncio.Future[Any]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed
        loop.call_soon_threadsafe(running.cancel)


def _pause_s(attempt: int) -> float:
    longest = min(RETRY_S[1], RETRY_S[0] * float(2 ** min(attempt - 1, 10)))
    return longest * random.uniform(0.5, 1.0)


def _kind(error: BaseException) -> str:
    return type(paths(error)[0][0]).__name__
