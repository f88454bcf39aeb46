"""How a call ended, judged by what it returned or raised."""

import asyncio
import sys

from fuseboard.contract.words import Outcome
from fuseboard.errors import FuseboardError


def outcome_of_status(status: int) -> Outcome:
    """429 and 5xx are the dependency's failures; other 4xx are the caller's own mistakes."""
    if status == 429 or status >= 500:
        return Outcome.FAILURE
    return Outcome.NEUTRAL if 400 <= status < 500 else Outcome.OK


def outcome_of_exception(error: BaseException) -> Outcome:
    """Judge what a guarded call raised.

    Cancellation, the end of the process, a refusal by Fuseboard and a request that could not
    even be built say nothing about the dependency. An exception that carries a status (as
    those of httpx, aiohttp and most vendors' clients do) is judged by it. Anything else
    counts as a failure: timeouts, lost connections, answers that do not parse.
    """
    if not isinstance(error, Exception) or isinstance(error, asyncio.CancelledError | FuseboardError):
        return Outcome.NEUTRAL
    httpx = sys.modules.get("httpx")
    # Never sent: no free connection of our own, or nothing that could be sent at all.
    if httpx is not None and isinstance(
        error, (httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL)
    ):
        return Outcome.NEUTRAL
    status = _status_of(error)
    return Outcome.FAILURE if status is None else outcome_of_status(status)


def _status_of(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    for owner in (response, error):
        for name in ("status_code", "status"):
            status = getattr(owner, name, None)
            if isinstance(status, int) and 100 <= status <= 599:
                return status
    return None
