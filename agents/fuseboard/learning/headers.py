"""The limits that an answer's headers state: a table of names, and nothing that a vendor sends can raise.

A header is a witness, not a judge. Vendors send 0 and -1 for what they do not know, and numbers of another
moment. What contradicts itself is left out here; ``remaining`` decides what to do with the rest.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from time import time

from msgspec import Struct

#: Larger numbers are mistakes.
MAX_AMOUNT = 1_000_000_000
#: Later resets, and longer windows, are mistakes.
MAX_RESET_S = 400 * 86_400.0
#: Longer values are no number and no date.
MAX_LENGTH = 200

#: The vendor's word -> the measure of our limits.
_MEASURES = {
    "requests": "calls",
    "tokens": "tokens",
    "input-tokens": "input_tokens",
    "output-tokens": "output_tokens",
}
_FIGURES = ("limit", "remaining", "reset")
#: Names of headers without a measure: GitHub and many others, and drafts of the IETF before the eighth.
_PLAIN = ("x-ratelimit-", "x-rate-limit-", "ratelimit-")


def _names() -> dict[str, tuple[str, str, str]]:
    """Header -> the family, the measure, and which figure it is. A family has one reading of ``reset``."""
    names = {}
    for figure in _FIGURES:
        for word, measure in _MEASURES.items():
            names[f"x-ratelimit-{figure}-{word}"] = ("openai", measure, figure)
            names[f"anthropic-ratelimit-{word}-{figure}"] = ("anthropic", measure, figure)
        for prefix in _PLAIN:
            names[prefix + figure] = (prefix, "calls", figure)
    return names


_NAMES = _names()
#: Families whose limits are buckets that refill all the time: their reset is when the bucket is full.
_REFILLED = frozenset({"openai", "anthropic"})

_NUMBER = re.compile(r"[0-9]{1,20}(?:\.[0-9]{1,20})?", re.ASCII)
_WHOLE = re.compile(r"[0-9]{1,10}", re.ASCII)
#: The numbers of Go: ``6m0s``, ``1.5s``, ``12ms``; with days, which Groq sends.
_DURATION = re.compile(r"(?:[0-9]{1,10}(?:\.[0-9]{1,20})?(?:ms|us|µs|ns|d|h|m|s))+", re.ASCII)
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|us|µs|ns|d|h|m|s)", re.ASCII)
_UNITS = {"d": 86_400.0, "h": 3_600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
#: ``limit=100``, ``q=100``, ``;w=60``: the fields of the draft of the IETF.
_FIELD = re.compile(r"(?:^|[;,\s])(limit|remaining|reset|q|r|t|w)=([0-9]{1,10})(?![0-9.])", re.ASCII)
_MEANINGS = {"q": "limit", "r": "remaining", "t": "reset", "w": "window"}
#: Above this, a number of seconds is a moment since 1970.
_MOMENT_S = 1_000_000_000.0


class StatedLimit(Struct, frozen=True):
    """A limit of the vendor, as one answer states it."""

    measure: str
    limit: int
    remaining: int
    #: Seconds until all of it is there again; ``None`` if the vendor does not say it.
    reset_s: float | None = None
    #: The window of the limit, stated or computed; ``None`` if it is not known.
    window_ms: int | None = None


def stated_limits(headers: Mapping[str, str]) -> tuple[StatedLimit, ...]:
    """All that the headers of an answer say about limits. Empty for most vendors, and for nonsense."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    structured: dict[str, str] = {}
    for name, value in headers.items():
        name = name.lower()
        if "rate" not in name or len(value) > MAX_LENGTH:
            continue
        if (known := _NAMES.get(name)) is not None:
            family, measure, figure = known
            found.setdefault((family, measure), {})[figure] = value
        elif name in ("ratelimit", "ratelimit-policy"):
            structured[name] = value
    if not found and not structured:
        return ()
    limits = [_plain(family, measure, texts, headers) for (family, measure), texts in found.items()]
    if "ratelimit" in structured:
        limits.append(_structured(structured))
    return tuple([limit for limit in limits if limit is not None])


def is_cached(headers: Mapping[str, str]) -> bool:
    """A cache has answered: the figures are of an earlier moment."""
    return (headers.get("age") or "0").strip() != "0"


def _plain(
    family: str, measure: str, texts: Mapping[str, str], headers: Mapping[str, str]
) -> StatedLimit | None:
    # ``100, 100;w=60``: earlier drafts of the IETF list the policies after the limit.
    first, _, rest = texts.get("limit", "").partition(",")
    first, _, of_first = first.partition(";")
    limit, remaining = _whole(first), _whole(texts.get("remaining", ""))
    window_s = _fields(f";{of_first};{rest}").get("window")
    reset_s = _seconds(texts.get("reset", ""), headers)
    return _checked(measure, limit, remaining, reset_s, window_s, refilled=family in _REFILLED)


def _structured(texts: Mapping[str, str]) -> StatedLimit | None:
    """``RateLimit: "default";r=50;t=30`` with its policy, or ``limit=100, remaining=50, reset=30``."""
    fields, policy = _fields(texts["ratelimit"]), _fields(texts.get("ratelimit-policy", ""))
    limit = fields.get("limit", policy.get("limit"))
    return _checked(
        "calls", limit, fields.get("remaining"), fields.get("reset"), policy.get("window"), refilled=False
    )


def _fields(text: str) -> dict[str, int]:
    """The fields of one policy. Empty for several policies: which one applies is not known."""
    found = [(_MEANINGS.get(name, name), int(number)) for name, number in _FIELD.findall(text)]
    return dict(found) if len(dict(found)) == len(found) else {}


def _checked(
    measure: str,
    limit: int | None,
    remaining: int | None,
    reset_s: float | None,
    window_s: float | None,
    *,
    refilled: bool,
) -> StatedLimit | None:
    if limit is None or remaining is None or not 1 <= limit <= MAX_AMOUNT or remaining > limit:
        return None
    if reset_s is not None and not 0 <= reset_s <= MAX_RESET_S:
        reset_s = None
    if window_s is None and refilled and reset_s and remaining < limit:
        # It is full in ``reset_s``, so this part of it takes that part of the window.
        window_s = reset_s * limit / (limit - remaining)
    known = window_s is not None and 0 < window_s <= MAX_RESET_S
    window_ms = max(1, round(window_s * 1000)) if known and window_s is not None else None
    return StatedLimit(measure, limit, remaining, reset_s, window_ms)


def _whole(text: str) -> int | None:
    text = text.strip()
    return int(text) if _WHOLE.fullmatch(text) else None


def _seconds(text: str, headers: Mapping[str, str]) -> float | None:
    """The time until a reset: a duration, seconds, or a moment by the vendor's own clock."""
    text = text.strip()
    if _NUMBER.fullmatch(text):
        seconds = float(text)
        return seconds if seconds < _MOMENT_S else max(0.0, seconds - _sent_at(headers))
    if _DURATION.fullmatch(text):
        # Whole microseconds, so that 9ms are 0.009 s.
        return round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)), 6)
    if "T" not in text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    try:
        return max(0.0, moment.timestamp() - _sent_at(headers))
    except (OverflowError, ValueError):
        return None


def _sent_at(headers: Mapping[str, str]) -> float:
    """When the vendor answered, by its own clock if it says so: that of a pod can be wrong."""
    # Only for a moment: it loads the mail library.
    from email.utils import parsedate_to_datetime

    try:
        return parsedate_to_datetime((headers.get("date") or "")[:MAX_LENGTH]).timestamp()
    except (ValueError, TypeError, IndexError, OverflowError):
        return time()
