"""Arq jobs that start only while their dependency admits them.

::

    agent = fuseboard.from_env()

    @guarded(agent, "payments-api", tenant=lambda ctx, order: order["tenant"])
    async def charge(ctx, order): ...

    class WorkerSettings:
        functions = [charge]
        on_startup, on_shutdown = hooks(agent)

A refused job is deferred until the refusal ends; its own tries are not spent. A job that is refused 20 times
in a row, or for an hour, fails as ``fuseboard.Refused``. How a job ends is reported to the breaker of its
dependency. Arq has no priorities: use two queues. See docs/engines.md.
"""

from collections.abc import Awaitable, Callable
from functools import wraps
from time import monotonic, time
from typing import Any

from arq import Retry
from arq.constants import retry_key_prefix

from fuseboard.agent import Agent
from fuseboard.agent_api.arguments import check_name, check_tier
from fuseboard.agent_api.options import Given
from fuseboard.errors import Refused
from fuseboard.integrations.task_admission import (
    MAX_REFUSED_S,
    Refusals,
    call_options,
    pause_s,
    report_end,
)

#: The key of a refused job in the Redis of arq: HASH times, since.
KEY = "fuseboard:refused:"

Context = dict[Any, Any]
Job = Callable[..., Awaitable[Any]]
Hook = Callable[[Context], Awaitable[None]]


def guarded(
    agent: Agent,
    dependency: str,
    *,
    tenant: Given[str] = "",
    cost: Given[int] = 1,
    tier: Given[str | None] = None,
) -> Callable[[Job], Job]:
    """Decorator of a job. The options are values, or functions of its context and arguments."""
    check_name("a dependency", dependency)
    if not callable(tier):
        check_tier(tier)
    options = {"tenant": tenant, "cost": cost, "tier": tier}

    def decorate(job: Job) -> Job:
        @wraps(job)
        async def run(ctx: Context, *args: Any, **kwargs: Any) -> Any:
            try:
                permit = await agent.admit_call(dependency, **call_options(options, (ctx, *args), kwargs))
            except Refused as refused:
                raise await _later(ctx, refused) from None
            try:
                # Refusals in a row: another try, or another job with this id, begins with none.
                await ctx["redis"].delete(KEY + ctx["job_id"])
            except BaseException:
                agent.give_back(permit)
                raise
            began = monotonic()
            try:
                result = await job(ctx, *args, **kwargs)
            except BaseException as error:
                report_end(agent.report, permit, error, monotonic() - began, again=Retry)
                raise
            report_end(agent.report, permit, None, monotonic() - began, again=Retry)
            return result

        return run

    return decorate


def hooks(agent: Agent) -> tuple[Hook, Hook]:
    """``on_startup`` and ``on_shutdown`` of a worker: the agent belongs to its event loop."""

    async def start(_: Context) -> None:
        await agent.start()

    async def stop(_: Context) -> None:
        await agent.stop()

    return start, stop


async def _later(ctx: Context, refused: Refused) -> Exception:
    """The error that ends this try of the job: arq repeats it later, unless it was refused too often."""
    redis, job, key = ctx["redis"], ctx["job_id"], KEY + ctx["job_id"]
    async with redis.pipeline(transaction=True) as pipe:
        pipe.hincrby(key, "times", 1)
        pipe.hsetnx(key, "since", time())
        pipe.hget(key, "since")
        pipe.expire(key, int(2 * MAX_REFUSED_S))
        # Arq counted the try before it ran.
        pipe.decr(retry_key_prefix + job)
        times, _, since, *_ = await pipe.execute()
    if Refusals(times, float(since)).too_many:
        await redis.delete(key)
        return refused
    later: Exception = Retry(defer=pause_s(refused.decision))
    return later
