"""How long a vendor asks not to be called."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime

#: The longest cooldown that a vendor's answer can set. It may be a mistake, and no one watches.
MAX_COOLDOWN_MS = 3_600_000

# Also far too long: milliseconds since 1970 are an hour.
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?", re.ASCII)


def asked_to_wait_ms(headers: Mapping[str, str]) -> int:
    """By ``Retry-After-Ms``, which OpenAI and Anthropic send, or else by ``Retry-After``; 0 without them."""
    text = (headers.get("retry-after-ms") or "").strip()
    if _NUMBER.fullmatch(text) and (asked := float(text)) > 0:
        return int(min(max(asked, 1.0), MAX_COOLDOWN_MS))
    return retry_after_ms(headers.get("retry-after") or "")


def retry_after_ms(text: str) -> int:
    """A ``Retry-After`` in milliseconds, at most an hour; 0 when it names no time in the future."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        return int(min(float(text) * 1000, MAX_COOLDOWN_MS))
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
    return min(max(0, int(left_s * 1000)), MAX_COOLDOWN_MS)
