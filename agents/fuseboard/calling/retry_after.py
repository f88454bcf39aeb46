"""How long a vendor asks not to be called."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

#: The longest cooldown that a vendor's answer can set. It may be a mistake, and no one watches.
MAX_COOLDOWN_MS = 3_600_000
#: A longer time than this is surely a mistake.
_LONGEST_MS = 400 * 86_400_000

# Also far too long: milliseconds since 1970 are an hour.
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?", re.ASCII)


def asked_to_wait_ms(headers: Mapping[str, str]) -> int:
    """By ``Retry-After-Ms``, which OpenAI and Anthropic send, or else by ``Retry-After``; 0 without them."""
    return int(min(_asked_ms(headers), MAX_COOLDOWN_MS))


def retry_after_ms(text: str) -> int:
    """A ``Retry-After`` in milliseconds, at most an hour; 0 when it names no time in the future."""
    return int(min(_named_ms(text), MAX_COOLDOWN_MS))


def asks_for_hours(headers: Mapping[str, str]) -> bool:
    """Whether the time is longer than any cooldown, such as the rest of a day or of a month."""
    return MAX_COOLDOWN_MS < _asked_ms(headers) <= _LONGEST_MS


def _asked_ms(headers: Mapping[str, str]) -> float:
    text = (headers.get("retry-after-ms") or "").strip()
    if _NUMBER.fullmatch(text) and (asked := float(text)) > 0:
        return max(asked, 1.0)
    return _named_ms(headers.get("retry-after") or "")


def _named_ms(text: str) -> float:
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return float(text) * 1000
    # Only for a date, which is rare: it loads the mail library.
    from email.utils import parsedate_to_datetime

    try:
        moment = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return 0
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    # By the pod's own clock. However wrong that is, the cooldown is at most an hour.
    left_s = (moment - datetime.now(UTC)).total_seconds()
    return max(0.0, left_s * 1000)
