"""Responses about operations: the fleet, breakers, the audit, revisions."""

from datetime import datetime
from typing import Any

from ninja import Schema

from controlplane.api.schemas import FromObject
from controlplane.api.schemas.pod_load_out import CallFiguresOut, PodLoadOut, PodsOut, load_out
from controlplane.breakers.models import Transition
from controlplane.fleet.models import Server
from controlplane.status.server_rows import server_of_row


class TripFiguresOut(Schema):
    calls: int
    failures: int
    slow: int
    consecutive: int
    #: That was reached: failures in a row, or a percentage.
    threshold: int


class TransitionOut(FromObject):
    id: int
    dependency: str
    generation: int
    at: datetime
    from_state: str
    to_state: str
    cause: str
    #: The person who overrode or reset it; empty when the fleet tripped it.
    actor: str
    #: The server whose report caused it; empty for the control plane.
    server: str
    #: Counts over the fleet when the breaker tripped; null for other transitions, and for a trip
    #: by an agent of version 0.1.
    figures: TripFiguresOut | None = None

    @staticmethod
    def resolve_dependency(row: Transition) -> str:
        return row.dependency.name


class TenantFiguresOut(Schema):
    tenant: str
    requests_per_s: float
    refused_per_s: float


class DependencyFiguresOut(Schema):
    calls_per_s: float
    failures_per_s: float
    slow_per_s: float
    refused_per_s: float


class RuleFiguresOut(Schema):
    """What one quota bound, of one tenant; of all together when `tenant` is empty."""

    tenant: str
    rule: str
    asked_per_s: float
    refused_per_s: float
    #: Let through as a shadow, and otherwise refused.
    shadow_per_s: float
    #: Spent from fleet leases, without a question to Redis; and since when (unix seconds).
    leased_per_s: float = 0.0
    leased_since: float | None = None


class StoreFiguresOut(Schema):
    p50_us: int | None
    p99_us: int | None
    timeouts_per_s: float
    errors_per_s: float


class FleetOut(Schema):
    """Rates over the whole fleet, smoothed over about 5 s."""

    revision: int
    #: Live pods that decide by that revision or a newer one, and all live pods.
    confirmed: int
    servers: int
    requests_per_s: float
    refused_per_s: float
    refused_by_reason: dict[str, float]
    decided_locally_per_s: float
    unknown_tenants_per_s: float
    #: The busiest tenants.
    tenants: list[TenantFiguresOut]
    #: Quotas of the busiest tenants, and how many of their requests are spent from fleet leases.
    rules: list[RuleFiguresOut] = []  # noqa: RUF012
    dependencies: dict[str, DependencyFiguresOut]
    store: StoreFiguresOut
    #: Whether silent pods are not marked offline, because many went silent at once.
    frozen: bool
    #: Then: how many are silent, of how many expected, and until when at most (unix seconds).
    frozen_silent: int = 0
    frozen_expected: int = 0
    frozen_until: float | None = None
    #: Pods that are missing from the rates, because their gateway has just started.
    uncounted: int
    #: Heartbeats of the last minute that were refused, because their token brought too many new pods.
    new_pods_refused: int = 0
    #: Gateway -> what Postgres refused to store of it within the last ten minutes.
    writes_refused: dict[str, int] = {}  # noqa: RUF012
    #: Gateways that contribute to these figures; 0 means that nothing is measured.
    gateways: int
    #: Dependencies that pods protect themselves from.
    protection: dict[str, CallFiguresOut] = {}  # noqa: RUF012
    #: Levels, readiness and health of pods, and parts of the protection that only observe.
    pods: PodsOut


class ServerOut(FromObject):
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
    #: Pressure, level, readiness, bulkheads and retries; null for a pod that reports none.
    load: PodLoadOut | None = None
    #: The gateway process that heard it last.
    gateway: str = ""
    #: The public part of the token that its last heartbeat proved; empty if an older gateway heard it.
    token: str = ""
    #: Where the connection of its last heartbeat came from: the pod, or the proxy before the gateway.
    address: str = ""
    #: The reserved share that it says it has: level, place and terms; empty for none.
    share: dict[str, int] = {}  # noqa: RUF012
    #: It decides for all pods of a node: it has no bulkhead, no local rate and no shedding.
    serves_node: bool = False

    @staticmethod
    def resolve_load(row: Server) -> PodLoadOut | None:
        return load_out(server_of_row(row), row.unhealthy_at)


class EventOut(Schema):
    """One event of a server."""

    at: datetime
    kind: str
    detail: str
    #: The boot id of the process.
    boot: str


class EntryOut(Schema):
    id: int
    at: datetime
    actor: str
    role: str
    origin: str
    #: The public part of the token that was used, and the person who owned it then.
    token: str = ""
    owner: str = ""
    #: ``X-Request-Id`` of the answer to the request that made the change, and the id of its W3C trace.
    request_id: str = ""
    trace_id: str = ""
    action: str
    target_kind: str
    target_name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    reason: str
    epoch: int | None
    revision: int | None


class EntryPage(Schema):
    items: list[EntryOut]
    next: int | None


class TransitionPage(Schema):
    items: list[TransitionOut]
    next: int | None


class ScheduleOut(Schema):
    id: int
    due_at: datetime
    title: str
    document: dict[str, Any]
    reason: str
    actor: str
    created_at: datetime
    state: str
    ended_at: datetime | None
    ended_by: str
    #: Why it could not be applied.
    error: str
    #: Whether the failure was acknowledged.
    seen: bool
    #: The revision it became.
    revision: int | None
    #: The change request it became, because edits need approval now.
    request: int | None = None


class SchedulePage(Schema):
    items: list[ScheduleOut]
    next: int | None


class PlannedOut(Schema):
    """What would change, and the revision it was compared with."""

    revision: int
    changes: int
    created: int
    changed: int
    removed: int
    #: In words; of very many changes the first.
    text: str
    #: Effects on spent calls of limits that count in another way, and warnings about breaker settings
    #: that are allowed, but usually a mistake.
    advice: list[str]


class RevisionRow(Schema):
    number: int
    epoch: int
    at: datetime
    actor: str
    role: str
    origin: str
    action: str
    target: str
    reason: str
    #: How many things of the configuration it changed.
    changed: int
    #: The revision that a rollback restored.
    restores: int | None
    #: The revision whose changes a revert undid.
    reverts: int | None


class RevisionPage(Schema):
    items: list[RevisionRow]
    next: int | None


class ChangeOut(Schema):
    kind: str
    name: str
    before: dict[str, Any] | None
    after: dict[str, Any] | None


class UnitOut(Schema):
    """One unit of a thing: the values that only make sense together, such as those of a rate."""

    kind: str
    name: str
    #: Empty for the thing itself.
    unit: str
    #: Field -> its present value and the one from before the revision.
    fields: dict[str, list[Any]]


class KeptUnitOut(UnitOut):
    """A unit that stays as it is, because another edit has changed it since, or a template decides it."""

    #: That edit. Null if the earlier value was temporary and would have ended by now, or with a template.
    revision: int | None
    by: str
    at: datetime | None
    reason: str
    #: The template that the value follows; empty for none.
    template: str = ""


class RevertedOut(Schema):
    #: The revision that the revert made, or the present one if there is nothing to do.
    revision: int
    reverted: list[UnitOut]
    #: Units that already have their earlier values: kind, name and unit.
    already: list[tuple[str, str, str]]
    kept: list[KeptUnitOut]
    #: The number of units left off: each list returns only the first 1,000.
    left_off: int


class RevisionDetail(RevisionRow):
    #: Its change request and approvers, where edits need approval.
    request: int | None
    approved_by: list[str]
    changes: list[ChangeOut]
