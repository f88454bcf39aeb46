"""Histories of many processes: their answers are possible in some order of single operations."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from tests.agents.models.history import LIMITS, POLICY
from tests.agents.models.linearizable import Operation, Sequential, first_that_cannot_be

PROCESSES = 6
SECONDS = 2.0
ROOT = Path(__file__).resolve().parents[3]


def recorded(url: str, seconds: float) -> list[Operation]:
    command = [sys.executable, "-m", "tests.agents.models.history", url]
    processes = [
        subprocess.Popen(
            [*command, str(number), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for number in range(1, PROCESSES + 1)
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        lines = [line for process in processes for line in process.communicate()[0].splitlines()]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return [Operation(**json.loads(line)) for line in lines]


@pytest.fixture(scope="module")
def history(redis_url: str) -> list[Operation]:
    client = redis.Redis.from_url(redis_url)
    client.flushall()
    try:
        return recorded(redis_url, SECONDS)
    finally:
        client.flushall()
        client.close()


def test_a_history_of_many_processes_is_linearizable(history: list[Operation]):
    assert len(history) > 500
    said = {str(one.said[0]) for one in history if one.kind != "limits"}
    assert {"admits", "open", "probes", "tripped", "stale"} <= said, "everything must have happened"
    assert {one.said[0] < one.asked[0] for one in history if one.kind == "limits"} == {True, False}
    assert first_that_cannot_be(history, Sequential(LIMITS, POLICY)) is None


def test_one_call_too_many_is_noticed(history: list[Operation]):
    """Or any history would do."""
    refused = next(one for one in history if one.kind == "limits" and one.said[0] < one.asked[0])
    lied = replace(refused, said=[refused.said[0] + 1, refused.said[1]])
    assert first_that_cannot_be([*_without(history, refused), lied], Sequential(LIMITS, POLICY)) is not None


def test_an_answer_from_the_past_is_noticed(history: list[Operation]):
    """Told what was true before an earlier question had been asked."""
    ordered = sorted(history, key=lambda one: one.at)
    early, late = ordered[0], ordered[-1]
    stale = replace(late, at=early.at - 1)
    found = first_that_cannot_be([*_without(history, late), stale], Sequential(LIMITS, POLICY))
    assert found is not None


def _without(history: list[Operation], one: Operation) -> list[Operation]:
    return [other for other in history if other is not one]
