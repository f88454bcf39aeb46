"""No task of the web process depends on one cancellation being heard."""

import asyncio
import time

import pytest

from controlplane.schedules import worker_backup
from dashboard.consumer import LiveConsumer
from dashboard.hub import Hub
from dashboard.lifespan import lifespan
from tests.cancelling import TIMES, ends_at, uncancellable_task
from tests.waiting import PATIENCE_S


@pytest.fixture
def quick(monkeypatch):
    """A hub that draws nothing, and waits for nothing but a notice."""
    monkeypatch.setattr("dashboard.hub.COALESCE_S", 0.0)
    monkeypatch.setattr(Hub, "_tick", lambda self, topics: {})


async def test_a_hub_hears_a_cancellation_at_the_moment_of_a_notice(quick):
    for turn in range(TIMES):
        hub = Hub()
        await ends_at(hub._wake, asyncio.create_task(hub._run(), name="hub"), turn)
        hub._thread.shutdown(wait=False)


@pytest.mark.parametrize("loop", ["_write", "_recheck"])
async def test_a_socket_hears_a_cancellation_at_the_moment_of_news(loop, monkeypatch):
    async def user_of(scope):
        return None

    monkeypatch.setattr("dashboard.consumer.sockets.user_of", user_of)
    monkeypatch.setattr("dashboard.consumer.role_of", lambda user, environment: "viewer")
    for turn in range(TIMES):
        consumer = LiveConsumer()
        consumer.scope = {}
        consumer._news, consumer._doubt = asyncio.Event(), asyncio.Event()
        consumer._latest = None
        work, event = (
            (consumer._write(), consumer._news)
            if loop == "_write"
            else (consumer._recheck("viewer", "production"), consumer._doubt)
        )
        await ends_at(event, asyncio.create_task(work, name=loop), turn)


async def test_a_socket_whose_task_swallows_the_cancellation_ends_it_with_its_next_turn(monkeypatch):
    asked, begun = 0, asyncio.Event()

    async def user_of(scope):
        nonlocal asked
        asked += 1
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return None  # as a library that takes it for its own

    monkeypatch.setattr("dashboard.consumer.sockets.user_of", user_of)
    monkeypatch.setattr("dashboard.consumer.role_of", lambda user, environment: "viewer")
    monkeypatch.setattr("dashboard.consumer.hub.leave", lambda topic, socket: None)
    consumer = LiveConsumer()
    consumer.topic, consumer.scope, consumer._doubt = object(), {}, asyncio.Event()
    consumer._doubt.set()
    task = asyncio.create_task(consumer._recheck("viewer", "production"))
    consumer._tasks = [task]
    await begun.wait()
    await consumer.disconnect(1000)
    await asyncio.wait_for(task, PATIENCE_S)
    assert asked == 1


async def test_a_hub_stops_although_its_task_hears_nothing(caplog):
    hub = Hub()
    async with uncancellable_task() as task:
        hub._tasks = [task]
        began = time.monotonic()
        await hub.stop()
        assert time.monotonic() - began < PATIENCE_S


async def test_the_backup_for_the_worker_hears_a_cancellation_at_the_moment_of_its_result(monkeypatch):
    monkeypatch.setattr(worker_backup, "LOOK_S", 0.0)
    monkeypatch.setattr(worker_backup, "make_overdue", lambda: False)
    for turn in range(TIMES):
        task = asyncio.create_task(worker_backup.stand_in())
        await asyncio.sleep(0)
        for _ in range(turn % 20):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
        assert done


async def test_web_ends_its_lifespan_although_all_its_tasks_hear_nothing(monkeypatch):
    fresh = Hub()
    monkeypatch.setattr("dashboard.lifespan.hub", fresh)
    async with uncancellable_task() as task:
        monkeypatch.setattr(fresh, "start", lambda: setattr(fresh, "_tasks", [task]))

        async def stand_in():
            while not task.done():
                try:
                    await asyncio.shield(task)
                except asyncio.CancelledError:
                    continue

        monkeypatch.setattr("dashboard.lifespan.stand_in", stand_in)
        messages = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]
        sent = []

        async def receive():
            await asyncio.sleep(0.01)
            return messages.pop()

        async def send(message):
            sent.append(message["type"])

        async with asyncio.timeout(PATIENCE_S):
            await lifespan({"type": "lifespan"}, receive, send)
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
