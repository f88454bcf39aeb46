"""The answers of the API, as far as these commands read them. Unknown fields are ignored."""

from datetime import datetime
from typing import Any, Generic, TypeVar

from msgspec import Struct

Item = TypeVar("Item")


class Page(Struct, Generic[Item], frozen=True):
    """A part of a list, and where the next part begins."""

    items: tuple[Item, ...]
    next: int | str | None


class Quota(Struct, frozen=True):
    name: str
    algorithm: str
    limit: int
    window_s: int
    burst: int
    failure_policy: str
    shadow: bool = False
    dependency: str = ""
    expires_at: datetime | None = None
    #: Empty unless the limit follows a template.
    template: str = ""


class Tenant(Struct, frozen=True):
    key: str
    title: str
    tier: str
    suspended: bool
    version: int
    quotas: tuple[Quota, ...]
    #: The parent tenant; empty for none.
    parent: str = ""


class Tier(Struct, frozen=True):
    name: str
    version: int
    quotas: tuple[Quota, ...]


class Override(Struct, frozen=True):
    mode: str
    reason: str
    actor: str
    expires_at: datetime
    #: Control planes of version 0.1 have none.
    ticket: str = ""
    ticket_url: str = ""


class Breaker(Struct, frozen=True):
    dependency: str
    state: str
    since: datetime | None
    until: datetime | None
    cause: str
    source: str
    override: Override | None
    owner: str = ""
    fallback_note: str = ""
    runbook: str | None = None
    vendor_limits: tuple[Quota, ...] = ()


class Server(Struct, frozen=True):
    name: str
    service: str
    zone: str
    state: str
    mode: str
    mode_cause: str
    epoch: int
    revision: int
    config_status: str
    config_error: str
    calls_per_s: float
    redis_p99_us: int | None
    last_seen_at: datetime


class Fleet(Struct, frozen=True):
    revision: int
    confirmed: int
    servers: int


class Entry(Struct, frozen=True):
    id: int
    at: datetime
    actor: str
    action: str
    target_kind: str
    target_name: str
    reason: str
    revision: int | None


class Transition(Struct, frozen=True):
    id: int
    dependency: str
    at: datetime
    from_state: str
    to_state: str
    cause: str
    actor: str
    server: str


class RefusalSample(Struct, frozen=True):
    """A sample: one of many."""

    id: int
    at: datetime
    service: str
    pod: str
    dependency: str
    rule: str
    reason: str
    mode: str
    tenant: str
    endpoint: str
    revision: int
    retry_after_ms: int
    weight: float


class CountedRefusals(Struct, frozen=True):
    refused: int
    asked: int | None
    known_s: int


class RefusalLine(Struct, frozen=True):
    value: str
    samples: int
    percent: float
    counted: CountedRefusals | None


class RefusalCounts(Struct, frozen=True):
    counted: CountedRefusals | None
    samples: int
    tenant: tuple[RefusalLine, ...]
    rule: tuple[RefusalLine, ...]
    endpoint: tuple[RefusalLine, ...]
    pod: tuple[RefusalLine, ...]
    reason: tuple[RefusalLine, ...]
    dependency: tuple[RefusalLine, ...]


class ErrorBudget(Struct, frozen=True):
    name: str
    quota: str
    asked: int
    bad: int
    left_percent: float
    spent: bool
    burn_1h: float | None
    burn_6h: float | None
    burn: float
    known_s: int


class ErrorBudgets(Struct, frozen=True):
    target_percent: float
    days: int
    spent: int
    dependencies: tuple[ErrorBudget, ...]
    tenants: tuple[ErrorBudget, ...]


class ExplainedRefusal(Struct, frozen=True):
    environment: str
    service: str
    at: datetime
    reason: str | None
    mode: str | None
    retry_after_ms: int
    rule: dict[str, str] | None
    tenant: str
    tenant_state: str
    pod: str
    then: dict[str, Any]
    now: dict[str, Any]
    known_revision: bool
    changes: tuple[dict[str, Any], ...]
    transition: dict[str, Any] | None
    headline: str
    sentences: tuple[str, ...]


class NewRevision(Struct, frozen=True):
    """The revision that an edit made."""

    revision: int


class RevertedUnit(Struct, frozen=True):
    """Values that a revert restores."""

    kind: str
    name: str
    unit: str
    #: Field -> its value now, and the earlier one.
    fields: dict[str, tuple[Any, Any]]


class KeptUnit(RevertedUnit, frozen=True):
    """Values that stay, because another edit has changed them since, or because a template decides them."""

    revision: int | None
    by: str
    template: str = ""


class RevertMade(Struct, frozen=True):
    revision: int
    reverted: list[RevertedUnit]
    kept: list[KeptUnit]


class FieldError(Struct, frozen=True):
    field: str
    message: str


class Problem(Struct, frozen=True):
    """RFC 9457."""

    title: str = ""
    detail: str = ""
    errors: tuple[FieldError, ...] = ()
    current_version: int | None = None
    changed_by: str = ""
