from collections.abc import Callable
from functools import wraps
from typing import Any

from django.http import HttpRequest

from controlplane.api.http.auth import caller_of
from controlplane.one_at_a_time import alone


def one_at_a_time(view: Callable[..., Any]) -> Callable[..., Any]:
    """Raise ``StillRunning`` while any operation with this mark runs for the caller."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        with alone(caller_of(request)):
            return view(request, *args, **kwargs)

    return guarded
