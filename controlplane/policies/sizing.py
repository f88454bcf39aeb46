"""How many calls slots can finish, and how many slots calls need: Little's law."""

from collections.abc import Mapping
from typing import Any

import msgspec

from fuseboard.contract.protection import Bulkhead, slots_of
from fuseboard.contract.protection_fields import TIERS

#: The part of what the slots can finish that a local rate should admit.
MARGIN_PERCENT = 80


def suggested_rate(slots: int, mean_ms: float, *, window_s: int = 60) -> int:
    """Calls of one pod per window for a local rate. 50 slots and calls of 30 s: 80 per minute."""
    if slots < 1 or mean_ms <= 0:
        return 0
    return int(window_s * slots * 1000 / mean_ms * MARGIN_PERCENT / 100 + 1e-9)


def slots_needed(calls_per_s: float, mean_ms: float) -> float:
    """Calls that run at the same time on average."""
    return calls_per_s * mean_ms / 1000


def slots_of_tier(bulkhead: Mapping[str, Any], tier: str) -> int:
    """The slots that calls of a tier have while no other tier calls."""
    settings = msgspec.convert({**bulkhead}, Bulkhead)
    slots = slots_of(settings)
    together = settings.share_idle or len(slots) == 1
    return settings.max_concurrent if together else slots[TIERS.index(tier)]


def bulkhead_words(bulkhead: Mapping[str, Any], tier: str) -> str:
    """``50 calls at once per pod; more wait 5 s``, for calls of a tier."""
    settings, at = msgspec.convert({**bulkhead}, Bulkhead), TIERS.index(tier)
    calls = "calls" if settings.share_idle else f"{tier} calls"
    found = f"{slots_of_tier(bulkhead, tier):,} {calls} at once per pod"
    if settings.when_full[at] != "queue":
        return f"{found}; more are refused at once"
    wait_ms = settings.queue_timeout_ms
    if settings.adaptive:
        wait_ms = min(wait_ms, 2 * settings.target_wait_ms)
    return f"{found}; more wait {wait_ms / 1000:g} s"
