"""A backlog over three processes that are killed at random, and a breaker that opens midway."""

import asyncio
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import pytest
import redis

from fuseboard import Agent, AgentSettings, StoreUnavailable
from fuseboard.backlog.jobs import Depth
from fuseboard.backlog.queue import Backlog
from fuseboard.contract import keys
from fuseboard.contract.policy import Dependency, Limit
from fuseboard.contract.words import Algorithm
from tests.agents.backlog_process import OPTIONS
from tests.agents.published import publish
from tests.agents.servers import PATIENT, POLICY
from tests.waiting import eventually

STATS = keys.backlog("production", "payments", "stats")
ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def workers(url: str, count: int) -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that are ready. Those still there at the end are killed."""
    processes = [start(url) for _ in range(count)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


def start(url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.agents.backlog_process", url]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.fixture
async def agent(limits: redis.Redis, redis_url: str) -> AsyncIterator[Agent]:
    # The vendor's limit stretches the run, so that kills come in between.
    limit = Limit(name="calls", limit=500, window_ms=1000, algorithm=Algorithm.SLIDING_WINDOW)
    policy = msgspec.structs.replace(
        POLICY, dependencies=(Dependency(name="payments", vendor_limits=(limit,)),), tuning=PATIENT
    )
    publish(limits, policy, revision=1)
    async with Agent(settings=AgentSettings(redis_url=redis_url, server="client")) as agent:
        yield agent


async def submit(agent: Agent, jobs: int) -> None:
    backlog = agent.backlog("payments", **OPTIONS)
    order = random.sample(range(jobs), jobs)
    for first in range(0, jobs, 500):
        await asyncio.gather(
            *(
                backlog.submit(f"job {n}", job_id=f"j{n}", priority=1 + n % 10)
                for n in order[first : first + 500]
            )
        )


async def depth_of(backlog: Backlog) -> Depth:
    """Ask again when Redis is too busy to answer in time."""
    while True:
        with suppress(StoreUnavailable):
            return await backlog.depth()


async def none_is_lost(
    agent: Agent, limits: redis.Redis, url: str, jobs: int, kill_every_s: tuple[float, float]
) -> int:
    """Run ``jobs`` jobs while workers are killed. Returns the number of jobs that ran more than once."""
    backlog = agent.backlog("payments", **OPTIONS)
    await submit(agent, jobs)
    killed: set[int] = set()
    with workers(url, 3) as processes:
        next_kill, until = time.monotonic() + kill_every_s[0], time.monotonic() + 300
        while (await depth_of(backlog)).jobs:
            assert time.monotonic() < until
            await asyncio.sleep(0.02)
            if time.monotonic() >= next_kill:
                victim = random.randrange(3)
                processes[victim].send_signal(signal.SIGKILL)
                processes[victim].wait()
                killed.add(processes[victim].pid)
                replaced = processes[victim]
                processes[victim] = start(url)
                if replaced.stdout is not None:
                    replaced.stdout.close()
                next_kill = time.monotonic() + random.uniform(*kill_every_s)
        depth = await depth_of(backlog)
        for process in processes:
            process.terminate()
        # One that was started a moment ago does not listen for the signal yet.
        assert {process.wait(60) for process in processes} <= {0, -signal.SIGTERM}

    assert killed
    assert (depth.done, depth.dead, depth.submitted) == (jobs, 0, jobs)
    runs = defaultdict(list)
    handed_out = []
    for line in limits.lrange("ran", 0, -1):
        name, attempt, fence, priority, pid = line.decode().split()
        runs[name].append((int(attempt), int(pid)))
        if attempt == "1":
            handed_out.append((int(fence), int(priority)))
    assert set(runs) == {f"j{n}" for n in range(jobs)}
    repeated = {name: sorted(run) for name, run in runs.items() if len(run) > 1}
    for run in repeated.values():
        assert {pid for _, pid in run[:-1]} <= killed
    # In the order of handing out, no job comes before one with a higher priority.
    priorities = [priority for _, priority in sorted(handed_out)]
    assert priorities == sorted(priorities, reverse=True)
    assert len(repeated) <= 8 * len(killed)
    return len(repeated)


async def test_no_job_is_lost_and_only_those_of_killed_workers_run_twice(
    agent: Agent, limits: redis.Redis, redis_url: str
):
    await none_is_lost(agent, limits, redis_url, 1_000, (0.3, 0.6))


@pytest.mark.slow
async def test_ten_thousand_jobs_survive_killed_workers(
    agent: Agent, limits: redis.Redis, redis_url: str, capsys: pytest.CaptureFixture[str]
):
    repeated = await none_is_lost(agent, limits, redis_url, 10_000, (0.2, 1.5))
    with capsys.disabled():
        sys.stdout.write(f"\n10,000 jobs, 0 lost, {repeated} ran more than once\n")


async def test_no_worker_has_a_job_while_the_breaker_is_open(
    agent: Agent, limits: redis.Redis, redis_url: str
):
    backlog = agent.backlog("payments", **OPTIONS)
    await submit(agent, 1_000)
    with workers(redis_url, 3):
        await eventually(lambda: limits.llen("ran") > 100)
        seconds, us = limits.time()
        limits.set(keys.override("production", "payments"), f"forced_open {(seconds + 60) * 10**6 + us} 1")

        async def resting() -> int:
            depth = await depth_of(backlog)
            return 0 if depth.leased else depth.taken

        taken = await eventually(resting)
        waiting = (await backlog.depth()).ready
        assert waiting > 300
        # The workers ask on, and get nothing.
        for _ in range(3):
            asked = limits.hget(STATS, "asked")
            await eventually(lambda asked=asked: limits.hget(STATS, "asked") != asked)
        depth = await depth_of(backlog)
        assert (depth.taken, depth.leased, depth.ready) == (taken, 0, waiting)
        limits.delete(keys.override("production", "payments"))
        await eventually(lambda: limits.llen("ran") >= 1_000)
