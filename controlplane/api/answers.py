"""What goes out."""

from datetime import datetime
from typing import Any, ClassVar, Literal

from ninja import Schema


class LimitOut(Schema):
    name: str
    algorithm: str
    limit: int
    window_s: int
    burst: int
    failure_policy: str
    shadow: bool
    #: Empty for all but fixed windows.
    period: str
    time_zone: str
    measure: str
    per: list[str]
    endpoints: list[str]
    warn_percent: int
    lease_above: int
    #: -1 for the fleet's usual.
    reserved_percent: int


class QuotaOut(LimitOut):
    #: Empty when it counts requests to the service itself.
    dependency: str


class TenantQuotaOut(QuotaOut):
    #: When it ends by itself; null when it stays.
    expires_at: datetime | None


class TierOut(Schema):
    name: str
    title: str
    priority: int
    version: int
    quotas: list[QuotaOut]


class TenantOut(Schema):
    key: str
    title: str
    tier: str
    suspended: bool
    version: int
    #: The tenant's own; its tier's quotas of other names apply as well.
    quotas: list[TenantQuotaOut]


class OverrideOut(Schema):
    dependency: str
    mode: str
    reason: str
    actor: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    ended_by: str
    revision: int


class DependencyOut(Schema):
    name: str
    title: str
    kind: str
    owner: str
    fallback_note: str
    runbook: str | None
    timeout_ms: int
    breaker: dict[str, int]
    vendor_limits: list[LimitOut]
    version: int


class BreakerOut(Schema):
    dependency: str
    title: str
    kind: str
    owner: str
    fallback_note: str
    runbook: str | None
    version: int
    #: ``unknown`` when neither Redis nor the history knows it.
    state: str
    since: datetime | None
    until: datetime | None
    cause: str
    #: ``redis``; ``history`` when Redis does not answer: the last transition that was stored.
    source: Literal["redis", "history"]
    override: OverrideOut | None
    policy: dict[str, int]
    vendor_limits: list[LimitOut]


class ConfigurationOut(Schema):
    """What belongs to no tier, tenant or dependency."""

    environment: str
    epoch: int
    revision: int
    default_tier: str
    tuning: dict[str, int]


class RevisionOut(Schema):
    revision: int


class TenantPage(Schema):
    items: list[TenantOut]
    #: Send it as ``after`` for the next page; null at the end.
    next: str | None


class RunbookOut(Schema):
    slug: str
    title: str
    body: str
    source: str


class TokenOut(Schema):
    """Of a token everything but the token."""

    selector: str
    name: str
    environment: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


class ApiTokenOut(TokenOut):
    scope: Literal["read", "operate", "admin"]


class NewTokenOut(Schema):
    secrets: ClassVar[frozenset[str]] = frozenset({"token"})

    selector: str
    #: Shown this once; a repetition with the same Idempotency-Key says null.
    token: str | None
    expires_at: datetime


class Done(Schema):
    """It was done; the audit has it."""

    done: Literal[True] = True


class EffectiveOut(Schema):
    """One value that decides about a tenant's requests."""

    name: str
    value: Any
    source: str
    #: Name of the tenant or the tier it stands at.
    at: str
    #: What the tier says, where the tenant's own stands in its place.
    instead_of: Any
    until: datetime | None
    by: str
    revision: int | None
    changed_at: datetime | None
