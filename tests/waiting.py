"""Waiting for what happens by itself: ask again until it is so, at most until a deadline."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import TypeVar

T = TypeVar("T")

#: Long enough for a busy machine: a test that fails has found something.
PATIENCE_S = 30.0
#: Short beside whatever is waited for, and long beside a look.
PAUSE_S = 0.005
#: A look at other processes may cost a connection to Postgres or a page, and they need the machine. So the
#: pause grows with the time that has passed.
PART_OF_PASSED, LONGEST_PAUSE_S = 0.05, 0.1


class NotInTime(AssertionError):
    """The deadline passed first."""


def wait_until(
    look: Callable[[], T],
    what: str = "it",
    *,
    within_s: float = PATIENCE_S,
    every_s: float | None = None,
    accept: Callable[[T], object] = bool,
    pause: Callable[[float], object] = time.sleep,
) -> T:
    """What ``look`` returns once ``accept`` takes it. ``pause`` lets something else run meanwhile."""
    began = time.monotonic()
    while not accept(found := look()):
        _check(began + within_s, what, within_s, found)
        growing_s = PART_OF_PASSED * (time.monotonic() - began)
        pause(min(max(growing_s, PAUSE_S), LONGEST_PAUSE_S) if every_s is None else every_s)
    return found


async def eventually(
    look: Callable[[], T | Awaitable[T]],
    what: str = "it",
    *,
    within_s: float = PATIENCE_S,
    every_s: float = PAUSE_S,
    accept: Callable[[T], object] = bool,
) -> T:
    """The same in an event loop, which runs on; ``look`` may be a coroutine function."""
    deadline = time.monotonic() + within_s
    while True:
        answer = look()
        found = await answer if isawaitable(answer) else answer
        if accept(found):
            return found
        _check(deadline, what, within_s, found)
        await asyncio.sleep(every_s)


def _check(deadline: float, what: str, within_s: float, found: object) -> None:
    if time.monotonic() > deadline:
        raise NotInTime(f"{what}: not within {within_s:g} s; the last look found {found!r}")
