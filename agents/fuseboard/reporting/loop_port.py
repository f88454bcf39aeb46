"""The only way between the sync thread and the event loop.

The thread never touches what belongs to the loop: it asks the loop for a finished description, and
posts finished results to it.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class LoopGoneError(Exception):
    """The loop is closed, or did not answer in time."""


class LoopPort:
    """Calls functions on ``loop``, from another thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    def post(self, function: Callable[P, object], *args: P.args, **kwargs: P.kwargs) -> None:
        """Have the loop call ``function``. Raises ``LoopGoneError`` when it is closed."""
        try:
            self._loop.call_soon_threadsafe(lambda: function(*args, **kwargs))
        except RuntimeError as error:
            raise LoopGoneError("the event loop is closed") from error

    def ask(self, function: Callable[[], T], *, timeout_s: float) -> T:
        """The result of ``function`` on the loop. Raises ``LoopGoneError`` when that takes too long."""
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(function())
            except Exception as error:  # passed to the thread that asked
                answer.set_exception(error)

        self.post(run)
        try:
            return answer.result(timeout_s)
        except TimeoutError as error:
            if answer.done():
                raise
            raise LoopGoneError(f"the event loop did not answer within {timeout_s:g} s") from error
