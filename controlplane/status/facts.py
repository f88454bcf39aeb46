"""The fleet as plain data: read once per tick, without models or HTML.

All moments are seconds since the epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from msgspec import Struct

from controlplane.approvals.pending import Pending
from controlplane.audit_export.waiting import WaitingExport
from controlplane.backlogs.figures import BacklogSeen
from controlplane.fleet.live import FleetFigures
from controlplane.publishing.unknown_revisions import UnknownRevision
from controlplane.refusals.dependencies import RefusedBy
from controlplane.status.outages import times_without_redis
from controlplane.status.watched import Blind, RedisServer, Watched
from fuseboard.contract.policy import Tuning
from fuseboard.contract.words import DEFAULT_ENVIRONMENT

ServerState = Literal["online", "late", "unknown", "offline", "gone"]


@dataclass(frozen=True, kw_only=True)
class BreakerSeen:
    """One dependency's breaker as one pod reported it."""

    state: str
    generation: int = 0
    since: float | None = None
    #: When an open breaker may probe.
    until: float | None = None
    override: str | None = None
    #: Decided by this pod alone.
    local: bool = False
    calls: int = 0
    failures: int = 0
    consecutive: int = 0


@dataclass(frozen=True, kw_only=True)
class PodLoad:
    """How busy a pod is, as it reported it. Parts are in thousandths; ``None`` for unknown."""

    pressure: int = 0
    level: str = "normal"
    cause: str = ""
    cpu: int | None = None
    throttled: int | None = None
    memory: int | None = None
    lag_ms: int = 0
    in_flight: int = 0
    waiting: int = 0
    p95_ms: int | None = None
    #: ``None`` from a gateway of an earlier release.
    requests_per_s: float | None = None
    errors_per_s: float = 0.0
    #: Requests, and calls before they ask for a slot, that shedding would refuse if it did not only observe.
    observed_per_s: float = 0.0
    asks_unready: bool = False
    unready: bool = False
    #: The protection of its calls, over all dependencies: slots of bulkheads, and rates of about 30 s.
    slots: int = 0
    slots_in_use: int = 0
    queued: int = 0
    calls_refused_per_s: float = 0.0
    retries_per_s: float = 0.0
    retries_no_budget_per_s: float = 0.0
    fallbacks_per_s: float = 0.0
    observed_calls_per_s: float = 0.0
    #: p95 of the slowest route beside its SLA; ``None`` for unknown.
    late: int | None = None
    #: Priority of a tier -> requests per second, and those that were shed.
    priority_rates: dict[str, list[float]] = field(default_factory=dict)
    #: It applies ``share_idle``. A pod of an earlier version does not.
    shares_idle: bool = False


class Server(Struct, frozen=True, kw_only=True, gc=False):
    """One pod. Thousands are made each second: a struct, and without work for the garbage collector."""

    name: str
    service: str = ""
    zone: str = ""
    version: str = ""
    state: ServerState = "online"
    mode: str = "shared"
    mode_since: float | None = None
    mode_cause: str = ""
    epoch: int = 0
    revision: int = 0
    config_status: str = "applied"
    config_error: str = ""
    config_source: str = ""
    started_at: float | None = None
    last_seen: float = 0.0
    calls_per_s: float = 0.0
    redis_p99_us: int | None = None
    breakers: dict[str, BreakerSeen] = {}
    #: ``None`` for a pod that reports none.
    load: PodLoad | None = None
    #: The process that its last heartbeat reached, the selector of the token that it proved, and where the
    #: connection came from.
    gateway: str = ""
    token: str = ""
    address: str = ""
    #: The reserved share that it says it has: level, place and terms; empty for none.
    share: dict[str, int] = {}
    #: Its locks, see ``controlplane.status.locks``; ``None`` for an agent that does not report them.
    primitives: dict[str, Any] | None = None
    #: It decides for all pods of a node: it has no bulkhead, no local rate and no shedding.
    serves_node: bool = False
    #: The permits that other processes got from it, see ``controlplane.status.permits``.
    permits: dict[str, int] = {}

    @property
    def live(self) -> bool:
        return self.state in ("online", "late")


#: An override that another one replaced ended when the other one began.
_SAME_MOMENT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Override:
    mode: str
    reason: str
    actor: str
    expires_at: float
    made_at: float
    revision: int
    ticket: str = ""
    #: The person who ended it, ``fuseboard`` where it expired; empty while it is in force.
    ended_by: str = ""


@dataclass(frozen=True, kw_only=True)
class Dependency:
    name: str
    title: str = ""
    kind: str = ""
    owner: str = ""
    #: The result that callers get instead, as a person wrote it.
    fallback: str = ""
    runbook: str = ""
    runbook_title: str = ""
    timeout_ms: int = 30_000
    failure_percent: int = 50
    consecutive_failures: int = 5
    minimum_calls: int = 20
    window_s: int = 30
    #: Judged by about this many of the newest calls; 0 for all calls in the window.
    window_calls: int = 0
    open_ms: int = 60_000
    open_max_ms: int = 600_000
    probes: int = 3
    successes_to_close: int = 2
    #: Protection of pods from it, as ``fuseboard.contract.protection.CallProtection``; empty for nothing.
    protection: dict[str, Any] = field(default_factory=dict)
    override: Override | None = None
    #: A limit of 0 admits none of its calls.
    paused: bool = False
    #: When it was added; 0 when that is more than a day ago.
    added_at: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TripFigures:
    """Counts over the fleet when a breaker tripped."""

    calls: int
    failures: int
    slow: int
    consecutive: int
    #: That was reached: failures in a row, or a percentage.
    threshold: int


@dataclass(frozen=True, kw_only=True)
class Transition:
    dependency: str
    at: float
    before: str
    after: str
    cause: str
    actor: str = ""
    server: str = ""
    generation: int = 0
    reason: str = ""
    #: The figures of a trip; ``None`` for other transitions, and for an agent of version 0.1.
    figures: TripFigures | None = None


@dataclass(frozen=True, kw_only=True)
class PodEvent:
    """A pod changed its mode, or its own breaker changed its state; or several did together."""

    #: The moment of the first pod.
    at: float
    #: One of the pods.
    server: str
    kind: Literal["mode", "breaker"]
    #: ``shared -> local: connection refused``, ``payments-api: closed -> open``.
    detail: str
    pods: int = 1
    #: Whether there may be more pods than that.
    more: bool = False
    #: The moment of the last pod; 0 if it is ``at``.
    last: float = 0.0
    #: The first names of several pods.
    names: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Change:
    """One audit entry."""

    at: float
    actor: str
    #: Made by a person, not by a program or a task.
    human: bool
    #: The name that the audit stores: ``tenant_quota.set``.
    action: str
    target: str
    reason: str = ""
    before: dict[str, Any] | None = None
    after: dict[str, Any] | None = None
    revision: int | None = None
    id: int = 0
    target_kind: str = ""
    #: The selector of the token that was used, and the person who owned it.
    token: str = ""
    owner: str = ""
    request_id: str = ""
    trace_id: str = ""


@dataclass(frozen=True, kw_only=True)
class ScheduledChange:
    """A change that a schedule makes, or the end of a temporary quota."""

    #: This key stays while the change is due: ``quota acme/requests``, ``schedule 17``.
    key: str
    title: str
    at: float
    #: The tenant and the name of a quota that ends; otherwise empty.
    tenant: str = ""
    quota: str = ""


@dataclass(frozen=True, kw_only=True)
class Observing:
    """A part of the protection that decides and counts, but refuses nothing."""

    #: One of ``fuseboard.contract.protection_fields.OBSERVED_PARTS``.
    part: str
    until: float
    #: The person who let it observe, when and why; empty if the history does not reach back to it.
    by: str = ""
    since: float | None = None
    reason: str = ""


@dataclass(frozen=True, kw_only=True)
class EnvironmentFacts:
    """One environment in Postgres, without its pods: one edit changes it."""

    now: float
    environment: str = DEFAULT_ENVIRONMENT
    epoch: int = 0
    revision: int = 0
    #: Scheduled changes that failed and that no operator has acknowledged.
    schedules_failed: int = 0
    #: How many approvals an edit needs, and the edits that wait for approval, or to be applied.
    approvals_needed: int = 0
    requests: Pending = field(default_factory=Pending)
    #: Until when edits are refused, by whom and why; ``None`` for not at all.
    frozen_until: float | None = None
    frozen_by: str = ""
    frozen_reason: str = ""
    #: When the rows were read; older than ``now`` while Postgres is unavailable.
    as_of: float = 0.0

    @property
    def frozen(self) -> bool:
        """Whether edits are refused. Overrides are not."""
        return self.frozen_until is not None and self.frozen_until > self.now

    @property
    def stale(self) -> bool:
        return self.now - self.as_of > 3


@dataclass(frozen=True, kw_only=True)
class PodFacts(EnvironmentFacts):
    """An environment with its pods and their rates, without what they protect."""

    servers: tuple[Server, ...] = ()
    figures: FleetFigures = field(default_factory=FleetFigures)
    #: While Postgres is unavailable: how many gateways report pods and figures instead.
    gateways_reporting: int = 0
    #: When the last gateway wrote figures, while none does, or while Postgres is unavailable; ``None`` if
    #: none did within a day.
    figures_at: float | None = None

    @cached_property
    def live_servers(self) -> tuple[Server, ...]:
        return tuple(server for server in self.servers if server.live)

    @property
    def divisor(self) -> int:
        """By how much a pod on local fallback divides every limit: without a gateway, as it did before."""
        return max(
            1,
            self.figures.live_servers
            or sum(server.live or (server.state != "gone" and not self.current) for server in self.servers),
        )

    @property
    def current(self) -> bool:
        """Whether a gateway reports pods and rates now. Otherwise, they are as last known."""
        return self.gateways_reporting > 0 or (not self.stale and self.figures.gateways > 0)

    @property
    def current_until(self) -> float | None:
        """Until when pods and rates are known, while no gateway reports; ``None`` if none did lately."""
        if self.current:
            return None
        return self.figures_at or (self.as_of if self.stale and self.figures.gateways else None)

    def behind(self, server: Server) -> bool:
        return (server.epoch, server.revision) < (self.epoch, self.revision)


@dataclass(frozen=True, kw_only=True)
class Facts(PodFacts):
    #: Dependency -> how long 99 % of its calls of the last minute took at most, in milliseconds.
    call_p99_ms: dict[str, float] = field(default_factory=dict)
    #: How long a decision waits for Redis at most, by the fleet's tuning.
    store_deadline_us: int = Tuning().store_deadline_us
    dependencies: tuple[Dependency, ...] = ()
    #: Backlogs of dependencies that ever used one, as the worker read them last.
    backlogs: tuple[BacklogSeen, ...] = ()
    #: Protection of every pod, as ``fuseboard.contract.protection.PodProtection``; empty for nothing.
    pod_protection: dict[str, Any] = field(default_factory=dict)
    #: Parts that only observed when the rows were read.
    observing: tuple[Observing, ...] = ()
    #: Also those that do not answer; one that is not named any more for some minutes.
    redis_servers: tuple[RedisServer, ...] = ()
    #: Targets of the export of the audit that lack entries.
    exports: tuple[WaitingExport, ...] = ()
    #: Sources of figures that cannot be read, but for Postgres and gateways.
    blind: tuple[Blind, ...] = ()
    #: Newest first.
    transitions: tuple[Transition, ...] = ()
    changes: tuple[Change, ...] = ()
    #: Transitions of the last day, newest first.
    pod_events: tuple[PodEvent, ...] = ()
    #: Recent revisions and when they were made, oldest first.
    revisions: tuple[tuple[int, float], ...] = ()
    #: The next changes that take effect by schedule, and those that are overdue; the earliest first.
    scheduled: tuple[ScheduledChange, ...] = ()
    #: Names that two processes report under.
    duplicated: tuple[str, ...] = ()
    #: Redis or the pod with a revision that Postgres lacks, because it was restored; empty for none.
    ahead: str = ""
    #: There are limits, and all of them are shadows: they count and refuse nothing.
    unlimited: bool = False
    #: When the rules of alerts were evaluated last; ``None`` where nobody looked.
    evaluated_at: float | None = None
    #: Changes of alert rules by an admin: rule -> field -> value.
    alert_rules: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    #: Age of the oldest edit that is not in Redis yet; 0 for none.
    outbox_oldest_s: float = 0.0
    watched: Watched = field(default_factory=Watched)
    #: Dependency -> the limit and the reason that refuse most of its calls, where pods sampled them.
    refused_by: Mapping[str, RefusedBy] = field(default_factory=dict)
    #: Busy tenants that are suspended, or below one that is: pods refuse their requests on purpose.
    suspended: frozenset[str] = frozenset()
    #: Pods that report a revision that Postgres never made. Only Redis, or Postgres, can confirm it.
    unknown_revisions: tuple[UnknownRevision, ...] = ()
    #: Since when this control plane knows the fleet: states before that are unknown.
    known_from: float = 0.0
    #: Whether any pod ever reported.
    reported: bool = True
    #: Overrides that ended within the last day, by dependency, newest first; they expire when they ended.
    past_overrides: dict[str, tuple[Override, ...]] = field(default_factory=dict)

    @cached_property
    def without_redis(self) -> list[tuple[float, float]]:
        """When no live pod used Redis, and so saw the state of the fleet's breakers."""
        return times_without_redis(self.live_servers, self.pod_events, self.now)

    @property
    def store_deadline_ms(self) -> float:
        return self.store_deadline_us / 1000

    @property
    def observing_now(self) -> tuple[Observing, ...]:
        """Parts that are on, but only observe."""
        return tuple(one for one in self.observing if one.until > self.now and self._uses(one.part))

    def observes(self, part: str) -> bool:
        return any(one.part == part for one in self.observing_now)

    def _uses(self, part: str) -> bool:
        if part == "shedding":
            return part in self.pod_protection
        return any(part in dependency.protection for dependency in self.dependencies)

    def dependency(self, name: str) -> Dependency | None:
        return next((d for d in self.dependencies if d.name == name), None)

    def overrides(self, name: str) -> list[Override]:
        """The override in force on a dependency, and those that ended within the last day."""
        dependency = self.dependency(name)
        current = [dependency.override] if dependency and dependency.override else []
        return [*current, *self.past_overrides.get(name, ())]

    def overridden_since(self, name: str, override: Override) -> float:
        """When an override began: an extension replaces it by one of the same mode at the same moment."""
        began = override.made_at
        for past in self.past_overrides.get(name, ()):
            if past.mode == override.mode and abs(past.expires_at - began) < _SAME_MOMENT_S:
                began = past.made_at
        return began

    def behind_since(self, server: Server) -> float | None:
        """When the oldest revision that this pod has not applied was made; ``None`` when it has all."""
        if server.epoch == self.epoch and server.revision >= self.revision:
            return None
        return next((at for revision, at in self.revisions if revision > server.revision), None)

    def lag_s(self, server: Server) -> float:
        since = self.behind_since(server)
        return 0.0 if since is None else max(0.0, self.as_of - since)
