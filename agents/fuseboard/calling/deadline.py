"""By when the work of this task must be done.

::

    with fuseboard.deadline(8):
        ...  # waits, attempts and timeouts of calls end within 8 s

Tasks and threads that are started with this context inherit it. A deadline inside another can be earlier,
never later. It cancels nothing by itself: each part asks what is left before it waits. A generator that
yields inside the block lends its deadline to its consumer meanwhile.
"""

from contextvars import ContextVar, Token
from math import isfinite
from time import monotonic
from types import TracebackType
from typing import Self

from fuseboard.errors import Misconfigured


class deadline:  # noqa: N801 - used like a function
    """The block must be done within ``within_s`` seconds from now. Each object is used once."""

    __slots__ = ("_lost", "_outer", "_token", "until")

    def __init__(self, within_s: float) -> None:
        if not isfinite(within_s):
            raise Misconfigured(f"a deadline is a number of seconds, not {within_s!r}")
        if within_s <= 0:
            raise Misconfigured(f"a deadline must be in the future: more than 0 seconds, not {within_s!r}")
        self._begin(monotonic() + within_s)

    @classmethod
    def at(cls, until: float | None) -> "deadline":
        """A deadline at this moment on the monotonic clock, also one in the past. ``None`` adds none."""
        made = cls.__new__(cls)
        made._begin(until)
        return made

    def _begin(self, moment: float | None) -> None:
        self._outer = _current()
        outer = until()
        #: The moment on the monotonic clock; ``None`` for no deadline.
        self.until: float | None = outer
        if moment is not None:
            self.until = moment if outer is None else min(moment, outer)
        self._token: Token[deadline | None] | None = None
        self._lost = False

    def __enter__(self) -> Self:
        self._token = _innermost.set(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._token is not None:
            try:
                _innermost.reset(self._token)
            except ValueError:
                # A generator may be closed in another context than it began in. The first one cannot be
                # reached from here, and would have this deadline for ever.
                self._lost = True
            self._token = None


_innermost: ContextVar[deadline | None] = ContextVar("fuseboard_deadline", default=None)


def _current() -> deadline | None:
    found = _innermost.get()
    while found is not None and found._lost:
        found = found._outer
    return found


def until() -> float | None:
    """The moment on the monotonic clock; ``None`` for no deadline."""
    found = _current()
    return None if found is None else found.until


def left_s() -> float | None:
    """Seconds left of the deadline, never less than 0; ``None`` for no deadline."""
    moment = until()
    return None if moment is None else max(0.0, moment - monotonic())


def bounded(wait_s: float | None) -> float | None:
    """``wait_s``, or what is left of the deadline if that is less. ``None`` is no bound."""
    left = left_s()
    if left is None:
        return wait_s
    return left if wait_s is None else min(wait_s, left)
