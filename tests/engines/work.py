"""What the tasks of all engines do: they write down that they ran. Imported by workers and by tests."""

import os
import signal

import redis

from fuseboard.integrations import task_admission

#: The server of the test has databases for the broker and for results.
LIMITS = os.environ["FUSEBOARD_REDIS_URL"]
BROKER = LIMITS.removesuffix("/0") + "/1"
RESULTS = LIMITS.removesuffix("/0") + "/2"

if "TEST_MOST_REFUSALS" in os.environ:
    # A test has no time for 20 refusals, a second each, of the dependency that never admits.
    task_admission.MAX_REFUSALS = int(os.environ["TEST_MOST_REFUSALS"])
    task_admission.UNKNOWN_S = 0.1


#: What ends between a new message and the old one: the ``worker``, or only the ``process`` of the task. With
#: arq also the worker after the ``transaction`` of a refusal.
KILLED = os.environ.get("TEST_KILL", "")


def kill_once() -> None:
    """End the worker as ``kill -9`` does, the first time that one comes here, if the test wants that."""
    if not KILLED:
        return
    with redis.Redis.from_url(BROKER) as client:
        if not client.set("killed", "1", nx=True):
            return
    if KILLED != "process":
        os.killpg(os.getpgrp(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def record(task: str, *facts: object) -> int:
    """How often the task ran."""
    with redis.Redis.from_url(BROKER) as client:
        return int(client.rpush(f"ran:{task}", " ".join(map(str, facts))))  # type: ignore[arg-type] # not async


def records(task: str) -> list[str]:
    with redis.Redis.from_url(BROKER, decode_responses=True) as client:
        return client.lrange(f"ran:{task}", 0, -1)  # type: ignore[return-value] # not async
