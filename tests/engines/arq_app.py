"""Jobs of a service that uses arq. As a program: enqueue them, or print how ``never`` ended."""

import asyncio
import sys
from typing import Any

from arq import Retry, create_pool
from arq.connections import RedisSettings
from arq.jobs import Job
from arq.worker import func

import fuseboard
from fuseboard.integrations.arq import guarded, hooks
from tests.engines.work import BROKER, KILLED, kill_once, record

agent = fuseboard.from_env()


@guarded(agent, "limited", tenant=lambda ctx, order: "acme", cost=lambda ctx, order: 1)
async def limited(ctx: Any, order: int) -> None:
    record("limited", order, ctx["job_try"] - 1)


@guarded(agent, "steady")
async def flaky(ctx: Any) -> None:
    if record("flaky", ctx["job_try"] - 1) == 1:
        try:
            raise ConnectionError
        except ConnectionError as error:
            raise Retry(defer=0.01) from error


@guarded(agent, "failing")
async def failing(ctx: Any) -> None:
    raise ConnectionError


@guarded(agent, "never")
async def never(ctx: Any) -> None:
    record("never")


@guarded(agent, "gate")
async def gated(ctx: Any, order: int) -> None:
    record("gated", order, ctx["job_try"] - 1)


async def on_job_end(_: Any) -> None:
    """Before arq writes that the job waits, and that it is not in progress any more."""
    if KILLED == "worker":
        kill_once()


class EndsAfterTransaction:
    """The Redis of a job. The worker ends after the first transaction."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis

    def __getattr__(self, name: str) -> Any:
        return getattr(self._redis, name)

    def pipeline(self, **options: Any) -> Any:
        pipe = self._redis.pipeline(**options)
        execute = pipe.execute

        async def execute_and_end() -> Any:
            answers = await execute()
            kill_once()
            return answers

        pipe.execute = execute_and_end
        return pipe


async def gated_and_killed(ctx: Any, order: int) -> None:
    await gated(ctx | {"redis": EndsAfterTransaction(ctx["redis"])}, order)


class WorkerSettings:
    functions = (limited, flaky, failing, never, gated)
    if KILLED == "transaction":
        functions = (func(gated_and_killed, name="gated"),)
    if KILLED:
        # Another worker takes the job of a dead one 10 s after the longest time of a job.
        job_timeout = 3
        on_job_end = on_job_end
    on_startup, on_shutdown = hooks(agent)
    redis_settings = RedisSettings.from_dsn(BROKER)
    max_tries = 2
    poll_delay = 0.05


async def main(*, ended: bool, gated_only: bool) -> None:
    pool = await create_pool(WorkerSettings.redis_settings)
    if ended:
        info = await Job("never", pool).result_info()
        sys.stdout.write(type(info.result).__name__ if info is not None else "")
    elif gated_only:
        await pool.enqueue_job("gated", 7)
    else:
        for number in range(4):
            await pool.enqueue_job("limited", number)
        await pool.enqueue_job("flaky")
        await pool.enqueue_job("never", _job_id="never")
        for _ in range(4):
            await pool.enqueue_job("failing")
    await pool.aclose()


if __name__ == "__main__":
    asyncio.run(main(ended="--ended" in sys.argv, gated_only="--gated" in sys.argv))
