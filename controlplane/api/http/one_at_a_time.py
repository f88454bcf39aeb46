"""One expensive request of a caller at a time: comparing a file takes minutes of a processor.

Each web process counts by itself, as it does for the rate limit.
"""

import threading
from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest

from controlplane.api.http.auth import caller_of


class StillRunning(Exception):
    """An earlier request of this caller still runs."""


_lock = threading.Lock()
_running: set[str] = set()


def one_at_a_time(view: Callable[..., Any]) -> Callable[..., Any]:
    """Raise ``StillRunning`` while any operation with this mark runs for the caller."""

    @wraps(view)
    def alone(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        caller = caller_of(request)
        with _lock:
            if caller in _running:
                raise StillRunning
            _running.add(caller)
        try:
            return view(request, *args, **kwargs)
        finally:
            with _lock:
                _running.discard(caller)

    return alone
