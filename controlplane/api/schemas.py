"""What comes in is strict: no unknown fields, no numbers in quotes, no fractions, no control characters."""

from datetime import datetime
from typing import Annotated, Any, Literal

from ninja import Path, Schema
from pydantic import AfterValidator, ConfigDict, Field

from controlplane.policies.limits import MAX_ENDPOINT, MAX_ENDPOINTS, MAX_WINDOW_S
from controlplane.policies.validation import LONGEST_REASON, SHORTEST_REASON, is_printable
from fuseboard.contract.words import MAX_LIMIT, SLUG_PATTERN, is_subject


def _printable(text: str) -> str:
    if not is_printable(text):
        raise ValueError("Remove the control characters.")
    return text


def _subject(text: str) -> str:
    if not is_subject(text):
        raise ValueError("Use 1 to 200 characters without control characters.")
    return text


Slug = Annotated[str, Field(pattern=SLUG_PATTERN, max_length=64)]
#: Stands in the routers' prefix, where ninja does not look for it by itself.
Environment = Path[Slug]
Subject = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(_subject)]
Reason = Annotated[
    str, Field(min_length=SHORTEST_REASON, max_length=LONGEST_REASON), AfterValidator(_printable)
]
Text = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
Endpoint = Annotated[str, Field(min_length=1, max_length=MAX_ENDPOINT), AfterValidator(_printable)]
Version = Annotated[int, Field(ge=1, le=2**31 - 1)]
PageSize = Annotated[int, Field(ge=1, le=500)]


class Strict(Schema):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ReasonIn(Strict):
    reason: Reason


class LimitIn(ReasonIn):
    """What is left out stays as it is."""

    limit: Annotated[int, Field(ge=0, le=MAX_LIMIT, description="Calls per window; 0 refuses every call.")]
    window_s: Annotated[int, Field(ge=1, le=MAX_WINDOW_S)]
    burst: Annotated[int, Field(ge=1, le=MAX_LIMIT, description="Calls that may be made at once.")]
    algorithm: Literal["sliding_window", "token_bucket", "fixed_window", "concurrency"] | None = None
    failure_policy: Literal["fail_open", "fail_closed", "local_share", "reserved"] | None = None
    shadow: bool | None = None
    period: Annotated[
        Literal["hour", "day", "week", "month", ""] | None,
        Field(description="Of fixed windows only, and required there; empty takes it away."),
    ] = None
    time_zone: Annotated[
        Text | None, Field(description="Where the period's midnight is, like Europe/Berlin.")
    ] = None
    measure: Annotated[
        Slug | None, Field(description="What is counted: calls, or another cost that callers state.")
    ] = None
    per: Annotated[
        list[Literal["user", "ip", "api_key", "endpoint"]] | None,
        Field(max_length=4, description="Count apart for each value of these."),
    ] = None
    endpoints: Annotated[
        list[Endpoint] | None,
        Field(max_length=MAX_ENDPOINTS, description="Only for endpoints like these; none for all."),
    ] = None
    warn_percent: Annotated[
        int | None, Field(ge=0, le=100, description="Say so when this much is spent; 0 never.")
    ] = None
    lease_above: Annotated[
        int | None,
        Field(ge=0, le=MAX_LIMIT, description="Lease in advance above this many per second; 0 as usual."),
    ] = None


class QuotaIn(LimitIn):
    #: The version this edit was made on; or send it as If-Match.
    expected_version: Version | None = None
    dependency: Annotated[
        Slug | Literal[""] | None,
        Field(description="Counts calls of this dependency; empty for requests to the service itself."),
    ] = None


class TenantIn(ReasonIn):
    key: Subject
    tier: Slug
    title: Text = ""


class HoldIn(ReasonIn):
    mode: Literal["forced_open", "forced_closed", "metrics_only", "disabled"]
    expires_in_s: Annotated[
        int, Field(ge=1, le=86_400, description="At most 24 hours; 15 minutes with forced_closed.")
    ]


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
