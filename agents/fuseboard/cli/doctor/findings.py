"""What a check found: one line, and what to do about it."""

from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    OK = "ok"
    #: Works, and will not on some bad day.
    WARN = "warn"
    FAIL = "fail"
    #: Could not be asked.
    SKIP = "skip"


class Finding(Struct, frozen=True):
    check: str
    level: Level
    says: str
    do: str = ""


def ok(check: str, says: str) -> Finding:
    return Finding(check, Level.OK, says)


def warn(check: str, says: str, do: str) -> Finding:
    return Finding(check, Level.WARN, says, do)


def fail(check: str, says: str, do: str) -> Finding:
    return Finding(check, Level.FAIL, says, do)


def skip(check: str, why: str) -> Finding:
    return Finding(check, Level.SKIP, why)


#: Clocks that differ by more are worth a word, and by more than this a failure.
CLOCK_WARN_S, CLOCK_FAIL_S = 1.0, 30.0


def clock_finding(check: str, whose: str, ahead_s: float, uncertain_s: float) -> Finding:
    """``ahead_s``: this machine's clock minus theirs."""
    off = max(0.0, abs(ahead_s) - uncertain_s)
    says = f"this clock is {abs(ahead_s):.3f} s {'ahead of' if ahead_s > 0 else 'behind'} {whose}"
    do = "synchronise the clocks (NTP): calendar quotas decided without Redis begin and end by this one"
    if off > CLOCK_FAIL_S:
        return fail(check, says, do)
    return warn(check, says, do) if off > CLOCK_WARN_S else ok(check, says)
