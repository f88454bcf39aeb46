"""Limits: what they count, and what in them cannot be true."""

from functools import lru_cache
from typing import Annotated

from msgspec import Meta, Struct

from fuseboard.contract.words import MAX_LIMIT, Algorithm, Dimension, FailurePolicy, Period, Slug

Count = Annotated[int, Meta(ge=0, le=MAX_LIMIT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
#: Milliseconds, up to 400 days.
Milliseconds = Annotated[int, Meta(ge=1, le=400 * 86_400_000)]
Percent = Annotated[int, Meta(ge=1, le=100)]

#: The ``service`` of a limit that counts the requests of every service.
EVERY_SERVICE = "*"


def service_rule(name: str) -> str:
    """The name of a limit of all callers in decisions and counters. No quota can have this name."""
    return f"{EVERY_SERVICE}/{name}"


def is_service_rule(rule: str) -> bool:
    return rule.startswith(f"{EVERY_SERVICE}/")


#: Leased calls are made within this time.
LEASE_MS = 500


class Limit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most ``limit`` calls per ``window_ms``. A limit of 0 refuses every call."""

    name: Slug
    limit: Count
    #: Concurrency: when a slot expires. Fixed windows: the nominal length, for headers.
    window_ms: Milliseconds
    algorithm: Algorithm = Algorithm.TOKEN_BUCKET
    #: Calls that may be made at once; token buckets only.
    burst: Positive = 1
    failure_policy: FailurePolicy = FailurePolicy.FAIL_OPEN
    #: Decide and count, but never refuse.
    shadow: bool = False
    #: Required for fixed windows, and for them only.
    period: Period | None = None
    #: An IANA time zone, which decides when the period begins.
    time_zone: Annotated[str, Meta(max_length=64)] = "UTC"
    #: The cost that is counted: ``calls``, or another one that the caller states (``tokens``, ``micro_usd``).
    measure: Slug = "calls"
    #: Count separately for each value of these.
    per: tuple[Dimension, ...] = ()
    #: Only for endpoints that match one of these patterns, like ``POST /v1/*``; empty for all.
    endpoints: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] = ()
    #: In a tier: a quota on its tenants' calls to this dependency, decided with its breaker.
    dependency: Annotated[str, Meta(max_length=64)] = ""
    #: Lease calls in advance to pods that make more calls per second than this. 0 is the usual threshold, and
    #: means never for a sliding window, which pays for leases with a longer window.
    lease_above: Count = 0
    #: Warn when this much of the limit is spent; 0 for never.
    warn_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    #: ``reserved`` only: the part of it that pods spend without Redis; -1 for the fleet's default.
    reserved_percent: Annotated[int, Meta(ge=-1, le=100)] = -1
    #: In ``Policy.service_limits``: the service whose requests it counts; ``*`` for every service.
    service: Annotated[str, Meta(max_length=64)] = ""


#: Decisions per second across the fleet above which a key is hot, unless the limit sets a threshold.
HOT_PER_S = 5_000


def lease_length_ms(limit: Limit) -> int:
    """How long leased calls may be held: half a second, or a twentieth of a shorter window."""
    return max(1, min(LEASE_MS, limit.window_ms // 20))


class PolicyError(ValueError):
    """A document that contradicts itself. The message names the field."""


#: Above this, microseconds times calls are no longer exact in a double.
_EXACT = 2**53


def check_limits(where: str, limits: tuple[Limit, ...]) -> None:
    """Raises ``PolicyError`` for fields that contradict each other, and for two limits of one name."""
    refuse_duplicates(where, [limit.name for limit in limits])
    for limit in limits:
        field = f"{where}.{limit.name}"
        if limit.algorithm is not Algorithm.TOKEN_BUCKET and limit.burst != 1:
            raise PolicyError(f"{field}.burst: only a token bucket has a burst")
        if max(limit.burst, limit.limit) * limit.window_ms * 1000 > _EXACT and (
            limit.algorithm is Algorithm.TOKEN_BUCKET
        ):
            raise PolicyError(f"{field}.window_ms: too long for this many calls; use a fixed_window")
        if (limit.algorithm is Algorithm.FIXED_WINDOW) != (limit.period is not None):
            raise PolicyError(f"{field}.period: required for a fixed_window, and only there")
        if not is_time_zone(limit.time_zone):
            raise PolicyError(f"{field}.time_zone: {limit.time_zone!r} is not known here")


@lru_cache(maxsize=1024)
def is_time_zone(name: str) -> bool:
    if name == "UTC":
        return True
    # Only for a limit of another zone: it is half a megabyte.
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def refuse_duplicates(where: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PolicyError(f"{where}: {name!r} is listed twice")
        seen.add(name)
