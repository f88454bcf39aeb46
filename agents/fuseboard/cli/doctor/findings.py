"""The result of a check: one line, and what to do about it."""

from enum import StrEnum

from msgspec import Struct


class Level(StrEnum):
    OK = "ok"
    #: Works now, but will fail in some outage.
    WARN = "warn"
    FAIL = "fail"
    #: Could not be checked.
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


#: Clocks that differ by more get a warning; by more than the second, a failure.
CLOCK_WARN_S, CLOCK_FAIL_S = 1.0, 30.0


def clock_finding(check: str, whose: str, ahead_s: float, uncertain_s: float) -> Finding:
    """``ahead_s``: the clock of this machine minus the other one."""
    off = max(0.0, abs(ahead_s) - uncertain_s)
    says = f"this clock is {abs(ahead_s):.3f} s {'ahead of' if ahead_s > 0 else 'behind'} {whose}"
    do = "synchronize the clocks (NTP): without Redis, calendar quotas begin and end by this one"
    if off > CLOCK_FAIL_S:
        return fail(check, says, do)
    return warn(check, says, do) if off > CLOCK_WARN_S else ok(check, says)
