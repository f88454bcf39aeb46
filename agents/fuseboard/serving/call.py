"""Begins a decision at once, resumes it when what it waits for is there, and needs no task for that.

For the ``admit_*`` methods of an agent, on its loop. Many of their answers are in memory, and most others
wait once, for Redis. A task costs more than either.
"""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine as awaitable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Waiting(Generic[T]):
    """A decision that has begun and waits. ``ended`` is called once, with this object, when it has ended."""

    __slots__ = ("_answer", "_cancelled", "_decision", "_ended", "_error", "_wait")

    def __init__(
        self, decision: Coroutine[Any, Any, T], wait: Any, ended: Callable[["Waiting[T]"], None]
    ) -> None:
        self._decision, self._ended, self._cancelled = decision, ended, False
        self._answer: T
        self._error: BaseException | None = None
        self._wait: asyncio.Future[Any] = wait
        if isinstance(wait, asyncio.Future):
            wait.add_done_callback(self._resume)
        else:
            self._go_on_in_a_task(wait)

    def cancel(self) -> None:
        """The caller does not wait any more: what was granted is given back."""
        self._cancelled = True
        self._wait.cancel()

    def result(self) -> T:
        """The answer. Raises what the decision has raised, and ``CancelledError`` if it was cancelled."""
        if self._error is not None:
            raise self._error
        return self._answer

    def _resume(self, wait: Any) -> None:
        try:
            wait = self._decision.send(None)
        except StopIteration as end:
            self._answer = end.value
        except (Exception, asyncio.CancelledError) as error:
            self._error = error
        else:
            self._go_on_in_a_task(wait)
            return
        self._ended(self)

    def _go_on_in_a_task(self, wait: Any) -> None:
        rest = _finish(self._decision, wait)
        # A task that is cancelled before its first step ends a coroutine that has not begun. This one has,
        # and passes that on.
        rest.send(None)
        self._wait = task = asyncio.get_running_loop().create_task(rest)
        task.add_done_callback(self._take)
        if self._cancelled:
            task.cancel()

    def _take(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._error = asyncio.CancelledError()
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._answer = task.result()
        self._ended(self)


def begin(decision: Coroutine[Any, Any, T], ended: Callable[[Waiting[T]], None]) -> T | Waiting[T]:
    """Run ``decision`` until it ends or waits: the answer, or what calls ``ended`` when there is one.

    Raises at once what the decision raises at once. Keep what waits: the loop does not.

    Until the decision waits for the second time, it has no task of its own: it cannot use ``asyncio.timeout``
    before that, and must first wait for a future that nothing else awaits (docs/adr, decision 0059).
    """
    try:
        wait = decision.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    return Waiting(decision, wait, ended)


async def _finish(decision: Coroutine[Any, Any, T], wait: Any) -> T:
    return await _rest(decision, wait)


@awaitable
def _rest(decision: Coroutine[Any, Any, T], wait: Any) -> Generator[Any, Any, T]:
    """Wait for ``wait``, then ``yield from`` the decision, which has yielded it.

    The task gets everything that the decision yields, and the decision everything that happens to the task.
    """
    first = True
    while True:
        step: Callable[[], Any]
        try:
            if first:
                yield  # to ``Waiting``
            step = partial(decision.send, (yield wait))
        except BaseException as error:
            if first and asyncio.isfuture(wait):
                wait.cancel()  # as the task would have done, unless it had not begun to wait
            step = partial(decision.throw, error)
        first = False
        try:
            wait = step()
        except StopIteration as end:
            answer: T = end.value
            return answer
