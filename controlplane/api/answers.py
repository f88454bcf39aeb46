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


class QuotaOut(LimitOut):
    #: Empty when it counts requests to the service itself.
    dependency: str


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
    quotas: list[QuotaOut]


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


class TransitionOut(Schema):
    id: int
    dependency: str
    generation: int
    at: datetime
    from_state: str
    to_state: str
    cause: str
    #: The person who held or reset it; empty when the fleet tripped it.
    actor: str
    #: The server whose report decided it; empty for the control plane.
    server: str


class ConfigurationOut(Schema):
    """What belongs to no tier, tenant or dependency."""

    environment: str
    epoch: int
    revision: int
    default_tier: str
    tuning: dict[str, int]


class TenantFiguresOut(Schema):
    tenant: str
    requests_per_s: float
    refused_per_s: float


class DependencyFiguresOut(Schema):
    calls_per_s: float
    failures_per_s: float
    slow_per_s: float
    refused_per_s: float


class StoreFiguresOut(Schema):
    p50_us: int | None
    p99_us: int | None
    timeouts_per_s: float
    errors_per_s: float


class FleetOut(Schema):
    """Rates over the whole fleet, smoothed over about 5 s."""

    revision: int
    #: Live servers that decide by that revision or a newer one, and all live servers.
    confirmed: int
    servers: int
    requests_per_s: float
    refused_per_s: float
    refused_by_reason: dict[str, float]
    decided_locally_per_s: float
    unknown_tenants_per_s: float
    #: The busiest.
    tenants: list[TenantFiguresOut]
    dependencies: dict[str, DependencyFiguresOut]
    store: StoreFiguresOut
    frozen: bool
    #: Gateways whose figures are in here; 0 means that nobody is measuring.
    gateways: int


class ServerOut(Schema):
    name: str
    service: str
    zone: str
    agent_version: str
    state: str
    mode: str
    mode_since: datetime
    mode_cause: str
    epoch: int
    revision: int
    config_status: str
    config_source: str
    config_error: str
    started_at: datetime
    last_seen_at: datetime
    calls_per_s: float
    redis_p99_us: int | None
    breakers: list[dict[str, Any]]


class EntryOut(Schema):
    id: int
    at: datetime
    actor: str
    role: str
    origin: str
    action: str
    target_kind: str
    target_name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str
    epoch: int | None
    revision: int | None


class RevisionOut(Schema):
    revision: int


class TenantPage(Schema):
    items: list[TenantOut]
    #: Send it as ``after`` for the next page; null at the end.
    next: str | None


class EntryPage(Schema):
    items: list[EntryOut]
    next: int | None


class TransitionPage(Schema):
    items: list[TransitionOut]
    next: int | None


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
