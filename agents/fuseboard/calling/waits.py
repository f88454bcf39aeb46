"""Waits between attempts, which ``fuseboard.testing`` can record instead."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any

#: Gets each wait instead of waiting.
recorder: ContextVar[Callable[[float], None] | None] = ContextVar("fuseboard_pauses", default=None)
#: The most attempts of a call, whatever its policy says.
most_attempts: ContextVar[int | None] = ContextVar("fuseboard_attempts", default=None)


async def pause(seconds: float) -> None:
    """Wait without blocking the loop."""
    record = recorder.get()
    if record is None:
        await asyncio.sleep(seconds)
    else:
        record(seconds)
        await asyncio.sleep(0)


def block(seconds: float) -> None:
    """Wait in a thread."""
    record = recorder.get()
    if record is None:
        time.sleep(seconds)
    else:
        record(seconds)


def run_blocking(steps: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine that blocks, and waits for no loop: code that is written once for both kinds."""
    try:
        steps.send(None)
    except StopIteration as ended:
        return ended.value
    raise RuntimeError("blocking code cannot wait for an event loop")
