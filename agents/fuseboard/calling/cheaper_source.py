"""Whether this task has a cheaper source than the one that it calls: a chain of fallbacks has.

Then a spent budget that degrades refuses the call, and the chain asks the next source. Tasks and threads that
are started with this context inherit it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_current: ContextVar[bool] = ContextVar("fuseboard_cheaper_source", default=False)

has_cheaper_source = _current.get


@contextmanager
def cheaper_source(*, exists: bool) -> Iterator[None]:
    """The block can ask another source if this one is refused, or cannot."""
    token = _current.set(exists)
    try:
        yield
    finally:
        _current.reset(token)
