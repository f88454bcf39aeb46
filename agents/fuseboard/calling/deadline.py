"""By when the work of this task must be done.

::

    with fuseboard.deadline(8):
        ...  # waits, attempts and timeouts of calls end within 8 s

Tasks and threads that are started with this context inherit it. A deadline inside another can be earlier,
never later. It cancels nothing by itself: each part asks what is left before it waits.
"""

from contextlib import suppress
from contextvars import ContextVar, Token
from math import isfinite
from time import monotonic
from types import TracebackType
from typing import Self

from fuseboard.errors import Misconfigured

#: The moment on the monotonic clock; ``None`` for no deadline.
_until: ContextVar[float | None] = ContextVar("fuseboard_deadline", default=None)


class deadline:  # noqa: N801 - used like a function
    """The block must be done within ``within_s`` seconds from now. Each object is used once."""

    __slots__ = ("_token", "until")

    def __init__(self, within_s: float) -> None:
        if not isfinite(within_s):
            raise Misconfigured(f"a deadline is a number of seconds, not {within_s!r}")
        if within_s <= 0:
            raise Misconfigured(f"a deadline must be in the future: more than 0 seconds, not {within_s!r}")
        outer = _until.get()
        until = monotonic() + within_s
        #: The moment on the monotonic clock; ``None`` for no deadline.
        self.until: float | None = until if outer is None else min(until, outer)
        self._token: Token[float | None] | None = None

    @classmethod
    def at(cls, until: float | None) -> "deadline":
        """A deadline at this moment on the monotonic clock, also one in the past. ``None`` adds none."""
        made = cls.__new__(cls)
        outer = _until.get()
        made.until = outer if until is None else until if outer is None else min(until, outer)
        made._token = None
        return made

    def __enter__(self) -> Self:
        self._token = _until.set(self.until)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            # A generator may be resumed in another context, which never had this deadline.
            with suppress(ValueError):
                _until.reset(self._token)
            self._token = None


def until() -> float | None:
    """The moment on the monotonic clock; ``None`` for no deadline."""
    return _until.get()


def left_s() -> float | None:
    """What is left of the deadline, never less than 0; ``None`` for no deadline."""
    moment = _until.get()
    return None if moment is None else max(0.0, moment - monotonic())


def bounded(wait_s: float | None) -> float | None:
    """``wait_s``, or what is left of the deadline if that is less. ``None`` is no bound."""
    left = left_s()
    if left is None:
        return wait_s
    return left if wait_s is None else min(wait_s, left)
