"""Judges how a call ended, by what it returned or raised."""

import asyncio
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from fuseboard.contract.words import Outcome
from fuseboard.errors import FuseboardError

#: The longest cooldown that a vendor's answer can set. It may be a mistake, and no one watches.
MAX_COOLDOWN_MS = 3_600_000


def outcome_of_status(status: int) -> Outcome:
    """429 and 5xx are the dependency's failures; other 4xx are the caller's own mistakes."""
    if status == 429 or status >= 500:
        return Outcome.FAILURE
    return Outcome.NEUTRAL if 400 <= status < 500 else Outcome.OK


def outcome_of_response(status: int, headers: Mapping[str, str]) -> tuple[Outcome, int]:
    """The outcome of a response, and for how many milliseconds the sender asked not to be called.

    The whole fleet obeys a 429 with a time to come back, so that 429 is no evidence against the vendor.
    A 429 without a time is a failure, and so is every 503.
    """
    cooldown_ms = retry_after_ms(headers.get("retry-after") or "") if status in (429, 503) else 0
    if status == 429 and cooldown_ms:
        return Outcome.NEUTRAL, cooldown_ms
    return outcome_of_status(status), cooldown_ms


def retry_after_ms(text: str) -> int:
    """A ``Retry-After`` in milliseconds, at most an hour; 0 when it names no time in the future."""
    text = text.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:9]) * 1000, MAX_COOLDOWN_MS)
    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # By the pod's own clock. However wrong that is, the cooldown is at most an hour.
    left_s = (moment - datetime.now(UTC)).total_seconds()
    return min(max(0, int(left_s * 1000)), MAX_COOLDOWN_MS)


def outcome_of_exception(error: BaseException) -> Outcome:
    """Judge what a guarded call raised; see ``judge``."""
    return judge(error)[0]


def judge(error: BaseException) -> tuple[Outcome, int]:
    """The outcome of a call that raised, and for how many milliseconds the vendor asked not to be called.

    These say nothing about the dependency: cancellation, the end of the process, a refusal by
    Fuseboard, and a request that could not be built. An exception with a status (those of httpx,
    requests, aiohttp and most vendors' clients have one) is judged by its status and by the
    ``Retry-After`` of its response. Everything else is a failure: timeouts, lost connections, answers
    that do not parse.
    """
    if not isinstance(error, Exception) or isinstance(error, asyncio.CancelledError | FuseboardError):
        return Outcome.NEUTRAL, 0
    httpx = sys.modules.get("httpx")
    # Never sent: no free connection in the client's own pool, or an invalid request.
    if httpx is not None and isinstance(
        error, (httpx.PoolTimeout, httpx.UnsupportedProtocol, httpx.InvalidURL)
    ):
        return Outcome.NEUTRAL, 0
    status = _status_of(error)
    return (Outcome.FAILURE, 0) if status is None else outcome_of_response(status, _headers_of(error))


def _status_of(error: Exception) -> int | None:
    response = getattr(error, "response", None)
    for owner in (response, error):
        for name in ("status_code", "status"):
            status = getattr(owner, name, None)
            if isinstance(status, int) and 100 <= status <= 599:
                return status
    return None


def _headers_of(error: Exception) -> dict[str, str]:
    for owner in (getattr(error, "response", None), error):
        headers = getattr(owner, "headers", None)
        if isinstance(headers, Mapping):
            return {str(name).lower(): str(value) for name, value in headers.items()}
    return {}
