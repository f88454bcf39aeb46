"""The permits of the calls that a chain of fallbacks makes, so that its answer has their cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fuseboard.decision import Permit


class Chain:
    """Notes each permit of a block, also for the block around it."""

    __slots__ = ("_outer", "_permits")

    def __init__(self, permits: list[Permit], outer: "Chain | None") -> None:
        self._permits: list[Permit] | None = permits
        self._outer = outer

    def append(self, permit: Permit) -> None:
        permits = self._permits
        if permits is not None:
            permits.append(permit)
        if self._outer is not None:
            self._outer.append(permit)

    def end(self) -> None:
        """Note no more: a task that the block has started may make calls for as long as the process runs."""
        self._permits = None


_current: ContextVar[Chain | None] = ContextVar("fuseboard_chain", default=None)

#: Gets each permit of this task; ``None`` outside of a chain.
current_chain = _current.get


@contextmanager
def noted_in(permits: list[Permit]) -> Iterator[None]:
    """Note the permits of calls in the block, also in tasks and threads that it starts, until it ends.

    Blocks may nest: an inner chain is a part of the outer one, so its permits are in both.
    """
    chain = Chain(permits, _current.get())
    token = _current.set(chain)
    try:
        yield
    finally:
        _current.reset(token)
        chain.end()
