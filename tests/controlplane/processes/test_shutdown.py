"""Gateway, web and worker end after a signal, whatever their tasks do."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from controlplane.gateway.clock import Clock
from controlplane.gateway.counts import Counts
from controlplane.gateway.postgres.coordination import Coordination
from controlplane.gateway.postgres.flush import Flusher
from controlplane.gateway.postgres.orders import Orders
from controlplane.gateway.postgres.peers import Peers
from controlplane.gateway.postgres.refresh import Refresher
from controlplane.gateway.process import Gateway, _for_ever
from controlplane.gateway.settings import GatewaySettings
from controlplane.shutdown import NOT_ENDED, EndWatch, stop_tasks
from tests.cancelling import TIMES, ends_at, uncancellable_task
from tests.waiting import PATIENCE_S, wait_until

PROJECT = Path(__file__).resolve().parents[3]


async def nothing(*_, **__):
    """Postgres has nothing to say."""


async def test_the_loop_that_writes_is_cancelled_at_the_moment_of_an_urgent_change(monkeypatch):
    monkeypatch.setattr(Flusher, "write", nothing)
    for turn in range(TIMES):
        flusher = Flusher({}, GatewaySettings(flush_s=60), Counts(), Clock())
        await ends_at(flusher._urgent, asyncio.create_task(_for_ever(flusher.run, "flush")), turn)


async def test_the_loop_that_reads_is_cancelled_at_the_moment_of_a_notification(monkeypatch):
    monkeypatch.setattr(Refresher, "refresh", nothing)
    for turn in range(TIMES):
        refresher = Refresher(
            heads=dict, take=lambda _: None, failed=lambda: None, holds=list, every_s=60, gateway="test"
        )
        await ends_at(refresher._wanted, asyncio.create_task(_for_ever(refresher.run, "refresh")), turn)


@pytest.mark.parametrize("loop", ["agree", "sweep"])
async def test_the_loops_of_a_gateway_hear_a_cancellation_at_any_moment(loop, monkeypatch):
    monkeypatch.setattr("controlplane.gateway.postgres.coordination.LOOK_S", 0.0)
    monkeypatch.setattr("controlplane.gateway.process.SWEEP_S", 0.0)
    monkeypatch.setattr(Coordination, "look", nothing)
    gateway = Gateway(GatewaySettings(gateway="test"))
    work = {
        "agree": Coordination(
            Clock(), list, Peers({}, gateway.known_names, Clock(), gateway="test"), Orders({}, Clock())
        ).run,
        "sweep": gateway._sweep,
    }
    for turn in range(TIMES):
        task = asyncio.create_task(_for_ever(work[loop], loop))
        for _ in range(1 + turn % 20):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
        assert done


async def test_a_gateway_stops_although_a_loop_cannot_be_cancelled(monkeypatch):
    monkeypatch.setattr(Flusher, "write", nothing)
    monkeypatch.setattr(Refresher, "refresh", nothing)
    monkeypatch.setattr(Refresher, "listen", nothing)
    monkeypatch.setattr(Coordination, "look", nothing)
    gateway = Gateway(GatewaySettings(gateway="test"))
    gateway.start()
    async with uncancellable_task() as task:
        gateway._tasks.append(task)
        began = time.monotonic()
        with capture_logs() as logs:
            await gateway.stop()
        assert time.monotonic() - began < PATIENCE_S
    assert {"event": "task.not_ended", "log_level": "error", "task": "uncancellable", "within_s": 1.0} in logs


async def test_a_task_that_swallows_two_cancellations_is_cancelled_again():
    cancellations = 0

    async def swallow_two():
        nonlocal cancellations
        while cancellations < 3:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancellations += 1

    task = asyncio.create_task(swallow_two())
    await asyncio.sleep(0)
    assert await stop_tasks(task, None, within_s=PATIENCE_S, again_s=0.01) == ()
    assert cancellations == 3


#: A server whose application never answers the end of its lifespan, and whose loop ignores cancellations.
STUCK = """
import asyncio, uvicorn
from controlplane.shutdown import EndingServer

async def app(scope, receive, send):
    assert scope["type"] == "lifespan"
    await receive()
    await send({"type": "lifespan.startup.complete"})
    print("started", flush=True)
    while True:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            continue

config = uvicorn.Config(app, port=0, lifespan="on", log_config=None)
EndingServer(config, process="web", within_s=0.5).run()
"""


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_process_that_does_not_end_ends_anyway_and_logs_where_it_was(sent):
    with subprocess.Popen(
        [sys.executable, "-c", STUCK],
        cwd=PROJECT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "started\n"
            process.send_signal(sent)
            said, _ = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == NOT_ENDED, said
    assert "process.not_ended" in said
    assert "most recent call first" in said


def test_a_second_signal_may_interrupt_the_handler_of_the_first():
    """An event would wait for its own lock, for ever."""
    watch, count = EndWatch("test", within_s=1e6), 0

    def handle(*_):
        nonlocal count
        count += 1
        watch.begin()

    before = signal.signal(signal.SIGVTALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0.000_1, 0.000_1)
        while count < 500:
            watch.begin()
        assert not watch._begun.empty(), "each call was noted"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@pytest.mark.parametrize("command", ["web", "gateway"])
def test_a_signal_ends_the_process_in_time(command, tmp_path):
    environment = os.environ | {"FUSEBOARD_DATA_DIR": str(tmp_path), "FUSEBOARD_PLAIN_HTTP": "1"}
    with subprocess.Popen(
        [sys.executable, "manage.py", command, "--port", "0"],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert re.search(r":\d+/", process.stdout.readline())
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) in (0, -signal.SIGTERM)
        finally:
            process.kill()


def test_one_command_runs_the_worker_and_its_schedule(tmp_path: Path) -> None:
    """The first steps print it: it finds embedded servers, as web and gateway do."""
    beat = tmp_path / "beat"
    environment = os.environ | {"FUSEBOARD_BEAT_FILE": str(beat)}
    with subprocess.Popen(
        [sys.executable, "manage.py", "worker"],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            assert any("ready." in line for line in process.stdout)
            wait_until(beat.exists, "a run of the schedule")
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 0, said


#: A worker whose task never ends, after the signal that Celery handles.
STUCK_WORKER = """
import time
import django
django.setup()
from celery.signals import celeryd_init, worker_shutting_down
from controlplane import celery
celery.WORKER_END_S = 0.5
celeryd_init.send(sender="worker", instance=None, conf=None, options=None)
worker_shutting_down.send(sender="worker", sig="SIGTERM", how="Warm", exitcode=0)
time.sleep(60)
"""


def test_a_worker_whose_task_never_ends_ends_anyway():
    ended = subprocess.run(
        [sys.executable, "-c", STUCK_WORKER],
        cwd=PROJECT,
        env=os.environ | {"DJANGO_SETTINGS_MODULE": "controlplane.settings"},
        capture_output=True,
        text=True,
        check=False,
        timeout=50,
    )
    assert ended.returncode == NOT_ENDED, ended.stderr
    assert "process.not_ended" in ended.stdout + ended.stderr
