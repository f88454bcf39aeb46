"""The backlog for code without an event loop."""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future, wait
from functools import partial
from inspect import iscoroutinefunction
from time import monotonic
from typing import Any, TypeVar, Unpack

from fuseboard.agent_api.arguments import check_seconds
from fuseboard.agent_api.options import list_options
from fuseboard.agent_api.threads import refuse_loops, submit
from fuseboard.backlog.host import BacklogHost
from fuseboard.backlog.jobs import Depth, Job, Result, Submitted
from fuseboard.backlog.options import JOB_DEFAULTS, JobArguments, Options
from fuseboard.backlog.queue import MAX_WAIT_S, Backlog
from fuseboard.backlog.workers import Value, check_work
from fuseboard.errors import Misconfigured, StoreUnavailable

logger = logging.getLogger("fuseboard")

#: Seconds that the agent's loop may take longer than its own deadlines, before the process counts as stuck.
LATE_S = 5.0
#: How often ``work`` looks whether it was stopped: signal handlers run between two looks.
LOOK_S = 0.2

T = TypeVar("T")
Handler = Callable[[Job], Value]


class BlockingBacklog:
    """``fuseboard.backlog.queue.Backlog`` without ``await``. Safe from any thread, and after a fork."""

    def __init__(self, agent: Callable[[], BacklogHost], dependency: str, options: Options) -> None:
        self.dependency = dependency
        self.options = options
        self._agent_now = agent
        self._stopped: set[threading.Event] = set()

    @list_options(**JOB_DEFAULTS)
    def submit(self, payload: bytes | str, **job: Unpack[JobArguments]) -> Submitted:
        """See ``Backlog.submit``."""
        return self._ask(lambda backlog: backlog.submit(payload, **job))

    def cancel(self, job_id: str) -> bool:
        """See ``Backlog.cancel``."""
        return self._ask(lambda backlog: backlog.cancel(job_id))

    def revive(self, job_id: str) -> bool:
        """See ``Backlog.revive``."""
        return self._ask(lambda backlog: backlog.revive(job_id))

    def result(self, job_id: str, *, wait_s: float = 0.0) -> Result:
        """See ``Backlog.result``."""
        check_seconds("wait_s", wait_s, 0.0, MAX_WAIT_S)
        return self._ask(lambda backlog: backlog.result(job_id, wait_s=wait_s), wait_s)

    def depth(self) -> Depth:
        """See ``Backlog.depth``."""
        return self._ask(lambda backlog: backlog.depth())

    # Workers

    def work(self, handler: Handler, *, workers: int = 8, grace_s: float = 10.0) -> None:
        """Run jobs in ``workers`` threads until ``stop``.

        Jobs that do not finish within ``grace_s`` after that are handed out again. Their threads cannot be
        ended: they see ``job.lost``, and they do not keep the process alive.
        """
        check_work(handler, workers, grace_s)
        if iscoroutinefunction(handler):
            raise Misconfigured("the handler runs in a thread: pass a plain function, not 'async def'")
        refuse_loops()
        stopped = threading.Event()
        self._stopped.add(stopped)
        running = WorkerThreads(self, handler, stopped)
        threads = [
            threading.Thread(target=running.work, name=f"fuseboard-job-{number}", daemon=True)
            for number in range(workers)
        ]
        try:
            for thread in threads:
                thread.start()
            while not stopped.wait(LOOK_S) and any(thread.is_alive() for thread in threads):
                pass
        finally:
            stopped.set()
            self._stopped.discard(stopped)
            running.end(threads, grace_s)
        if running.error is not None:
            raise running.error

    def stop(self) -> None:
        """End every ``work`` of this process. Safe in a signal handler."""
        for stopped in tuple(self._stopped):
            stopped.set()

    # Between the threads and the loop

    def begin(
        self,
        question: Callable[[Backlog], Coroutine[Any, Any, T]],
        undo: Callable[[T], None] = lambda _: None,
    ) -> Future[T]:
        """Ask on the agent's loop. An answer is either received or undone."""
        agent = self._agent_now()

        async def ask() -> T:
            return await question(agent.backlogs.get(self.dependency, self.options))

        answer = submit(agent, ask, undo)
        if answer is None:
            raise StoreUnavailable("the agent is stopped")
        return answer

    def _ask(self, question: Callable[[Backlog], Coroutine[Any, Any, T]], longer_s: float = 0.0) -> T:
        refuse_loops()
        answer = self.begin(question)
        try:
            return answer.result(LATE_S + longer_s)
        except (TimeoutError, CancelledError):
            answer.cancel()
            raise StoreUnavailable(f"the agent did not answer within {LATE_S + longer_s:g} s") from None

    def on_loop(self, what: Callable[[Backlog], None]) -> None:
        """Call ``what`` on the agent's loop."""
        agent = self._agent_now()
        if agent.running and not agent.loop.is_closed():
            backlog = agent.backlogs.get(self.dependency, self.options)
            agent.loop.call_soon_threadsafe(what, backlog)


async def _hand_back(job: Job, backlog: Backlog) -> None:
    await backlog.hand_back(job)


class WorkerThreads:
    """The threads of one ``work``."""

    def __init__(self, backlog: BlockingBacklog, handler: Handler, stopped: threading.Event) -> None:
        self._backlog = backlog
        self._handler = handler
        self._stopped = stopped
        self._guard = threading.Lock()
        self._jobs: dict[int, Job] = {}
        self._asking: set[Future[Job]] = set()
        #: Tasks that wait for a job on the agent's loop; used only there.
        self._waiting: set[asyncio.Task[Any] | None] = set()
        self.error: BaseException | None = None

    def work(self) -> None:
        """One thread."""
        try:
            while not self._stopped.is_set():
                job = self._next()
                if job is None:
                    return
                self._run(job)
        except BaseException as error:
            self.error = error
            self._stopped.set()

    def end(self, threads: list[threading.Thread], grace_s: float) -> None:
        """Wait for jobs in progress, and hand out again those that do not end."""
        with self._guard:
            asking = list(self._asking)
        for answer in asking:
            answer.cancel()
        # Before jobs are handed back: otherwise these would take them once more.
        self._backlog.on_loop(self._cancel_waiting)
        until = monotonic() + grace_s
        for thread in threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - monotonic()))
        with self._guard:
            left = list(self._jobs.values())
            self._jobs.clear()
        for job in left:
            job.lose()
        try:
            handed = [self._backlog.begin(partial(_hand_back, job)) for job in left]
        except StoreUnavailable as error:
            logger.warning("backlog.not_handed_back jobs=%d: %s", len(left), error.why)
            return
        # Together: while Redis is unavailable, each would take this time. The loop reports them later.
        wait(handed, LATE_S)

    def _next(self) -> Job | None:
        with self._guard:
            if self._stopped.is_set():
                return None
            answer = self._backlog.begin(self._wait_for_job, self._undo)
            self._asking.add(answer)
        try:
            job = answer.result()
        except CancelledError:
            return None
        finally:
            with self._guard:
                self._asking.discard(answer)
        with self._guard:
            self._jobs[job.fence] = job
        return job

    async def _wait_for_job(self, backlog: Backlog) -> Job:
        if self._stopped.is_set():
            raise asyncio.CancelledError
        task = asyncio.current_task()
        self._waiting.add(task)
        try:
            return await backlog.next_job()
        finally:
            self._waiting.discard(task)

    def _cancel_waiting(self, _: Backlog) -> None:
        for task in self._waiting:
            if task is not None:
                task.cancel()

    def _undo(self, job: Job) -> None:
        self._backlog.on_loop(lambda backlog: backlog.release(job))

    def _run(self, job: Job) -> None:
        started, value, failure = monotonic(), None, None
        try:
            value = self._handler(job)
        except Exception as error:
            failure = error
        with self._guard:
            ours = self._jobs.pop(job.fence, None) is not None
        if ours:
            self._backlog.begin(lambda backlog: backlog.finish(job, value, failure, started)).result()
