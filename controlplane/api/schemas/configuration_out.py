"""Responses about the configuration."""

from datetime import datetime
from typing import Any, ClassVar, Literal

from ninja import Schema

from controlplane.api.schemas import FromObject
from controlplane.api.schemas.limits import LimitOut, QuotaOut, TenantQuotaOut, ValuesOut
from controlplane.api.schemas.protection import CallProtectionOut, PodProtectionOut
from controlplane.breakers.models import Override
from controlplane.breakers.tickets import ticket_url
from controlplane.policies.breaker_advice import advice_about
from controlplane.policies.fields import dependency_fields
from controlplane.policies.latency_advice import advice_about_latency
from controlplane.policies.models import BREAKER_RANGES, Dependency, Tenant
from controlplane.policies.protection import CALL, completed


class FollowersOut(Schema):
    """How many limits of each kind follow a template."""

    limits: int
    tiers: int
    tenants: int
    dependencies: int
    #: Limits of callers without a tenant.
    subject_limits: int


class TemplateOut(ValuesOut):
    title: str
    version: int
    followers: FollowersOut


class FollowerOut(Schema):
    """A limit that follows a template."""

    kind: Literal["tier", "dependency", "environment", "tenant"]
    name: str
    limit: str
    #: The values that override the template.
    own: dict[str, Any]


class TierOut(Schema):
    name: str
    title: str
    priority: int
    wait_ms: int
    version: int
    quotas: list[QuotaOut]


class TenantOut(FromObject):
    key: str
    title: str
    tier: str
    #: Its parent tenant, whose quotas its requests spend too; empty for none.
    parent: str
    suspended: bool
    version: int
    #: The tenant's own quotas; quotas of other names come from its tier.
    quotas: list[TenantQuotaOut]

    @staticmethod
    def resolve_tier(row: Tenant) -> str:
        return row.tier.name


class OverrideOut(FromObject):
    dependency: str
    mode: str
    reason: str
    actor: str
    created_at: datetime
    expires_at: datetime
    ended_at: datetime | None
    ended_by: str
    revision: int
    #: The ticket as it was typed; empty for none.
    ticket: str
    #: Its address; empty for none, and for a key while FUSEBOARD_TICKET_URL is not set.
    ticket_url: str

    @staticmethod
    def resolve_dependency(row: Override) -> str:
        return row.dependency.name

    @staticmethod
    def resolve_ticket_url(row: Override) -> str:
        return ticket_url(row.ticket)


class DependencyOut(FromObject):
    name: str
    title: str
    kind: str
    owner: str
    fallback_note: str
    runbook: str | None
    timeout_ms: int
    wait_ms: int
    first_part_ms: int
    between_parts_ms: int
    store_wait_ms: int
    latency_rise_percent: int
    breaker: dict[str, int]
    #: The protection of a pod from it; null for nothing.
    protection: CallProtectionOut | None
    vendor_limits: list[LimitOut]
    version: int
    #: Warnings about settings that are allowed, but usually a mistake.
    advice: list[str]

    @staticmethod
    def resolve_runbook(row: Dependency) -> str | None:
        return row.runbook_id

    @staticmethod
    def resolve_breaker(row: Dependency) -> dict[str, int]:
        return {column: getattr(row, column) for column in BREAKER_RANGES}

    @staticmethod
    def resolve_protection(row: Dependency) -> dict[str, Any] | None:
        return completed(row.protection, CALL) if row.protection else None

    @staticmethod
    def resolve_advice(row: Dependency) -> list[str]:
        fields = dependency_fields(row)
        return [*advice_about(fields), *advice_about_latency(row, fields)]


class BreakerOut(Schema):
    dependency: str
    title: str
    kind: str
    owner: str
    fallback_note: str
    runbook: str | None
    version: int
    #: ``unknown`` when neither Redis nor the history has it.
    state: str
    since: datetime | None
    until: datetime | None
    cause: str
    #: ``redis``; ``history`` when Redis does not answer: the last stored transition.
    source: Literal["redis", "history"]
    override: OverrideOut | None
    policy: dict[str, int]
    vendor_limits: list[LimitOut]


class ConfigurationOut(Schema):
    """Settings that belong to no tier, tenant or dependency."""

    environment: str
    epoch: int
    revision: int
    default_tier: str
    tuning: dict[str, int]
    #: The protection of every pod; null for nothing.
    protection: PodProtectionOut | None


class DifferingRowOut(Schema):
    """One value of a breaker, a bulkhead or a limit, and what a new row gets."""

    kind: Literal["dependency", "environment", "template", "tier", "tenant"]
    name: str
    #: Name of the limit; empty for the breaker and the bulkhead of a dependency, and for a template.
    limit: str
    #: Always empty: of limits that follow a template, only the template is listed.
    template: str
    field: str
    value: str
    new: str


class DifferingOut(Schema):
    #: How many values differ; ``rows`` has the first of them.
    count: int
    rows: list[DifferingRowOut]


class RevisionOut(Schema):
    revision: int


class TenantPage(Schema):
    items: list[TenantOut]
    #: Send it as ``after`` for the next page; null on the last page.
    next: str | None


class TokenRow(Schema):
    """A token, without its secret."""

    selector: str
    name: str
    environment: str
    created_at: datetime
    expires_at: datetime
    revoked_at: datetime | None


class TokenOut(TokenRow):
    """A token of pods, without its secret."""

    #: The only service whose pods can use it, and how their names begin; empty for any.
    service: str = ""
    name_prefix: str = ""


class ApiTokenOut(TokenRow):
    scope: Literal["read", "operate", "admin", "metrics"]
    #: Username of the person who owns it; empty for a token that was made on the command line.
    owner: str = ""
    #: ``limited``: its owner has a lower role than the scope. ``ended``: its owner is deactivated or deleted.
    state: Literal["works", "limited", "expired", "revoked", "ended"] = "works"


class NewTokenOut(Schema):
    secrets: ClassVar[frozenset[str]] = frozenset({"token"})

    selector: str
    #: Shown only now; a repetition with the same Idempotency-Key returns null.
    token: str | None
    expires_at: datetime


class Done(Schema):
    """It was done and recorded in the audit."""

    done: Literal[True] = True


class EffectiveOut(Schema):
    """One effective value for a tenant's requests."""

    name: str
    value: Any
    source: str
    #: Name of the template, tenant or tier that sets it.
    at: str
    #: The tenant or tier whose quota follows the template; only for a template's value.
    followed_by: str
    #: The parent tenant that owns the quota; empty for the tenant's own.
    inherited_from: str
    #: The tier's value that the tenant overrides.
    instead_of: Any
    until: datetime | None
    by: str
    revision: int | None
    changed_at: datetime | None
