"""The rate of a limit in words."""

from datetime import datetime

from controlplane.phrases import window_words
from controlplane.policies.fields import Fields
from controlplane.policies.limits import full_columns


def rate_words(columns: Fields, *, kind_of_window: bool = True) -> str:
    """``600 per min, burst 100``; ``50 calls at once`` for concurrency; ``600 per min, sliding window``.

    A token bucket always has its burst: a burst of 1 refuses nearly every pair of calls at the same moment.
    """
    full = full_columns(columns)
    if limits_calls_at_once(columns):
        return f"{full['limit']:,} {'call' if full['limit'] == 1 else 'calls'} at once"
    window = full["period"] or window_words(full["window_s"])
    rate = f"{full['limit']:,} per {window}"
    if full["algorithm"] == "token_bucket":
        return f"{rate}, burst {full['burst']:,}"
    return f"{rate}, {full['algorithm'].replace('_', ' ')}" if kind_of_window else rate


def limits_calls_at_once(columns: Fields) -> bool:
    """Whether the limit is about calls at the same time: it has no rate."""
    return bool(full_columns(columns)["algorithm"] == "concurrency")


def ends_words(columns: Fields) -> str:
    """``ends 23 Nov 18:00 UTC, then 5 per min, burst 1``, for a temporary quota of a tenant."""
    after = columns.get("returns_to")
    then = rate_words(after) if after else "the quota of its tier applies"
    return f"ends {datetime.fromisoformat(columns['expires_at']):%-d %b %H:%M} UTC, then {then}"
