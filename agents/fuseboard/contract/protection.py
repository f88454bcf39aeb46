"""How a pod protects itself: everything is off where it is absent.

A part of the policy document. The control plane expands presets, so that a pod needs none. Durations are
whole milliseconds, shares whole percent.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fuseboard.contract.words import MAX_LIMIT, CallTier, Jitter, WhenFull

Millis = Annotated[int, Meta(ge=1, le=600_000)]
MillisOrNone = Annotated[int, Meta(ge=0, le=600_000)]
Percent = Annotated[int, Meta(ge=1, le=100)]
QueueLength = Annotated[int, Meta(ge=0, le=10_000)]
#: Store time in microseconds; 0 is the past.
Moment = Annotated[int, Meta(ge=0, le=2**53)]


class ProtectionError(ValueError):
    """Settings that contradict each other. The message names the field."""


# One dependency


class Bulkhead(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Slots for calls of one pod to one dependency. Tuples are: critical, standard, optional."""

    max_concurrent: Annotated[int, Meta(ge=1, le=10_000)] = 50
    #: How ``max_concurrent`` is divided; the sum is 100.
    shares: tuple[Percent, Percent, Percent] = (50, 35, 15)
    #: The most calls that wait for a slot.
    queues: tuple[QueueLength, QueueLength, QueueLength] = (10, 12, 6)
    #: The longest wait for a slot.
    queue_timeout_ms: MillisOrNone = 5_000
    when_full: tuple[WhenFull, WhenFull, WhenFull] = (WhenFull.QUEUE, WhenFull.ABORT, WhenFull.DISCARD)
    #: A call takes a free slot of a lower tier while no call of that tier waits.
    borrow: bool = False
    #: The queues are as long as ``target_wait_ms`` allows at the measured service rate, not ``queues``.
    adaptive: bool = False
    target_wait_ms: Annotated[int, Meta(ge=1, le=60_000)] = 100
    #: The lower tiers have fewer slots while the pod's CPU or memory is short.
    resize_under_pressure: bool = False
    #: While one tier calls, it has all slots: the shares hold from the first call of another tier on, until
    #: that was silent for 60 s.
    share_idle: bool = False


#: With fewer slots, tiers share them: each needs at least one.
FEWEST_FOR_TIERS = 3


def slots_of(settings: Bulkhead) -> tuple[int, ...]:
    """The slots of each tier by largest remainder, at least one; or one number, for all tiers together."""
    total = settings.max_concurrent
    if total < FEWEST_FOR_TIERS:
        return (total,)
    exact = [total * share for share in settings.shares]
    slots = [part // 100 for part in exact]
    # Ties go to the smaller share.
    places = sorted(range(3), key=lambda at: (-(exact[at] % 100), settings.shares[at], -at))
    for at in places[: total - sum(slots)]:
        slots[at] += 1
    for at in range(3):
        if slots[at] == 0:
            slots[slots.index(max(slots))] -= 1
            slots[at] = 1
    return tuple(slots)


class LocalRate(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The most calls of one pod to one dependency. Protects the pod: it is not the vendor's limit."""

    limit: Annotated[int, Meta(ge=1, le=MAX_LIMIT)] = 80
    window_ms: Annotated[int, Meta(ge=1_000, le=3_600_000)] = 60_000


class Retry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a failed call is made again, and how often at most."""

    #: All attempts of one call, the first included.
    attempts: Annotated[int, Meta(ge=1, le=5)] = 3
    #: The wait before the attempt n + 1 is at most ``min(cap_ms, base_ms * 2 ** (n - 1))``.
    base_ms: Annotated[int, Meta(ge=1, le=60_000)] = 500
    cap_ms: Millis = 5_000
    jitter: Jitter = Jitter.FULL
    #: Retries per 100 first calls of the last 10 s.
    budget_percent: Annotated[int, Meta(ge=0, le=100)] = 10
    #: Retries per 1,000 s that are allowed besides, so that a pod with few calls can retry.
    floor_milli: Annotated[int, Meta(ge=0, le=10_000)] = 1_000
    #: The most attempts of the whole fleet, in percent of its first calls.
    load_factor_percent: Annotated[int, Meta(ge=100, le=200)] = 120
    #: The wait after a 429 that names none.
    default_retry_after_ms: Annotated[int, Meta(ge=0, le=3_600_000)] = 0
    #: Repeating a call does no harm, even one that may have arrived.
    idempotent: bool = False


class CallProtection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The protection of one pod from one dependency."""

    #: The tier of calls whose caller names none.
    tier: CallTier = CallTier.STANDARD
    #: How long a call should take; 0 for unknown. Calls are shed when p95 is near it.
    sla_ms: MillisOrNone = 0
    #: The longest call of each tier: critical, standard, optional. 0 is the timeout of the dependency.
    timeouts_ms: tuple[MillisOrNone, MillisOrNone, MillisOrNone] = (0, 0, 0)
    bulkhead: Bulkhead | None = None
    local_rate: LocalRate | None = None
    retry: Retry | None = None


# One pod


class Shedding(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a pod refuses requests because it is overloaded."""

    #: Refuse while more calls than this wait.
    queue_max: Annotated[int, Meta(ge=1, le=100_000)] = 100
    #: Refuse while p95 is above this share of the route's SLA.
    p95_percent: Annotated[int, Meta(ge=10, le=200)] = 90
    #: Above this pressure, in percent, refuse the tenants of the lowest tiers.
    shed_at: Annotated[int, Meta(ge=10, le=100)] = 70
    #: Above this pressure, refuse all but the highest tier.
    shed_hard_at: Annotated[int, Meta(ge=10, le=100)] = 90


class Readiness(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a pod under pressure asks for no new traffic. A gateway must agree."""

    #: The largest share of a service that may be unready at once.
    unready_percent: Annotated[int, Meta(ge=0, le=50)] = 25
    #: How long the pressure lasts first, and how long it is low before the pod is ready again.
    hold_ms: Annotated[int, Meta(ge=1_000, le=300_000)] = 10_000


class Route(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Requests that match ``pattern``, like ``POST /v1/*``."""

    pattern: Annotated[str, Meta(min_length=1, max_length=200)]
    #: How long a request should take.
    sla_ms: Millis


class Observe(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Until when a part decides and counts, but refuses nothing."""

    shedding_until_us: Moment = 0
    bulkhead_until_us: Moment = 0
    local_rate_until_us: Moment = 0
    retry_until_us: Moment = 0


class PodProtection(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The protection of a pod of this environment, whatever it calls."""

    shedding: Shedding | None = None
    readiness: Readiness | None = None
    #: The first one that matches applies.
    routes: Annotated[tuple[Route, ...], Meta(max_length=200)] = ()
    #: The most retries of one process, to all dependencies together.
    retries_per_s: Annotated[int, Meta(ge=0, le=1_000)] = 10
    observe: Observe = msgspec.field(default_factory=Observe)


def check_call_protection(where: str, protection: CallProtection) -> None:
    """Raise ``ProtectionError`` for values that contradict each other; ``where`` is the path before them."""
    bulkhead, retry = protection.bulkhead, protection.retry
    if bulkhead is not None and sum(bulkhead.shares) != 100:
        raise ProtectionError(
            f"{where}.bulkhead.shares: the sum must be 100 percent, not {sum(bulkhead.shares)}"
        )
    if retry is not None and retry.cap_ms < retry.base_ms:
        raise ProtectionError(f"{where}.retry.cap_ms: must be at least base_ms, {retry.base_ms}")


def check_pod_protection(where: str, protection: PodProtection) -> None:
    """Raise ``ProtectionError`` for values that contradict each other; ``where`` is the path before them."""
    shedding = protection.shedding
    if shedding is not None and shedding.shed_hard_at < shedding.shed_at:
        raise ProtectionError(f"{where}.shedding.shed_hard_at: must be at least shed_at, {shedding.shed_at}")
    patterns = [route.pattern for route in protection.routes]
    for pattern in patterns:
        if patterns.count(pattern) > 1:
            raise ProtectionError(f"{where}.routes: {pattern!r} is listed twice")
