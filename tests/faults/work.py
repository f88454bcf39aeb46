"""Jobs of a backlog, and locks, in a pod: what callers saw, and how long they waited for it."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fuseboard
from fuseboard.backlog import Job, JobLost
from tests.faults.effects import Effects
from tests.faults.lag import LagSampler

#: The backlog of the rows, and the pause between two effects of one owner.
DEPENDENCY = "open-road"
STEP_S = 0.05
#: What may happen to a caller, beside a refusal. Everything else is an error.
USUAL = (fuseboard.StoreUnavailable, fuseboard.LockTaken, fuseboard.LockLost)

_now = time.perf_counter


class Work:
    """Commands of a pod."""

    COMMANDS = frozenset({"begin-work", "end-work", "submit", "results", "depth", "locks", "saw"})

    def __init__(self, agent: fuseboard.Agent, lag: LagSampler) -> None:
        self._agent = agent
        self._lag = lag
        self._effects: Effects
        self._options: dict[str, Any] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._going = False
        #: "what outcome" -> how often.
        self._outcomes: Counter[str] = Counter()
        #: What -> the longest time, without the lag of this loop.
        self._longest_s: dict[str, float] = {}
        self._errors: Counter[str] = Counter()
        #: Owner -> when it noticed that it had lost its job or its lock.
        self._lost_ns: dict[str, int] = {}

    async def do(self, what: str, **arguments: Any) -> object:
        answer: object = await getattr(self, what.replace("-", "_"))(**arguments)
        return answer

    async def begin_work(self, effects: str, workers: int, **options: Any) -> None:
        """Work jobs, if ``workers`` is not 0; the other commands need the ``options`` of the backlog, too."""
        self._effects = Effects(effects)
        self._options, self._going = options, True
        if workers:
            self._begin(self._backlog.work(self._run_job, workers=workers, grace_s=1.0))

    async def end_work(self) -> None:
        """Returns when no job and no block runs any more."""
        self._going = False
        if self._options:
            self._backlog.stop()
        if self._tasks:
            await asyncio.wait(self._tasks)

    @property
    def _backlog(self) -> Any:
        return self._agent.backlog(DEPENDENCY, **self._options)

    async def _run_job(self, job: Job) -> str:
        owner = f"{self._agent.settings.server}/{job.attempt}"
        try:
            for _ in range(int(job.text)):
                at_ns = time.monotonic_ns()
                job.check()
                self._effects.write(job.id, job.fence, owner, at_ns)
                await asyncio.sleep(STEP_S)
        except JobLost:
            self._lost_ns[f"{job.id}/{job.fence}"] = time.monotonic_ns()
            raise
        return owner

    async def submit(self, jobs: dict[str, int], priority: int) -> list[str]:
        """``jobs``: id -> number of effects. Returns the outcomes in this order."""
        return await asyncio.gather(
            *(self._submit(job_id, steps, priority) for job_id, steps in jobs.items())
        )

    async def _submit(self, job_id: str, steps: int, priority: int) -> str:
        async with self._watched("submit") as outcome:
            done = await self._backlog.submit(str(steps), job_id=job_id, priority=priority)
            outcome.append("accepted" if done.new else "known")
        return outcome[0]

    async def results(self, ids: list[str]) -> dict[str, int]:
        """How many jobs have which status."""

        async def status(job_id: str) -> str:
            async with self._watched("result") as outcome:
                outcome.append((await self._backlog.result(job_id)).status)
            return outcome[0]

        return Counter(await asyncio.gather(*map(status, ids)))

    async def depth(self) -> dict[str, int]:
        found = await self._backlog.depth()
        return {name: getattr(found, name) for name in ("jobs", "dead", "submitted", "taken", "done")}

    async def locks(self, name: str, ttl_s: float, wait_s: float, hold_s: float) -> None:
        """Acquire a lock, hold it, release it, and so on."""
        self._begin(self._hold_again_and_again(name, ttl_s, wait_s, hold_s))

    async def _hold_again_and_again(self, name: str, ttl_s: float, wait_s: float, hold_s: float) -> None:
        number = 0
        while self._going:
            number += 1
            owner = f"{self._agent.settings.server}/{number}"
            lock = self._agent.lock(name, ttl_s=ttl_s, wait_s=wait_s)
            async with self._watched("acquire") as outcome:
                await lock.__aenter__()
                outcome.append("held")
            if outcome[0] != "held":
                await asyncio.sleep(STEP_S)
                continue
            try:
                await self._hold(lock, owner, hold_s)
            finally:
                async with self._watched("release"):
                    await lock.__aexit__(None, None, None)

    async def _hold(self, lock: Any, owner: str, hold_s: float) -> None:
        until = _now() + hold_s
        while self._going and _now() < until:
            at_ns = time.monotonic_ns()
            try:
                lock.check()
            except fuseboard.LockLost:
                self._lost_ns[f"{lock.name}/{lock.fence}"] = time.monotonic_ns()
                return
            self._effects.write(lock.name, lock.fence, owner, at_ns)
            await asyncio.sleep(STEP_S)

    @asynccontextmanager
    async def _watched(self, what: str) -> AsyncIterator[list[str]]:
        """Note the outcome, the time, and every error that is not usual."""
        outcome: list[str] = []
        began = _now()
        try:
            yield outcome
        except fuseboard.Refused as refused:
            outcome.append(str(refused.decision.reason))
        except USUAL as error:
            outcome.append(next(kind.__name__ for kind in USUAL if isinstance(error, kind)))
        except Exception as error:
            outcome.append("error")
            self._errors[f"{what}: {type(error).__name__}: {error}"[:200]] += 1
        ended = _now()
        took_s = ended - began - self._lag.between(began, ended)
        self._longest_s[what] = max(self._longest_s.get(what, 0.0), took_s)
        self._outcomes[f"{what} {outcome[0] if outcome else 'ok'}"] += 1

    async def saw(self) -> dict[str, object]:
        """What callers saw since the last time."""
        found: dict[str, object] = {
            "outcomes": self._outcomes,
            "longest_s": self._longest_s,
            "errors": self._errors,
            "lost_ns": self._lost_ns,
        }
        self._outcomes, self._longest_s, self._errors, self._lost_ns = Counter(), {}, Counter(), {}
        return found

    def _begin(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._errors[f"it ended with {type(error).__name__}: {error}"[:200]] += 1
