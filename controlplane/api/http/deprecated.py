"""Old names in the API: they work for one release, and their use is counted.

Operators see in ``fuseboard_deprecated_use_total`` which old names their programs still use, before a
release removes them. The name is the old one, as a client writes it.
"""

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from controlplane.metric_catalogue import edits as catalogue

Given = ParamSpec("Given")
Answer = TypeVar("Answer")

_uses = catalogue.DEPRECATED_USE.make()


def deprecated(name: str) -> Callable[[Callable[Given, Answer]], Callable[Given, Answer]]:
    """Count every call of an operation under its old address; register it with ``deprecated=True``, too."""

    def counted(operation: Callable[Given, Answer]) -> Callable[Given, Answer]:
        # The name appears in /metrics before its first use: 0 says that nobody needs it.
        uses = _uses.labels(name)

        @wraps(operation)
        def call(*args: Given.args, **kwargs: Given.kwargs) -> Answer:
            uses.inc()
            return operation(*args, **kwargs)

        return call

    return counted
