"""Eight processes use one strict limit of 500 per 2 s at full speed. The clock of Redis judges the result."""

import json
import subprocess
import sys
from bisect import bisect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import pytest
import redis

from tests.agents.hammer import LIMIT, WINDOW_US
from tests.agents.redis_topologies import Cluster
from tests.agents.windows import worst_window

PROCESSES = 8
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Outcome:
    worst: int
    #: The part of the limit that was admitted in the window before a refusal, on average. It does not depend
    #: on how fast the processes are.
    filled: float
    alone: int


@contextmanager
def hammers(url: str, seconds: float) -> Iterator[list["subprocess.Popen[str]"]]:
    command = [sys.executable, "-m", "tests.agents.hammer", url, str(seconds)]
    processes = [
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for _ in range(PROCESSES)
    ]
    try:
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def hammered(url: str, seconds: float) -> Outcome:
    with hammers(url, seconds) as processes:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        reports = [json.loads(process.communicate("go\n")[0]) for process in starting(processes)]
    times = [time for report in reports for time in report["admitted_us"]]
    times.sort()
    before = [
        bisect(times, answered) - bisect(times, asked - WINDOW_US)
        for report in reports
        for asked, answered in report["refused_us"]
    ]
    return Outcome(
        worst=worst_window(times, WINDOW_US),
        filled=mean(before) / LIMIT,
        alone=sum(report["alone"] for report in reports),
    )


def starting(processes: list["subprocess.Popen[str]"]) -> list["subprocess.Popen[str]"]:
    """All at once: ``communicate`` waits for one after the other."""
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    return processes


def judge(outcome: Outcome) -> None:
    assert outcome.alone == 0
    assert outcome.worst <= LIMIT
    assert outcome.filled >= 0.75


def test_one_server(limits: redis.Redis, redis_url: str):
    judge(hammered(redis_url, 5))


@pytest.mark.slow
def test_one_server_for_20_seconds(limits: redis.Redis, redis_url: str):
    judge(hammered(redis_url, 20))


def test_a_cluster(cluster: Cluster):
    cluster.flush()
    judge(hammered(cluster.url, 5))


@pytest.mark.slow
def test_a_cluster_for_20_seconds(cluster: Cluster):
    cluster.flush()
    judge(hammered(cluster.url, 20))
