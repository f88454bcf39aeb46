"""One expensive piece of work of a caller at a time: comparing a file takes minutes of a processor.

The API and the pages share it. Each web process counts by itself, as it does for the rate limit.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class StillRunning(Exception):
    """Earlier work of this caller still runs."""


_lock = threading.Lock()
_running: set[str] = set()


@contextmanager
def alone(caller: str) -> Iterator[None]:
    """Raise ``StillRunning`` while any other work in this block runs for the caller."""
    with _lock:
        if caller in _running:
            raise StillRunning
        _running.add(caller)
    try:
        yield
    finally:
        with _lock:
            _running.discard(caller)
