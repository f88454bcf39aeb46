"""The configuration a pod decides by.

It has two parts, so that 100,000 tenants cost a pod only those it serves: one ``Policy``
document per environment (tiers, dependencies, overrides, tuning), and one ``TenantRecord``
per tenant, fetched on first use. Both move together under one ``ConfigHead``.

Unknown fields are ignored (an older agent reads a newer document); unknown words of an
enumeration refuse the document whole, and the last good one stays in force.
"""

from functools import lru_cache
from hashlib import sha256
from typing import Annotated
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec
from msgspec import Meta, Struct

from fuseboard.contract.words import (
    MAX_LIMIT,
    Algorithm,
    Dimension,
    FailurePolicy,
    OverrideMode,
    Period,
    Slug,
    Subject,
)

Count = Annotated[int, Meta(ge=0, le=MAX_LIMIT)]
Positive = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
#: Milliseconds, up to 400 days.
Milliseconds = Annotated[int, Meta(ge=1, le=400 * 86_400_000)]
Percent = Annotated[int, Meta(ge=1, le=100)]


#: Levels above a tenant: organisation and team, of a user.
MAX_PARENTS = 2

#: Calls leased in advance are made within this time.
LEASE_MS = 500


class Limit(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """At most ``limit`` calls per ``window_ms``. A limit of 0 refuses every call."""

    name: Slug
    limit: Count
    #: Concurrency: how long a slot is leased. Fixed windows: the nominal length, for headers.
    window_ms: Milliseconds
    algorithm: Algorithm = Algorithm.TOKEN_BUCKET
    #: Calls that may be made at once; token buckets only.
    burst: Positive = 1
    failure_policy: FailurePolicy = FailurePolicy.FAIL_OPEN
    #: Decide and count, but never refuse.
    shadow: bool = False
    #: Fixed windows only, and required there.
    period: Period | None = None
    #: An IANA time zone: where the period's midnight is.
    time_zone: Annotated[str, Meta(max_length=64)] = "UTC"
    #: What of a call is counted: ``calls``, or any other cost the caller states (``tokens``, ``micro_usd``).
    measure: Slug = "calls"
    #: Count apart for each value of these.
    per: tuple[Dimension, ...] = ()
    #: Only for endpoints that match one of these patterns, like ``POST /v1/*``; empty for all.
    endpoints: tuple[Annotated[str, Meta(min_length=1, max_length=200)], ...] = ()
    #: In a tier: a quota on what its tenants may ask of this dependency, decided with its breaker.
    dependency: Annotated[str, Meta(max_length=64)] = ""
    #: Lease calls in advance to servers that ask more often than this per second. 0 for the usual
    #: threshold, and never for a sliding window, which pays for leases with a longer window.
    lease_above: Count = 0
    #: Say so when this much of the limit is spent; 0 never.
    warn_percent: Annotated[int, Meta(ge=0, le=100)] = 0
    #: ``reserved`` only: the part of it that servers spend without Redis; -1 for the fleet's usual.
    reserved_percent: Annotated[int, Meta(ge=-1, le=100)] = -1


def lease_length_ms(limit: Limit) -> int:
    """How long leased calls of it may be held: half a second, or a twentieth of a shorter window."""
    return max(1, min(LEASE_MS, limit.window_ms // 20))


class Tier(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A named class of tenants: what they get unless they have quotas of their own."""

    name: Slug
    quotas: tuple[Limit, ...] = ()
    #: 0 to 100; under overload the lowest is shed first.
    priority: Annotated[int, Meta(ge=0, le=100)] = 50


class TenantRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a pod must know of one tenant."""

    tier: Slug
    suspended: bool = False
    #: Quotas that replace those of the tier with the same name.
    quotas: tuple[Limit, ...] = ()
    #: The tenants it belongs to, the topmost first: an organisation, a team. What it asks for is
    #: charged to their quotas too.
    parents: Annotated[tuple[Subject, ...], Meta(max_length=MAX_PARENTS)] = ()


class BreakerPolicy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """When a dependency's breaker trips, and how it comes back."""

    #: Trip after this many failures since the last success; 0 switches the condition off.
    consecutive_failures: Count = 5
    #: Trip when this share of the calls in the window failed, given ``minimum_calls``.
    failure_percent: Percent = 50
    #: Trip when this share of the calls in the window was slower than ``slow_ms``.
    slow_percent: Percent = 100
    slow_ms: Milliseconds = 10_000
    minimum_calls: Positive = 20
    #: The window of the two ratios, in seconds.
    window_s: Annotated[int, Meta(ge=1, le=600)] = 30
    #: How long it stays open the first time; doubles with every failed recovery up to the maximum.
    open_ms: Milliseconds = 60_000
    open_max_ms: Milliseconds = 600_000
    #: Half-open permits that may exist at once.
    probes: Annotated[int, Meta(ge=1, le=100)] = 3
    #: A permit not reported within this time is free again.
    probe_lease_ms: Milliseconds = 30_000
    #: Successful probes that close it.
    successes_to_close: Annotated[int, Meta(ge=1, le=100)] = 2
    #: After it closed, let traffic grow from a tenth to all over this time; 0 at once.
    slow_start_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0
    #: Servers that must have seen failures before the fleet's breaker trips, when as many had calls.
    minimum_servers: Annotated[int, Meta(ge=1, le=100)] = 2


class Override(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A human's temporary hold on a breaker, as pods see it."""

    mode: OverrideMode
    #: The revision that made it: newer replaces older.
    revision: int
    #: Store time in microseconds since the epoch at which it ends by itself.
    expires_at_us: int
    reason: str
    actor: str


class Dependency(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Something called over the network."""

    name: Slug
    vendor_limits: tuple[Limit, ...] = ()
    breaker: BreakerPolicy = msgspec.field(default_factory=BreakerPolicy)
    timeout_ms: Milliseconds = 30_000
    override: Override | None = None
    #: The revision of the last reset by a human: a pod that sees it rise forgets what it held.
    reset_revision: int = 0


class Tuning(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How agents behave towards the store and the control plane: one place for the whole fleet."""

    #: A decision waits this long for Redis, plus scheduling.
    store_deadline_us: Annotated[int, Meta(ge=500, le=50_000)] = 5_000
    #: Failures (refused, reset, error) within ``failure_window_ms`` that switch a server to local.
    store_failures: Annotated[int, Meta(ge=1, le=1000)] = 3
    failure_window_ms: Milliseconds = 5_000
    #: Missed deadlines within ``timeout_window_ms`` that do the same.
    store_timeouts: Annotated[int, Meta(ge=1, le=10_000)] = 100
    timeout_window_ms: Milliseconds = 10_000
    #: How often a server in local mode looks whether Redis is back (jittered by 20 percent).
    probe_interval_ms: Milliseconds = 10_000
    #: How long the shared part grows from 10 to 100 percent after Redis came back.
    ramp_ms: Milliseconds = 30_000
    #: Outcomes are reported at the latest after this time.
    report_interval_ms: Milliseconds = 100
    #: The part of ``reserved`` limits that servers spend without Redis, in pieces leased to them.
    reserved_percent: Annotated[int, Meta(ge=0, le=100)] = 10
    #: How long a piece is a server's after the last beat that renewed it.
    share_lease_ms: Annotated[int, Meta(ge=100, le=86_400_000)] = 900_000
    #: How long a piece rests before another server gets it. ``reserved`` limits that remember for
    #: longer have no such part.
    share_rest_ms: Annotated[int, Meta(ge=1, le=86_400_000)] = 60_000
    #: What was decided without Redis and not told yet: limits counted by one server, and the size
    #: of a file of its journal.
    journal_keys: Annotated[int, Meta(ge=1, le=50_000)] = 50_000
    journal_bytes: Annotated[int, Meta(ge=4_096, le=8 * 1024 * 1024)] = 8 * 1024 * 1024


class Policy(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything but the tenants, for one environment."""

    environment: Slug
    #: The tier of tenants nobody has registered.
    default_tier: Slug
    #: Limits of requests that have no tenant, by address or key: ``per`` must name one.
    subject_limits: tuple[Limit, ...] = ()
    tiers: tuple[Tier, ...]
    dependencies: tuple[Dependency, ...] = ()
    tuning: Tuning = msgspec.field(default_factory=Tuning)


class ConfigHead(Struct, frozen=True, kw_only=True, order=True):
    """Which configuration: a higher epoch is newer, then a higher revision.

    The epoch rises when a database is restored, so that a lower revision can win once.
    """

    epoch: int
    revision: int
    #: ``hash_of`` the policy's bytes.
    hash: str


class PolicyError(ValueError):
    """A document that contradicts itself; the message names the field."""


_encoder = msgspec.json.Encoder(order="deterministic")
_policy_decoder = msgspec.json.Decoder(Policy)
_tenant_decoder = msgspec.json.Decoder(TenantRecord)


def encode_policy(policy: Policy) -> bytes:
    """The one spelling of a policy: the same policy always gives the same bytes."""
    return _encoder.encode(policy)


def decode_policy(document: bytes | msgspec.Raw) -> Policy:
    """Parse and check a policy whole.

    Raises ``msgspec.DecodeError`` or ``PolicyError``; never returns half a policy.
    """
    policy = _policy_decoder.decode(document)
    _refuse_duplicates("tiers", [tier.name for tier in policy.tiers])
    _refuse_duplicates("dependencies", [dependency.name for dependency in policy.dependencies])
    if policy.default_tier not in {tier.name for tier in policy.tiers}:
        raise PolicyError(f"default_tier: there is no tier {policy.default_tier!r}")
    for tier in policy.tiers:
        _check_limits(f"tiers.{tier.name}.quotas", tier.quotas)
    _check_limits("subject_limits", policy.subject_limits)
    for limit in policy.subject_limits:
        if not limit.per:
            raise PolicyError(f"subject_limits.{limit.name}.per: say what to count by")
    for dependency in policy.dependencies:
        _check_limits(f"dependencies.{dependency.name}.vendor_limits", dependency.vendor_limits)
    return policy


def encode_tenant(record: TenantRecord) -> bytes:
    return _encoder.encode(record)


def decode_tenant(document: bytes | msgspec.Raw) -> TenantRecord:
    record = _tenant_decoder.decode(document)
    _check_limits("quotas", record.quotas)
    _refuse_duplicates("parents", list(record.parents))
    return record


def hash_of(document: bytes) -> str:
    """SHA-256 of a policy's bytes, the first 16 hexadecimal digits."""
    return sha256(document).hexdigest()[:16]


#: Beyond this, microseconds times calls are no longer exact in a double.
_EXACT = 2**53


def _check_limits(where: str, limits: tuple[Limit, ...]) -> None:
    _refuse_duplicates(where, [limit.name for limit in limits])
    for limit in limits:
        field = f"{where}.{limit.name}"
        if limit.algorithm is not Algorithm.TOKEN_BUCKET and limit.burst != 1:
            raise PolicyError(f"{field}.burst: only a token bucket has one")
        if max(limit.burst, limit.limit) * limit.window_ms * 1000 > _EXACT and (
            limit.algorithm is Algorithm.TOKEN_BUCKET
        ):
            raise PolicyError(f"{field}.window_ms: too long for this many calls; use a fixed_window")
        if (limit.algorithm is Algorithm.FIXED_WINDOW) != (limit.period is not None):
            raise PolicyError(f"{field}.period: belongs to a fixed_window, and to every one")
        if not _is_time_zone(limit.time_zone):
            raise PolicyError(f"{field}.time_zone: {limit.time_zone!r} is not known here")


@lru_cache(maxsize=1024)
def _is_time_zone(name: str) -> bool:
    if name == "UTC":
        return True
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return False
    return True


def _refuse_duplicates(where: str, names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise PolicyError(f"{where}: {name!r} stands twice")
        seen.add(name)
