"""Prints the seconds that arq takes to enqueue jobs, and to finish them."""

import asyncio
import sys
from time import perf_counter
from typing import Any

from arq import Worker, create_pool
from arq.connections import RedisSettings


async def job(ctx: Any, number: str) -> None:
    """Nothing: the queue is measured."""


async def main(url: str, jobs: int) -> None:
    settings = RedisSettings.from_dsn(url)
    pool = await create_pool(settings)
    began = perf_counter()
    for number in range(jobs):
        await pool.enqueue_job("job", str(number))
    enqueued = perf_counter() - began
    worker = Worker(
        [job], redis_settings=settings, max_jobs=8, poll_delay=0.01, burst=True, handle_signals=False
    )
    began = perf_counter()
    await worker.main()
    finished = perf_counter() - began
    assert worker.jobs_complete == jobs
    await worker.close()
    await pool.aclose()
    sys.stdout.write(f"{enqueued} {finished}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
