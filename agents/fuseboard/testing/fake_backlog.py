"""Backlogs of a fake agent: in memory, by the clock of a test. How a job ends is decided by the real code."""

import asyncio
from abc import abstractmethod
from collections.abc import Mapping
from time import monotonic
from typing import Any, NoReturn, Unpack, cast

from msgspec import Struct

from fuseboard.agent_api.arguments import check_name, check_seconds
from fuseboard.agent_api.options import list_options
from fuseboard.backlog.jobs import Depth, Job, Result, Submitted
from fuseboard.backlog.options import (
    JOB_DEFAULTS,
    LONGEST_DELAY_S,
    JobArguments,
    NewJob,
    OptionArguments,
    Options,
    check_id,
)
from fuseboard.backlog.queue import MAX_WAIT_S
from fuseboard.backlog.renewal import Renewal
from fuseboard.backlog.scripts import DEAD, DONE, NOT_OURS, RELEASE, RETRY, BacklogScripts
from fuseboard.backlog.workers import Handler, Value, Workers
from fuseboard.contract.words import Reason
from fuseboard.decision import Permit
from fuseboard.errors import Misconfigured
from fuseboard.testing.scripted_results import ScriptedRefusal
from fuseboard.testing.time import ManualClock

#: How long a worker of the fake that finds no job lets other tasks run.
_LOOK_S = 0.001


class Waiting(Struct):
    """One job of a fake backlog. Times are those of the clock in us."""

    id: str
    payload: bytes
    tenant: str
    priority: int
    costs: Mapping[str, int]
    score: int
    number: int
    submitted: int
    deadline: int
    max_tries: int
    #: ``ready``, ``delayed``, ``leased`` or ``dead``.
    state: str = "ready"
    due: int = 0
    tries: int = 0
    fence: int = 0
    cause: str = ""
    cancelled: bool = False


class FakeBacklog:
    """A backlog with the order, delays, deadlines, tries, dead letters and results of the real one.

    A refusal of the dependency holds jobs back until ``admit``. Tenants do not pay, the order of ``fair``
    is not simulated, and a lease ends only when a test ends it.
    """

    def __init__(self, agent: "FakeBacklogs", dependency: str, options: Options) -> None:
        self.dependency = dependency
        self.options = options
        #: Every accepted job, in the order of their submits.
        self.submitted: list[Waiting] = []
        self._agent = agent
        self._jobs: dict[str, Waiting] = {}
        self._results: dict[str, Result] = {}
        self._running: dict[str, Job] = {}
        self._refusal: ScriptedRefusal | None = None
        self._sequence = self._fence = 0
        self._totals = dict.fromkeys(
            ("submitted", "taken", "done", "requeued", "died", "cancelled", "expired", "refused"), 0
        )
        #: A lease of the fake needs none: real workers only remove their jobs from it.
        self.renewal = cast(Renewal, self)
        self._workers = Workers(self, cast(Any, agent))

    # Methods that script the fake

    def refuse(
        self, reason: Reason = Reason.BACKLOG_FULL, *, retry_after_s: float = 1.0, times: int | None = None
    ) -> None:
        """Refuse submits, always or so often: ``BACKLOG_FULL``, ``QUOTA``, ``STORE_UNAVAILABLE``."""
        self._refusal = ScriptedRefusal(reason, retry_after_s, times)

    def accept(self) -> None:
        """Accept submits again."""
        self._refusal = None

    def lose(self, job_id: str) -> None:
        """The lease of a running job ends: another worker may have it."""
        kept = self._jobs.get(job_id)
        if kept is None or kept.state != "leased":
            raise Misconfigured(f"no worker has the job {job_id!r}")
        self._end_lease(kept)
        if (job := self._running.pop(job_id, None)) is not None:
            job.lose()

    async def run_jobs(self, handler: Handler, *, most: int = 1000) -> int:
        """Run the jobs that are due, one after the other in their order, and return how many ran.

        A job that fails is delayed: move the clock of the agent, and call this again.
        """
        ran = 0
        while ran < most and (job := self._take()) is not None:
            started = monotonic()
            value: Value = None
            error: Exception | None = None
            try:
                value = await handler(job)
            except Exception as raised:
                error = raised
            except BaseException:
                await self.hand_back(job)
                raise
            await self.finish(job, value, error, started)
            ran += 1
        return ran

    # Methods that a test reads

    def ids(self, state: str) -> list[str]:
        """The jobs that are ``ready``, ``delayed``, ``leased`` or ``dead``, in their order."""
        self._pass_time()
        return [job.id for job in self._ordered(state)]

    # Clients

    @list_options(**JOB_DEFAULTS)
    async def submit(self, payload: bytes | str, **job: Unpack[JobArguments]) -> Submitted:
        options = self.options
        new = NewJob.read(options, payload, job)
        job_id, tenant = new.job_id, new.tenant
        self._refuse_as_scripted(tenant)
        jobs, size = self._depth(), sum(len(job.payload) for job in self._jobs.values())
        if job_id in self._jobs or job_id in self._results:
            return Submitted(job_id, False, jobs)
        if jobs >= options.max_jobs or size + len(new.body) > options.max_bytes:
            self._totals["refused"] += 1
            self._agent.refuse_job(self.dependency, tenant, ScriptedRefusal(Reason.BACKLOG_FULL, 1.0, None))
        now = self._now()
        self._sequence = max(self._sequence + 1, now)
        kept = Waiting(
            id=job_id,
            payload=new.body,
            tenant=tenant,
            priority=new.priority,
            costs={"calls": new.cost, **(new.costs or {})},
            score=self._sequence - new.priority * int(options.age_s * 1e6),
            number=len(self.submitted),
            submitted=now,
            deadline=now + new.deadline_us if new.deadline_s is not None else 0,
            max_tries=new.tries,
        )
        if new.delay_s > 0:
            kept.state, kept.due = "delayed", now + new.delay_us
        self._jobs[job_id] = kept
        self.submitted.append(kept)
        self._totals["submitted"] += 1
        return Submitted(job_id, True, jobs + 1)

    async def cancel(self, job_id: str) -> bool:
        job = self._jobs.get(check_id(job_id))
        if job is None:
            return False
        if job.state != "leased":
            self._finish(job, Result("cancelled"), "cancelled")
            return True
        job.cancelled = True
        if (running := self._running.get(job_id)) is not None:
            running.lose(cancelled=True)
        return True

    async def revive(self, job_id: str) -> bool:
        job = self._jobs.get(check_id(job_id))
        if job is None or job.state != "dead":
            return False
        job.tries, job.cause = 0, ""
        if job.deadline <= self._now():
            job.deadline = 0
        self._put_back(job, 0)
        return True

    async def result(self, job_id: str, *, wait_s: float = 0.0) -> Result:
        """Does not wait: only the test could finish the job meanwhile."""
        check_id(job_id)
        check_seconds("wait_s", wait_s, 0.0, MAX_WAIT_S)
        self._pass_time()
        if (job := self._jobs.get(job_id)) is not None:
            return Result(job.state, cause=job.cause if job.state == "dead" else "")
        return self._results.get(job_id, Result("unknown"))

    async def depth(self) -> Depth:
        self._pass_time()
        ready = self._ordered("ready")
        return Depth(
            ready=len(ready),
            delayed=len(self._ordered("delayed")),
            leased=len(self._ordered("leased")),
            dead=len(self._ordered("dead")),
            bytes=sum(len(job.payload) for job in self._jobs.values()),
            results=len(self._results),
            waiting_s=(self._now() - ready[0].submitted) / 1e6 if ready else 0.0,
            asked_s=None,
            memory_percent=0,
            **self._totals,
        )

    # Workers

    async def work(self, handler: Handler, *, workers: int = 8, grace_s: float = 10.0) -> None:
        await self._workers.run(handler, workers=workers, grace_s=grace_s)

    def stop(self) -> None:
        self._workers.stop()

    async def next_job(self) -> Job:
        while (job := self._take()) is None:  # noqa: ASYNC110 - a clock moves without an event
            await asyncio.sleep(_LOOK_S)
        return job

    async def finish(self, job: Job, value: Value, error: BaseException | None, started: float) -> None:
        await self._workers.finish(job, value, error, started)

    def release(self, job: Job) -> None:
        self._workers.release(job)

    async def hand_back(self, job: Job) -> None:
        await self._workers.hand_back(job)

    # Methods that the real workers call

    @property
    def scripts(self) -> BacklogScripts:
        """This backlog answers them itself."""
        return cast(BacklogScripts, self)

    def remove(self, job: Job) -> None:
        self._running.pop(job.id, None)

    def hint(self) -> None:
        """Workers of the fake look anyway."""

    async def end(
        self, job_id: str, fence: int, how: int, *, delay_s: float, result: bytes, cause: str
    ) -> int:
        """End a job like ``lua/backlog_end.lua``."""
        job = self._jobs.get(job_id)
        if job is None or job.state != "leased" or job.fence != fence:
            return NOT_OURS
        if how == DONE:
            self._finish(job, Result("done", result), "done")
            return DONE
        if job.cancelled:
            self._finish(job, Result("cancelled"), "cancelled")
            return RELEASE
        if how == RELEASE:
            job.tries -= 1
            self._put_back(job, 0)
        elif how == RETRY and job.tries < job.max_tries:
            self._put_back(job, int(delay_s * 1e6))
        else:
            self._bury(job, cause)
            return DEAD
        return RETRY

    # How jobs move

    def _take(self) -> Job | None:
        """The job that comes next, if it may be sent now."""
        self._pass_time()
        while (ready := self._ordered("ready")) and not self._agent.holds_jobs(self.dependency):
            job, now = ready[0], self._now()
            if job.deadline and job.deadline <= now:
                self._finish(job, Result("expired"), "expired")
                continue
            self._fence = max(self._fence + 1, now)
            job.state, job.tries, job.fence = "leased", job.tries + 1, self._fence
            self._totals["taken"] += 1
            permit = self._agent.admit_job(self.dependency, job.tenant)
            self._running[job.id] = running = Job(
                id=job.id,
                dependency=self.dependency,
                payload=job.payload,
                attempt=job.tries,
                fence=job.fence,
                priority=job.priority,
                waited_s=(now - job.submitted) / 1e6,
                # By the real clock, as the agent's: a test does not lose a lease by being slow.
                lease_until=monotonic() + LONGEST_DELAY_S,
                permit=permit,
            )
            return running
        return None

    def _end_lease(self, job: Waiting) -> None:
        if job.cancelled:
            self._finish(job, Result("cancelled"), "cancelled")
        elif job.tries >= job.max_tries:
            self._bury(job, "its worker ended")
        else:
            self._put_back(job, 0)

    def _put_back(self, job: Waiting, delay_us: int) -> None:
        job.state, job.due = ("delayed", self._now() + delay_us) if delay_us > 0 else ("ready", 0)
        job.fence = 0
        self._totals["requeued"] += 1

    def _bury(self, job: Waiting, cause: str) -> None:
        job.state, job.due, job.cause, job.fence = "dead", self._now(), cause, 0
        self._totals["died"] += 1

    def _finish(self, job: Waiting, result: Result, total: str) -> None:
        del self._jobs[job.id]
        self._results[job.id] = result
        self._totals[total] += 1

    def _pass_time(self) -> None:
        for job in self._ordered("delayed"):
            if job.due <= self._now():
                job.state, job.due = "ready", 0

    def _ordered(self, state: str) -> list[Waiting]:
        found = [job for job in self._jobs.values() if job.state == state]
        return sorted(found, key=lambda job: (job.score if state == "ready" else job.due, job.id))

    def _depth(self) -> int:
        return sum(job.state != "dead" for job in self._jobs.values())

    def _now(self) -> int:
        return int(self._agent.clock() * 1e6)

    def _refuse_as_scripted(self, tenant: str) -> None:
        refusal = self._refusal
        if refusal is None:
            return
        if refusal.times is not None:
            refusal.times -= 1
            if refusal.times <= 0:
                self._refusal = None
        if refusal.reason is Reason.BACKLOG_FULL:
            self._totals["refused"] += 1
        self._agent.refuse_job(self.dependency, tenant, refusal)


class FakeBacklogs:
    """The backlogs of a fake agent: one for each dependency."""

    clock: ManualClock

    def __init__(self) -> None:
        self._backlogs: dict[str, FakeBacklog] = {}

    def backlog(self, dependency: str, **options: Unpack[OptionArguments]) -> FakeBacklog:
        check_name("a dependency", dependency)
        wanted = Options.read(options)
        known = self._backlogs.setdefault(dependency, FakeBacklog(self, dependency, wanted))
        known.options.refuse_others(dependency, wanted)
        return known

    @abstractmethod
    def holds_jobs(self, dependency: str) -> bool:
        """Calls to the dependency are refused, so no job of it is handed out."""

    @abstractmethod
    def admit_job(self, dependency: str, tenant: str) -> Permit: ...

    @abstractmethod
    def refuse_job(self, dependency: str, tenant: str, refusal: ScriptedRefusal) -> NoReturn: ...
