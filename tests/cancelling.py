"""A cancellation at the moment of the event that a task waits for."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from tests.waiting import PATIENCE_S

#: How often each loop is cancelled, and how many turns of the event loop lie between the event and the
#: cancellation: in Python 3.11, ``asyncio.wait_for`` swallows it after two.
TIMES = 1000
TURNS = 6


async def waits(event: asyncio.Event) -> None:
    """Return when a task waits for ``event``."""
    async with asyncio.timeout(PATIENCE_S):
        # asyncio has no event for this.
        while not event._waiters:  # type: ignore[attr-defined]  # noqa: ASYNC110
            await asyncio.sleep(0)


async def ends_at(event: asyncio.Event, task: asyncio.Task[Any], turn: int) -> None:
    """Cancel ``task`` once, ``turn`` turns after the event that it waits for, and wait for its end."""
    await waits(event)
    event.set()
    for _ in range(turn % TURNS):
        await asyncio.sleep(0)
    task.cancel()
    done, _ = await asyncio.wait({task}, timeout=PATIENCE_S)
    assert done, f"{task.get_name()} goes on {turn % TURNS} turns after its event"


async def _swallow_cancellations(released: asyncio.Event) -> None:
    while not released.is_set():
        try:
            await released.wait()
        except asyncio.CancelledError:
            continue


@asynccontextmanager
async def uncancellable_task() -> AsyncIterator[asyncio.Task[None]]:
    """A task that swallows every cancellation, until the block ends."""
    released = asyncio.Event()
    task = asyncio.create_task(_swallow_cancellations(released), name="uncancellable")
    await asyncio.sleep(0)
    try:
        yield task
    finally:
        released.set()
        await task
