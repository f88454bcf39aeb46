"""Fails a benchmark whose shared decisions were made without Redis: these cost less than shared ones."""

from collections.abc import Iterator
from contextlib import contextmanager

from fuseboard.reporting.counters import Counters


class DecidedLocallyError(SystemExit):
    """Ends the run, unless a test catches it."""


def check_shared(name: str, local: int) -> None:
    """Raise if ``name`` made ``local`` decisions without Redis."""
    if local:
        raise DecidedLocallyError(
            f"{name}: {local} decisions that should be shared were made without Redis, so no figure counts; "
            "if Redis and this machine are well, run it again without other work"
        )


@contextmanager
def shared_only(name: str, counters: Counters) -> Iterator[None]:
    """Every decision of the block must be shared. Raises at its end, and not instead of another error."""
    before = counters.local_decisions
    yield
    check_shared(name, counters.local_decisions - before)
