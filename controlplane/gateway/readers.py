"""A deadline for bodies, without a timer per request.

``asyncio.timeout`` cost a tenth of a beat. Here a request leaves its name while it reads, and
one sweep per second cancels those that have been at it for too long.
"""

import asyncio
from types import TracebackType

from controlplane.gateway import problems
from controlplane.gateway.clock import Clock


class Readers:
    """The requests whose body is being read."""

    def __init__(self, clock: Clock, *, timeout_s: float) -> None:
        self._clock = clock
        self._timeout_s = timeout_s
        self._since: dict[asyncio.Task[object], float] = {}
        self._overdue: set[asyncio.Task[object]] = set()

    def __enter__(self) -> None:
        """The running task begins to read."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 - a coroutine runs in a task
        self._since[task] = self._clock.monotonic()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """It has read. Raises ``Problem`` (408) when it was cancelled for taking too long."""
        task = asyncio.current_task()
        assert task is not None  # noqa: S101
        del self._since[task]
        if task in self._overdue:
            self._overdue.remove(task)
            if kind is asyncio.CancelledError and task.uncancel() == 0:
                raise problems.too_slow() from None

    def sweep(self) -> None:
        """Cancel those that are overdue."""
        latest = self._clock.monotonic() - self._timeout_s
        for task in [task for task, since in self._since.items() if since < latest]:
            if task not in self._overdue:
                self._overdue.add(task)
                task.cancel()
