"""What goes out."""

from datetime import datetime
from typing import Any, ClassVar, Literal

from ninja import Schema
from pydantic import ConfigDict

from controlplane.api.schemas.limits import EXAMPLE, LimitOut, QuotaOut, TenantQuotaOut, ValuesOut

_FOLLOWERS = {"limits": 14, "tiers": 3, "tenants": 9, "dependencies": 1, "subject_limits": 0}
_TEMPLATE = EXAMPLE | {
    "name": "standard",
    "title": "Default for most tenants",
    "version": 3,
    "followers": _FOLLOWERS,
}


def _example(document: dict[str, Any]) -> ConfigDict:
    return ConfigDict(json_schema_extra={"example": document})


class FollowersOut(Schema):
    """How many limits follow a template, of how many of each."""

    model_config = _example(_FOLLOWERS)

    limits: int
    tiers: int
    tenants: int
    dependencies: int
    #: Limits of callers without a tenant.
    subject_limits: int


class TemplateOut(ValuesOut):
    model_config = _example(_TEMPLATE)

    title: str
    version: int
    followers: FollowersOut


class FollowerOut(Schema):
    """A limit that follows a template."""

    model_config = _example({"kind": "tenant", "name": "acme", "limit": "requests", "own": {"limit": 2000}})

    kind: Literal["tier", "dependency", "environment", "tenant"]
    name: str
    limit: str
    #: The values that are not the template's.
    own: dict[str, Any]


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
    #: The tenant it belongs to, whose quotas its requests spend too; empty for none.
    parent: str
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
    #: Name of the template, the tenant or the tier it stands at.
    at: str
    #: Of a template's: the tenant or the tier whose quota follows it.
    followed_by: str
    #: The tenant above this one whose quota it is; empty for its own.
    inherited_from: str
    #: What the tier says, where the tenant's own stands in its place.
    instead_of: Any
    until: datetime | None
    by: str
    revision: int | None
    changed_at: datetime | None
