"""How many calls slots can finish, and how many slots calls need: Little's law."""

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
