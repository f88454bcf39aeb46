"""No ``stop`` of the agent depends on a single cancellation."""

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from fuseboard.breaker.ended_overrides import EndedOverrides
from fuseboard.cancellation import run_until_stopped, stop_tasks, wait_for_event
from fuseboard.configuration.startup import read_in_time
from fuseboard.configuration.watch import Watch
from fuseboard.contract.policy import BreakerPolicy, Tuning
from fuseboard.contract.store_url import StoreUrl
from fuseboard.runtime import Runtime
from fuseboard.settings import AgentSettings
from fuseboard.store import open_store
from fuseboard.store.cluster_store import ClusterStore
from fuseboard.store.health import StoreHealth
from fuseboard.store.sentinel_store import SentinelStore
from fuseboard.store.sentinels import Sentinels
from tests.agents.models.pods import Pod, VirtualTime
from tests.agents.servers import POLICY, configured
from tests.agents.test_local_breaker import held_open
from tests.cancelling import TIMES, ends_at, uncancellable_task
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.both_loops

#: Nothing listens here.
NOWHERE = "redis://127.0.0.1:1/0"


async def test_a_wait_for_an_event_is_cancelled_at_the_moment_of_the_event():
    for turn in range(TIMES):
        event = asyncio.Event()

        async def for_ever(event: asyncio.Event = event) -> None:
            while True:
                await wait_for_event(event, 60)
                event.clear()

        await ends_at(event, asyncio.create_task(for_ever()), turn)


async def test_a_wait_for_an_event_ends_after_its_time():
    event = asyncio.Event()
    assert not await wait_for_event(event, 0.01)
    assert not await wait_for_event(event, -1)
    event.set()
    assert await wait_for_event(event, -1)
    assert await wait_for_event(event, None)


async def test_the_watch_on_ended_overrides_is_cancelled():
    configuration = configured(held_open(POLICY, 600), revision=8)
    store = open_store(NOWHERE)
    health = StoreHealth(store=store, environment="production", tuning=Tuning)
    for turn in range(TIMES):
        overrides = EndedOverrides(
            configuration=configuration, store=store, health=health, on_end=lambda _: None
        )
        task = asyncio.create_task(overrides._run(), name="overrides")
        await ends_at(overrides._wake, task, turn)


async def test_the_watch_on_the_health_of_redis_is_cancelled(tmp_path: Path):
    for turn in range(TIMES):
        store = open_store(f"unix://{tmp_path}/no.sock")
        health = StoreHealth(store=store, environment="production", tuning=Tuning)
        task = asyncio.create_task(health._keep_connected(), name="health")
        await ends_at(health._news, task, turn)


async def test_the_keeper_of_a_cluster_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fuseboard.store.cluster_store.MISSING_S", (0.0, 0.0))
    for turn in range(TIMES):
        store = ClusterStore(StoreUrl.parse("redis+cluster://127.0.0.1:1"))
        task = asyncio.create_task(store._keep(), name="cluster")
        await ends_at(store._wake, task, turn)


class Pipe:
    """A Sentinel that answers at once."""

    open = True

    async def insist(self, *command: object) -> list[bytes]:
        return [b"127.0.0.1", b"6379"]

    def subscribe(self, on_message: Callable[[object], None]) -> None:
        self._on_message = on_message

    def send(self, command: bytes) -> None:
        self._on_message([b"subscribe", b"+switch-master", 1])

    def abort(self) -> None:
        """There is no connection."""


async def test_the_follower_of_sentinels_is_cancelled(monkeypatch: pytest.MonkeyPatch):
    async def open_pipe(*_: object, **__: object) -> Pipe:
        return Pipe()

    for module in ("sentinels", "subscription"):
        monkeypatch.setattr(f"fuseboard.store.{module}.open_pipe", open_pipe)
    for turn in range(TIMES):
        sentinels = Sentinels(StoreUrl.parse("redis+sentinel://127.0.0.1:1/main"))
        task = asyncio.create_task(sentinels.follow(lambda _: True), name="sentinels")
        await ends_at(sentinels._reason, task, turn)


async def test_a_file_that_is_read_at_start_lets_a_cancellation_through():
    for turn in range(TIMES // 10):
        go = threading.Event()

        async def for_ever(go: threading.Event = go) -> None:
            while True:
                await read_in_time(go.wait, timeout_s=60)

        task = asyncio.create_task(for_ever())
        await asyncio.sleep(0.001)
        go.set()
        for _ in range(turn % 6):
            await asyncio.sleep(0)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
        assert done


async def test_a_task_that_swallows_two_cancellations_is_cancelled_again():
    cancellations = 0

    async def swallow_two() -> None:
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


async def test_a_task_that_never_ends_is_logged_and_left_behind(caplog: pytest.LogCaptureFixture):
    async with uncancellable_task() as task:
        assert await stop_tasks(task, within_s=0.05, again_s=0.01) == (task,)
    assert "task.not_ended name=uncancellable within_s=0.05" in caplog.text


async def test_a_task_that_failed_is_logged(caplog: pytest.LogCaptureFixture):
    async def fails() -> None:
        raise RuntimeError("out of order")

    task = asyncio.create_task(fails(), name="broken")
    await asyncio.wait({task})
    await stop_tasks(task, within_s=1)
    assert "task.failed name=broken: out of order" in caplog.text


async def test_no_stop_of_a_part_waits_for_a_task_that_cannot_be_cancelled():
    store = open_store(NOWHERE)
    health = StoreHealth(store=store, environment="production", tuning=Tuning)
    overrides = EndedOverrides(configuration=configured(), store=store, health=health, on_end=lambda _: None)
    cluster = ClusterStore(StoreUrl.parse("redis+cluster://127.0.0.1:1"))
    sentinel = SentinelStore(StoreUrl.parse("redis+sentinel://127.0.0.1:1/main"))
    async with uncancellable_task() as task:
        health._task = overrides._task = cluster._keeper = sentinel._following = task
        async with asyncio.timeout(PATIENCE_S):
            await overrides.stop()
            await health.stop()
            await cluster.close()
            await sentinel.close()
        assert not task.done(), "none of them waited for its end"


async def test_a_watch_stops_although_a_task_of_its_own_cannot_be_cancelled(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fuseboard.configuration.watch.CANCEL_S", 0.1)
    watch = Watch(url=NOWHERE, configuration=configured())
    async with uncancellable_task() as task:
        watch._task = task
        async with asyncio.timeout(PATIENCE_S):
            await watch.stop()


async def test_a_watch_whose_library_swallows_the_cancellation_ends_with_its_next_turn():
    watch = Watch(url=NOWHERE, configuration=configured())
    turns, begun = 0, asyncio.Event()

    async def follow(_: object) -> None:
        nonlocal turns
        turns += 1
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise TimeoutError("a timeout of its own") from None

    watch._follow = follow  # type: ignore[method-assign]
    watch.start()
    watch.looked.set()
    await begun.wait()
    began = time.monotonic()
    await watch.stop()
    assert turns == 1
    assert time.monotonic() - began < PATIENCE_S


async def test_an_agent_stops_in_time_although_a_part_cannot_be_cancelled(caplog: pytest.LogCaptureFixture):
    runtime = Runtime(AgentSettings(redis_url=NOWHERE, server="web-1"))
    async with uncancellable_task() as task:
        runtime.admission._ended_overrides._task = task
        runtime.admission.health._task = task
        runtime.watch._task = task
        began = time.monotonic()
        await runtime.stop()
        assert time.monotonic() - began < PATIENCE_S
    assert "task.not_ended" in caplog.text


def test_the_thread_of_a_blocking_agent_ends_although_a_task_cannot_be_cancelled():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=run_until_stopped, args=(loop,), daemon=True)
    thread.start()

    async def swallow_all() -> None:
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                continue

    asyncio.run_coroutine_threadsafe(swallow_all(), loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_the_thread_of_a_blocking_agent_ends_tasks_that_begin_while_others_end():
    """A question that is cancelled may connect once more: nobody waits for that task."""
    loop = asyncio.new_event_loop()
    begun: list[asyncio.Task[None]] = []

    async def begins_another(count: int) -> None:
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            if count:
                begun.append(asyncio.get_running_loop().create_task(begins_another(count - 1)))

    thread = threading.Thread(target=run_until_stopped, args=(loop,), daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(begins_another(3), loop)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert [task.cancelled() for task in begun] == [True] * 3


async def ignore_cancellations(until: asyncio.Event) -> None:
    while not until.is_set():
        try:
            await until.wait()
        except asyncio.CancelledError:
            continue


@pytest.mark.parametrize("cancelled", [False, True])
def test_11_a_stop_closes_the_connection_although_two_parts_cannot_be_cancelled(cancelled: bool):
    """The runtime cancels a stop after half a second. Each part takes up to 0.3 s."""
    time = VirtualTime()
    with time.applied():
        pod = Pod(BreakerPolicy(), time)
        let_go = asyncio.Event()
        parts = [pod.loop.create_task(ignore_cancellations(let_go)) for _ in range(2)]
        pod.admission._ended_overrides._task, pod.admission.health._task = parts
        stopping: list[asyncio.Task[None]] = []
        pod.run(lambda: stopping.append(pod.loop.create_task(pod.admission.stop())))
        if cancelled:
            pod.run(stopping[0].cancel)
        else:
            for _ in range(4):
                pod.pass_time(0.11)
        assert pod.store.closed
        assert stopping[0].done()
        pod.run(let_go.set)
        pod.loop.close()
