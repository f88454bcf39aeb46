"""A worker that is killed between the new message of a refused task and the old one loses no task."""

import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
import redis

from tests.agents.published import publish
from tests.engines import work
from tests.engines.test_engines import ROOT, RULES, environment, python_of, worker
from tests.waiting import wait_until

#: The dependency that refused admits now.
OPENED = msgspec.structs.replace(
    RULES,
    dependencies=tuple(
        msgspec.structs.replace(each, vendor_limits=()) if each.name == "gate" else each
        for each in RULES.dependencies
    ),
)
ARGUMENTS = {
    "celery": (
        *("-A", "tests.engines.celery_app", "worker", "-c", "1", "-l", "WARNING"),
        *("--without-gossip", "--without-mingle", "--without-heartbeat"),
    ),
    "dramatiq": ("tests.engines.dramatiq_app", "-p", "1", "-t", "2"),
    "arq": ("tests.engines.arq_app.WorkerSettings",),
}


def send(engine: str, tmp_path: Path) -> None:
    if engine == "celery":
        from tests.engines.celery_app import gated

        gated.delay(7)
        return
    command = [python_of(engine), "-m", f"tests.engines.{engine}_app", "--gated"]
    subprocess.run(command, cwd=ROOT, env=environment(tmp_path), check=True, timeout=60)


def die(engine: str, tmp_path: Path, killed: str) -> None:
    """Run a worker until it has killed itself, with all its processes."""
    with (tmp_path / "killed").open("wb") as log:
        process = subprocess.Popen(
            [python_of(engine), "-m", engine, *ARGUMENTS[engine]],
            cwd=ROOT,
            env=environment(tmp_path) | {"TEST_KILL": killed},
            stdout=log,
            stderr=log,
            # It kills its process group.
            start_new_session=True,
        )
    try:
        assert process.wait(60) == -9, (tmp_path / "killed").read_text()
    except BaseException:
        sys.stderr.write((tmp_path / "killed").read_text())
        process.kill()
        process.wait()
        raise


@pytest.mark.parametrize(
    ("engine", "runs", "killed"),
    [
        # The worker may have taken the new message from Redis, where Celery keeps it nowhere until the worker
        # has written down that it has it. Then only the old message is left.
        ("celery", 1, "worker"),
        # Both messages are there: the task runs twice.
        ("dramatiq", 2, "worker"),
        # A job is in one place all the time.
        ("arq", 1, "worker"),
        ("arq", 1, "transaction"),
    ],
)
def test_a_killed_worker_loses_no_refused_task(
    engine: str, runs: int, killed: str, limits: redis.Redis, tmp_path: Path
) -> None:
    publish(limits, RULES, revision=1)
    send(engine, tmp_path)
    die(engine, tmp_path, killed)
    assert work.records("gated") == []
    publish(limits, OPENED, revision=2)
    with worker(engine, tmp_path, *ARGUMENTS[engine], around={"TEST_KILL": killed}):
        wait_for_runs(runs)
        if engine == "arq":
            with redis.Redis.from_url(work.BROKER) as broker:
                wait_until(lambda: broker.zcard("arq:queue") == 0, "the end of the job")
            assert len(work.records("gated")) == 1


def wait_for_runs(number: int) -> None:
    wait_until(lambda: len(work.records("gated")) >= number, "the task of the killed worker", within_s=60)
    # No copy has spent a retry.
    assert set(work.records("gated")) == {"7 0"}


@pytest.mark.parametrize(
    ("reject", "runs"),
    [
        # Celery acknowledges the message of a process that is lost, and the new one is there.
        ("0", 1),
        # With ``task_reject_on_worker_lost``, it takes the message back.
        ("1", 2),
    ],
)
def test_celery_loses_no_refused_task_whose_process_is_killed(
    reject: str, runs: int, limits: redis.Redis, tmp_path: Path
) -> None:
    from tests.engines.celery_app import gated

    publish(limits, RULES, revision=1)
    around = {"TEST_KILL": "process", "TEST_REJECT": reject}
    with worker("celery", tmp_path, *ARGUMENTS["celery"], around=around):
        ended = gated.delay(7)
        with redis.Redis.from_url(work.BROKER) as broker:
            wait_until(lambda: broker.exists("killed"), "the end of the process")
        publish(limits, OPENED, revision=2)
        wait_for_runs(runs)
        # A result remembers that the task failed, which the caller may have seen meanwhile.
        wait_until(lambda: gated.AsyncResult(ended.id).state == "SUCCESS", "the result of the new message")


def test_both_copies_of_a_message_of_dramatiq_give_back_what_they_took(
    limits: redis.Redis, tmp_path: Path
) -> None:
    """Copies have the same id, and can run at the same time in one worker."""
    publish(limits, RULES, revision=1)
    with worker("dramatiq", tmp_path, *ARGUMENTS["dramatiq"]) as program:
        for number in (1, 2, 3):
            program("--paired", str(number))
            wait_until(
                lambda: len(work.records("paired")) == 2 * number,  # noqa: B023
                "two copies at once: the limit is two",
            )
