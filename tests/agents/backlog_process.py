"""A process that runs jobs of a backlog until it is ended: ``python -m tests.agents.backlog_process URL``.

It appends ``id attempt fence priority pid`` to the list ``ran`` as a job begins, which is its effect.
"""

import asyncio
import os
import signal
import sys

import redis.asyncio

from fuseboard import Agent, AgentSettings
from fuseboard.backlog import Job
from fuseboard.backlog.options import OptionArguments

#: A dead worker's jobs return quickly, and priority is strict.
OPTIONS: OptionArguments = {"lease_s": 1.0, "age_s": 3600.0, "max_tries": 20}


async def main(url: str) -> None:
    agent = Agent(settings=AgentSettings(redis_url=url, server=f"worker-{os.getpid()}"))
    async with agent, redis.asyncio.Redis.from_url(url) as client:
        backlog = agent.backlog("payments", **OPTIONS)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, backlog.stop)

        async def run(job: Job) -> str:
            await client.rpush("ran", f"{job.id} {job.attempt} {job.fence} {job.priority} {os.getpid()}")
            await asyncio.sleep(0.005)  # work, in which the test kills this process
            return f"by {os.getpid()}"

        sys.stdout.write("ready\n")
        sys.stdout.flush()
        await backlog.work(run, workers=8, grace_s=5.0)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
