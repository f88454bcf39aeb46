"""The permits of the calls that a chain of fallbacks makes, so that its answer has their cost."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from fuseboard.decision import Permit

_current: ContextVar[list[Permit] | None] = ContextVar("fuseboard_chain", default=None)

#: The list that gets each permit of this task; ``None`` outside of a chain.
current_chain = _current.get


@contextmanager
def noted_in(permits: list[Permit]) -> Iterator[None]:
    """Note the permits of calls in the block, also in tasks and threads that it starts. Blocks may nest."""
    outer = _current.get()
    # An inner chain is a part of the outer one: its permits are in both.
    token = _current.set(permits if outer is None else _Both(outer, permits))
    try:
        yield
    finally:
        _current.reset(token)


class _Both(list[Permit]):
    """Passes each permit on to two lists."""

    def __init__(self, outer: list[Permit], inner: list[Permit]) -> None:
        super().__init__()
        self._lists = outer, inner

    def append(self, permit: Permit) -> None:
        for each in self._lists:
            each.append(permit)
