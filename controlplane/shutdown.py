"""The end of a process of the control plane, which does not depend on one cancellation being heard.

Up to Python 3.11, ``asyncio.wait_for`` swallows a cancellation that arrives as the awaited thing
completes, and a library may take one for a timeout of its own. So tasks are cancelled until they end
(``stop_tasks``), and a process that does not end after a signal ends anyway (``EndWatch``).
"""

import asyncio
import faulthandler
import os
import sys
import threading
from queue import SimpleQueue
from time import monotonic
from types import FrameType
from typing import Any

import structlog
import uvicorn

log = structlog.get_logger(__name__)

#: A task that is still there after this time is cancelled again.
AGAIN_S = 0.25
#: From a signal to the end of web and gateway. Regularly it takes at most 2 s for requests and 2 s for the
#: background work.
END_S = 10.0
#: The exit status of a process that did not end on time.
NOT_ENDED = 70


async def stop_tasks(
    *tasks: asyncio.Task[Any] | None, within_s: float, again_s: float = AGAIN_S
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
            log.error("task.not_ended", task=task.get_name(), within_s=within_s)
        elif not task.cancelled() and (error := task.exception()) is not None:
            log.error("task.failed", task=task.get_name(), exc_info=error)
    return tuple(going)


class EndWatch:
    """Ends this process when it is still there ``within_s`` after ``begin``.

    The thread waits from the start, because a signal handler must not start threads: it may interrupt
    the code that starts another.
    """

    def __init__(self, process: str, *, within_s: float = END_S) -> None:
        self._process, self._within_s = process, within_s
        #: Its ``put`` is safe in a handler that interrupts another one. An event has a lock, which is not.
        self._begun: SimpleQueue[None] = SimpleQueue()
        threading.Thread(target=self._watch, name="end-watch", daemon=True).start()

    def begin(self) -> None:
        """Safe in a signal handler, and more than once."""
        self._begun.put(None)

    def _watch(self) -> None:
        self._begun.get()
        # Never set: a daemon thread ends with its process.
        threading.Event().wait(self._within_s)
        try:
            log.critical("process.not_ended", process=self._process, within_s=self._within_s)
            faulthandler.dump_traceback(sys.__stderr__ or sys.stderr)
        finally:
            os._exit(NOT_ENDED)


class EndingServer(uvicorn.Server):
    """A server whose process ends after a signal, whatever its tasks and threads do."""

    def __init__(self, config: uvicorn.Config, *, process: str, within_s: float = END_S) -> None:
        super().__init__(config)
        self._end = EndWatch(process, within_s=within_s)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._end.begin()
        super().handle_exit(sig, frame)
