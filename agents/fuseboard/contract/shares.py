"""The part of a ``reserved`` limit that is spent without Redis, and how pods divide it.

A reserved share is a cell: the whole, halved ``level`` times, and one of the resulting parts. The whole
calls of cells that do not overlap add up to no more than the whole, for every limit at once. The
reason: the calls of a cell are a difference of two rounded numbers, and in the sum of such differences
the numbers in between cancel out.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta, Struct

from fuseboard.contract.policy import Limit, Policy, Tuning
from fuseboard.contract.words import Algorithm, FailurePolicy

#: Enough for a million pods with separate shares.
MAX_LEVEL = 20

#: The reserved part of a limit that does not set one.
RESERVED_PERCENT = 10

Level = Annotated[int, Meta(ge=0, le=MAX_LEVEL)]
Place = Annotated[int, Meta(ge=0, lt=2**MAX_LEVEL)]
Terms = Annotated[int, Meta(ge=0, le=2**53)]


class HeldShare(Struct, frozen=True, kw_only=True):
    """The reserved share that a pod spends from, as the pod reports it."""

    level: Level
    place: Place
    #: Rises whenever the pod gets another share. Older terms change nothing.
    terms: Terms


class ShareLease(Struct, frozen=True, kw_only=True):
    """A reserved share that belongs to a pod for a time, counted from when the pod asked."""

    level: Level
    place: Place
    terms: Terms
    remaining_ms: Annotated[int, Meta(ge=1, le=86_400_000)]


def calls_of(level: int, place: int, amount: int) -> int:
    """The whole calls of ``amount`` that a cell holds."""
    return ((place + 1) * amount >> level) - (place * amount >> level)


def reserved_calls(limit: Limit) -> int:
    """The calls per window that Redis never grants, for all pods together."""
    return _part(limit, limit.limit)


def reserved_burst(limit: Limit) -> int:
    """The calls at once that Redis never grants; token buckets only."""
    return _part(limit, limit.burst)


def _part(limit: Limit, amount: int) -> int:
    if limit.failure_policy is not FailurePolicy.RESERVED:
        return 0
    percent = limit.reserved_percent
    part = amount * (RESERVED_PERCENT if percent < 0 else percent) // 100
    return max(0, min(part, amount - 1))  # Redis can always grant one


def divides_what_is_left(limit: Limit) -> bool:
    """Whether pods without Redis divide what was left of the limit when Redis last answered."""
    divides = limit.failure_policy in (FailurePolicy.LOCAL_SHARE, FailurePolicy.RESERVED)
    return divides and limit.algorithm is Algorithm.FIXED_WINDOW and not limit.shadow


def settled(policy: Policy) -> Policy:
    """The policy with the reserved part of every limit computed.

    A share rests for ``share_rest_ms`` before another pod gets it, so that what was spent of it has
    left the window. A limit that remembers calls for longer has no reserved part, and neither has a
    calendar limit: pods divide what is left of it.
    """
    tuning = policy.tuning

    def all_of(limits: tuple[Limit, ...]) -> tuple[Limit, ...]:
        return tuple(settled_limit(limit, tuning) for limit in limits)

    return _replaced(
        policy,
        subject_limits=all_of(policy.subject_limits),
        service_limits=all_of(policy.service_limits),
        tiers=tuple(_replaced(tier, quotas=all_of(tier.quotas)) for tier in policy.tiers),
        dependencies=tuple(
            _replaced(dependency, vendor_limits=all_of(dependency.vendor_limits))
            for dependency in policy.dependencies
        ),
    )


def settled_limit(limit: Limit, tuning: Tuning) -> Limit:
    """One limit, as in ``settled``; the same object when nothing changes."""
    if limit.failure_policy is not FailurePolicy.RESERVED:
        return limit
    percent = limit.reserved_percent if limit.reserved_percent >= 0 else tuning.reserved_percent
    if limit.algorithm is Algorithm.FIXED_WINDOW or remembered_ms(limit) > tuning.share_rest_ms:
        percent = 0
    return _replaced(limit, reserved_percent=percent)


def remembered_ms(limit: Limit) -> int:
    """How long a call matters to the limit."""
    if limit.algorithm is Algorithm.TOKEN_BUCKET and limit.burst > limit.limit > 0:
        return limit.window_ms * limit.burst // limit.limit
    return limit.window_ms


S = TypeVar("S", bound=Struct)


def _replaced(whole: S, **parts: object) -> S:
    """Return this object when no part has changed."""
    if all(getattr(whole, name) == part for name, part in parts.items()):
        return whole
    return msgspec.structs.replace(whole, **parts)


class LocalAllowance(Struct, frozen=True, kw_only=True):
    """The part of a limit that one pod allows while Redis cannot be asked."""

    #: Calls per window; ``None`` when nothing is refused.
    calls: float | None
    #: Text for people: ``50 of 1,000 here``.
    words: str


def allowed_alone(limit: Limit, *, servers: int, share: HeldShare | None) -> LocalAllowance:
    """The part of a settled limit that a pod with this reserved share allows beside ``servers`` live pods."""
    if limit.shadow or limit.failure_policy is FailurePolicy.FAIL_OPEN:
        return LocalAllowance(
            calls=None, words=f"all, counted and reported later; the limit is {limit.limit:,}"
        )
    if limit.failure_policy is FailurePolicy.FAIL_CLOSED or limit.limit == 0:
        return LocalAllowance(calls=0.0, words=f"none of {limit.limit:,} here")
    fair = limit.limit / max(1, servers)
    if divides_what_is_left(limit):
        return LocalAllowance(calls=fair, words=f"at most {max(1, int(fair)):,} of {limit.limit:,} here")
    if limit.failure_policy is FailurePolicy.RESERVED:
        whole = reserved_calls(limit)
        if share is None:
            return LocalAllowance(
                calls=0.0, words=f"0 of {limit.limit:,} (no share of the reserved {whole:,} assigned)"
            )
        calls = calls_of(share.level, share.place, whole)
        return LocalAllowance(calls=float(calls), words=f"{calls:,} of {limit.limit:,} here")
    if fair >= 1:
        return LocalAllowance(calls=fair, words=f"{int(fair):,} of {limit.limit:,} here")
    every_s = 3 * limit.window_ms / 1000 / fair
    return LocalAllowance(calls=fair, words=f"1 call every {every_s:,.0f} s (share of {limit.limit:,})")
