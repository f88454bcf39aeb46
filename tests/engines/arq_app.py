"""Jobs of a service that uses arq. As a program: enqueue them, or print how ``never`` ended."""

import asyncio
import sys
from typing import Any

from arq import Retry, create_pool
from arq.connections import RedisSettings
from arq.jobs import Job

import fuseboard
from fuseboard.integrations.arq import guarded, hooks
from tests.engines.work import BROKER, record

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


class WorkerSettings:
    functions = (limited, flaky, failing, never)
    on_startup, on_shutdown = hooks(agent)
    redis_settings = RedisSettings.from_dsn(BROKER)
    max_tries = 2
    poll_delay = 0.05


async def main(ended: bool) -> None:
    pool = await create_pool(WorkerSettings.redis_settings)
    if ended:
        info = await Job("never", pool).result_info()
        sys.stdout.write(type(info.result).__name__ if info is not None else "")
    else:
        for number in range(4):
            await pool.enqueue_job("limited", number)
        await pool.enqueue_job("flaky")
        await pool.enqueue_job("never", _job_id="never")
        for _ in range(4):
            await pool.enqueue_job("failing")
    await pool.aclose()


if __name__ == "__main__":
    asyncio.run(main(ended="--ended" in sys.argv))
