"""Begins a decision at once, and makes a task of it only if it has to wait."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import coroutine as awaitable
from typing import Any, TypeVar

T = TypeVar("T")


def begin(decision: Coroutine[Any, Any, T]) -> T | asyncio.Task[T]:
    """Run ``decision`` until it ends or waits: the answer, or a task that ends with the answer.

    For the ``admit_*`` methods of an agent, on its loop: many of their answers are in memory, and a task
    costs more than those. Raises at once what the decision raises at once. Keep the task: the loop does not.
    Cancel it when nobody waits for the answer any more: what was granted is given back.

    Until the decision waits for the first time, it has no task of its own: it cannot use ``asyncio.timeout``
    before that, and must wait for a future that nobody else awaits (docs/adr, decision 0059).
    """
    try:
        wait = decision.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    rest = _finish(decision, wait)
    # A task that is cancelled before its first step ends a coroutine that has not begun. This one has, and
    # passes that on.
    rest.send(None)
    return asyncio.get_running_loop().create_task(rest)


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
                yield  # to ``begin``
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
