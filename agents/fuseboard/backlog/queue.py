"""The backlog of one dependency, for an agent on an event loop."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Unpack

import msgspec

from fuseboard.admission.admission import Admission
from fuseboard.agent_api.arguments import check_seconds
from fuseboard.agent_api.options import list_options
from fuseboard.backlog.envelopes import Envelopes
from fuseboard.backlog.host import JobAgent
from fuseboard.backlog.jobs import Depth, Job, Result, Submitted
from fuseboard.backlog.options import JOB_DEFAULTS, JobArguments, NewJob, Options, check_id
from fuseboard.backlog.pump import STOP_S, Pump
from fuseboard.backlog.renewal import DRIFT, Renewal
from fuseboard.backlog.scripts import CANCEL, REVIVE, BacklogScripts, Granted
from fuseboard.backlog.submission import Submitter
from fuseboard.backlog.workers import NOT_SEALED, Handler, Value, Workers
from fuseboard.primitives.store_thread import StoreThread
from fuseboard.reporting.seals import Seals

#: Wait this long to collect ids, then ask for all their states at once.
GATHER_S = 0.005
#: Pauses between two looks for a result: the first, doubling up to the last.
PAUSES_S = (0.02, 0.25)
MAX_WAIT_S = 3600.0
#: The pause of a worker that waits for the first key of a sealed backlog.
KEY_S = 0.25
#: The most ids in one question.
MAX_IDS = 500


class Backlog:
    """Belongs to the event loop of the agent. ``agent.backlog`` makes it."""

    def __init__(
        self,
        agent: JobAgent,
        thread: StoreThread,
        admission: Callable[[], Admission],
        seals: Callable[[], Seals],
        dependency: str,
        options: Options,
    ) -> None:
        self.dependency = dependency
        self.options = options
        self._agent = agent
        self._thread = thread
        #: Raises ``Misconfigured`` unless the agent is started and this is its loop.
        self._admission = admission
        self._seals = seals
        self._workers = Workers(self, agent)
        self._asked: dict[str, asyncio.Future[Result]] = {}
        self._bound: Admission | None = None
        self._scripts: BacklogScripts
        self._submitting: Submitter
        self._pump: Pump
        self.renewal: Renewal

    # Clients

    @list_options(**JOB_DEFAULTS)
    async def submit(self, payload: bytes | str, **job: Unpack[JobArguments]) -> Submitted:
        """Queue a job. With a ``job_id``, submitting again changes nothing and is safe after every error.

        This call spends the quotas of ``tenant``, on requests and on the dependency. The job spends the
        dependency's limits when it is handed out. ``priority`` is 1 to 10, higher first. ``deadline_s``: a
        job that was not handed out within this time expires. Raises ``Refused`` (``backlog_full``,
        ``store_unavailable``, or a quota) and ``Misconfigured``.
        """
        new = NewJob.read(self.options, payload, job)
        self._bind()
        return await self._submitting.submit(new)

    async def cancel(self, job_id: str) -> bool:
        """Cancel a job; ``False`` when it is unknown or has ended.

        A job that runs learns it at the next renewal of its lease, and ends. Raises ``StoreUnavailable``.
        """
        self._bind()
        return await self._scripts.change(check_id(job_id), CANCEL) != 0

    async def revive(self, job_id: str) -> bool:
        """Hand out a dead job again. Its tries start again, and a deadline in the past is dropped.

        ``False`` when it is not dead.
        """
        self._bind()
        return await self._scripts.change(check_id(job_id), REVIVE) != 0

    async def result(self, job_id: str, *, wait_s: float = 0.0) -> Result:
        """Wait until the job is finished, at most ``wait_s``. Return its state.

        Raises ``StoreUnavailable``.
        """
        check_id(job_id)
        check_seconds("wait_s", wait_s, 0.0, MAX_WAIT_S)
        until, pause_s = monotonic() + wait_s, PAUSES_S[0]
        while True:
            result = await self._state(job_id)
            left_s = until - monotonic()
            if result.finished or left_s <= 0:
                return result
            await asyncio.sleep(min(left_s, pause_s))
            pause_s = min(2 * pause_s, PAUSES_S[1])

    async def depth(self) -> Depth:
        """The content of the backlog now. Raises ``StoreUnavailable``."""
        self._bind()
        figures, _ = await self._scripts.look()
        return msgspec.convert(figures, Depth, from_attributes=True)

    # Workers

    async def work(self, handler: Handler, *, workers: int = 8, grace_s: float = 10.0) -> None:
        """Run jobs with ``handler``, ``workers`` at a time, until ``stop`` or a cancellation.

        The handler returns the result. It raises ``TryAgain`` or ``Undeliverable`` to choose what happens
        next; after any other error the job is tried again later. At the end, jobs get ``grace_s`` to
        finish. Those that do not are cancelled and handed out again, without spending a try.
        """
        await self._workers.run(handler, workers=workers, grace_s=grace_s)

    def stop(self) -> None:
        """End every ``work``. Safe in a signal handler of the loop."""
        self._workers.stop()

    async def next_job(self) -> Job:
        """Wait for a job that may be sent now, for a worker that calls ``finish`` itself."""
        self._bind()
        while True:
            while not self._scripts.envelopes.ready:
                await asyncio.sleep(KEY_S)
                self._bind()
            job = self._job(await self._pump.next())
            if not job.ours:
                # The answer was late. Redis hands the job out again.
                self._workers.return_call_only(job)
                continue
            self.renewal.add(job)
            payload = self._scripts.envelopes.open("payload", job.id, job.payload)
            if payload is not None:
                job.payload = payload
                return job
            self._workers.return_unopened(job)

    def _job(self, granted: Granted) -> Job:
        row, permit = granted.row, granted.permit
        permit.settler = self._agent.settle
        permit.timeout_s = self._agent.timeout_s(self.dependency)
        handed_out_us = row.lease_end - int(self.options.lease_s * 1e6)
        return Job(
            id=row.job_id,
            dependency=self.dependency,
            payload=granted.payload,
            attempt=row.tries,
            fence=row.fence,
            priority=row.priority,
            waited_s=max(0, handed_out_us - row.submitted) / 1e6,
            lease_until=granted.until - self.options.lease_s * DRIFT,
            permit=permit,
        )

    async def finish(self, job: Job, value: Value, error: BaseException | None, started: float) -> None:
        """The job of ``next_job`` returned ``value`` or raised ``error``. ``started``: monotonic seconds."""
        await self._workers.finish(job, value, error, started)

    def release(self, job: Job) -> None:
        """The job of ``next_job`` was not begun: hand it out again, without spending a try."""
        self._workers.release(job)

    async def hand_back(self, job: Job) -> None:
        """The job was begun, and its worker cannot finish it: hand it out again."""
        await self._workers.hand_back(job)

    def _release_unused(self, granted: Granted) -> None:
        """Return a granted job that no worker waits for."""
        self._workers.release(self._job(granted))

    # Methods that the agent calls

    @property
    def scripts(self) -> BacklogScripts:
        self._bind()
        return self._scripts

    def hint(self) -> None:
        """Wake the pump: a pod submitted a job, or a slot is free."""
        if self._bound is not None:
            self._pump.hint()

    async def stop_taking(self) -> None:
        """Workers get no further job."""
        if self._bound is not None:
            await self._pump.stop()

    async def close(self) -> None:
        """The agent stops."""
        self.stop()
        await self.stop_taking()
        await self._workers.flush(STOP_S)
        self._bound = None

    def _bind(self) -> None:
        """Rebuild the parts if the agent was restarted."""
        admission = self._admission()
        if self._bound is admission:
            return
        self._bound, inside = admission, admission.inspect()
        # Questions of a loop that has ended are never answered.
        self._asked = {}
        self._scripts = BacklogScripts(
            inside.calls, admission.store, self.dependency, self.options, self._seals
        )
        self._submitting = Submitter(admission, inside, self._scripts)
        self._pump = Pump(self._scripts, self._release_unused)
        self.renewal = Renewal(
            self._thread,
            keys=tuple(key.decode() for key in self._scripts.keys),
            slots=self._scripts.slots,
            lease_s=self.options.lease_s,
            max_run_s=self.options.max_run_s,
        )

    # The states of jobs, many in one question

    async def _state(self, job_id: str) -> Result:
        self._bind()
        asked = self._asked.get(job_id)
        if asked is None:
            asked = self._asked[job_id] = asyncio.get_running_loop().create_future()
            if len(self._asked) == 1:
                asyncio.get_running_loop().call_later(GATHER_S, self._look_soon)
        return await asyncio.shield(asked)

    def _look_soon(self) -> None:
        asked, self._asked = self._asked, {}
        every = list(asked.items())
        for first in range(0, len(every), MAX_IDS):
            looking = asyncio.ensure_future(self._look(dict(every[first : first + MAX_IDS])))
            self._workers.keep(looking)

    async def _look(self, asked: dict[str, "asyncio.Future[Result]"]) -> None:
        try:
            _, states = await self._scripts.look(*asked)
        except Exception as error:
            for future in asked.values():
                future.set_exception(error)
                future.exception()  # mark it as read: the caller may have gone
            return
        for (job_id, future), state in zip(asked.items(), states, strict=True):
            future.set_result(_result(state, job_id, self._scripts.envelopes))


def _result(state: bytes, job_id: str, envelopes: Envelopes) -> Result:
    """Parse a state of ``backlog_look.lua``: ``dead <cause>``, ``done <us> <value>``, or another word."""
    word, _, rest = state.partition(b" ")
    status = word.decode(errors="replace") or "unknown"
    if status == "dead":
        return Result(status, cause=rest.decode(errors="replace"))
    kept = rest.partition(b" ")[2]
    if status != "done":
        return Result(status, b"" if envelopes.used else kept)
    value = envelopes.open("result", job_id, kept)
    return Result(status, cause=NOT_SEALED) if value is None else Result(status, value)
