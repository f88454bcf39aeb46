"""Waits and stops that work even if a library swallows a cancellation.

Up to Python 3.11, ``asyncio.wait_for`` swallows a cancellation that arrives as the awaited thing
completes, and a library may mistake one for its own timeout. A ``stop`` that awaits such a task never
returns. So the agent waits with ``wait_for_event``, and ends its tasks with ``stop_tasks``.
"""

import asyncio
import logging
from time import monotonic
from typing import Any

logger = logging.getLogger("fuseboard")

#: A task that is still there after this time is cancelled again.
CANCEL_AGAIN_S = 0.1

#: ``stop`` of one part waits for the end of its tasks for at most this time.
STOP_S = 0.3

#: A thread of its own waits for the end of its tasks for at most this time. Nobody waits for that thread.
THREAD_STOP_S = 2.0


async def wait_for_event(event: asyncio.Event, timeout_s: float | None) -> bool:
    """Whether ``event`` is set within the time; ``None`` waits without a limit."""
    try:
        async with asyncio.timeout(timeout_s):
            await event.wait()
    except TimeoutError:
        return False
    return True


def run_until_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop in this thread until it is stopped; then its tasks have ``THREAD_STOP_S`` to end."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.run_until_complete(_stop_all_tasks(THREAD_STOP_S))
        loop.close()


async def _stop_all_tasks(within_s: float) -> None:
    """Stop the tasks of this loop, and those that they begin while they end, such as a new connection."""
    until = monotonic() + within_s
    tried = {asyncio.current_task()}
    while (tasks := asyncio.all_tasks() - tried) and (left_s := until - monotonic()) > 0:
        await stop_tasks(*tasks, within_s=left_s)
        tried |= tasks
    # A transport that was aborted closes its socket in the next turn of the loop.
    await asyncio.sleep(0)


async def stop_tasks(
    *tasks: asyncio.Task[Any] | None, within_s: float, again_s: float = CANCEL_AGAIN_S
) -> tuple[asyncio.Task[Any], ...]:
    """Cancel tasks until they end, and return those that have not ended after ``within_s``.

    ``again_s`` is the time that a task gets for its own cleanup between two cancellations.
    """
    until = monotonic() + within_s
    given = [task for task in tasks if task is not None]
    going = {task for task in given if not task.done()}
    while going and (left := until - monotonic()) > 0:
        for task in going:
            task.cancel()
        _, going = await asyncio.wait(going, timeout=min(left, again_s))
    for task in given:
        if task in going:
            logger.error("task.not_ended name=%s within_s=%g: it is left behind", task.get_name(), within_s)
        elif not task.cancelled() and (error := task.exception()) is not None:
            logger.error("task.failed name=%s: %s", task.get_name(), error, exc_info=error)
    return tuple(going)
