"""Prints the seconds that the backlog takes to enqueue jobs, and to finish them."""

import asyncio
import sys
from time import perf_counter

from fuseboard import Agent, AgentSettings
from fuseboard.backlog import Job


async def main(url: str, jobs: int) -> None:
    async with Agent(settings=AgentSettings(redis_url=url, server="bench")) as agent:
        backlog, done, left = agent.backlog("bench"), asyncio.Event(), jobs
        began = perf_counter()
        for number in range(jobs):
            await backlog.submit(str(number))
        enqueued = perf_counter() - began

        async def run(job: Job) -> None:
            nonlocal left
            left -= 1
            if not left:
                done.set()

        began = perf_counter()
        working = asyncio.create_task(backlog.work(run, workers=8))
        await done.wait()
        finished = perf_counter() - began
        backlog.stop()
        await working
    sys.stdout.write(f"{enqueued} {finished}\n")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2])))
