"""A deadline for bodies, without a timer per request.

``asyncio.timeout`` cost a tenth of a beat. Here a request leaves its name while it reads, and
one sweep per second cancels those that have been at it for too long.
"""

import asyncio
from typing import Any

from controlplane.gateway.clock import Clock
from controlplane.gateway.wire import problems

#: Of a request; ``None`` only outside of tasks, where nobody can be cancelled.
Task = asyncio.Task[Any] | None


class Readers:
    """The requests whose body is being read."""

    def __init__(self, clock: Clock, *, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._since: dict[Task, float] = {}
        self._overdue: set[Task] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self, now: float) -> Task:
        """The running task begins to read at the monotonic time ``now``; the task."""
        # Finding the running loop costs Python 3.11 a system call, a tenth of a beat.
        task = asyncio.current_task(self._loop)
        if task is None:
            self._loop = asyncio.get_running_loop()
            task = asyncio.current_task(self._loop)
        self._since[task] = now
        return task

    def end(self, task: Task) -> None:
        del self._since[task]
        self._overdue.discard(task)

    def cancelled(self, task: Task) -> None:
        """Raises ``Problem`` (408) when it was cancelled for taking too long, and for nothing else."""
        if task is not None and task in self._overdue and task.uncancel() == 0:
            raise problems.too_slow() from None

    def sweep(self) -> None:
        """Cancel those that are overdue."""
        latest = self._clock.monotonic() - self._timeout_s
        for task in [task for task, since in self._since.items() if since < latest]:
            if task is not None and task not in self._overdue:
                self._overdue.add(task)
                task.cancel()
