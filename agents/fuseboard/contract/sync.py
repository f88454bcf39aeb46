"""Heartbeat and poll in one: ``POST /agent/v1/sync``.

A server says who it is, what configuration it applied and what it saw; the answer says
whether there is something newer, and when to come back. Counters are cumulative since the
process started (``boot``), so that a lost or repeated beat costs nothing. Durations travel
instead of clock readings: no clock of a pod is ever trusted.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fuseboard.contract.policy import ConfigHead, Override, TenantRecord
from fuseboard.contract.shares import HeldShare, ShareLease
from fuseboard.contract.words import (
    BreakerState,
    ConfigSource,
    ConfigStatus,
    DrillKind,
    Mode,
    Name,
    OverrideMode,
    Reason,
    Slug,
    Subject,
)

SYNC_PATH = "/agent/v1/sync"

#: A larger body is refused before it is read.
MAX_BODY_BYTES = 262_144

#: Upper edges of the store latency histogram in microseconds; one more bucket counts the rest.
LATENCY_EDGES_US = (250, 500, 1_000, 2_000, 3_000, 5_000, 10_000, 20_000, 50_000, 100_000, 500_000)

#: In a response: the policy the server applied is still the one in force.
NO_POLICY = msgspec.Raw()

Age = Annotated[int, Meta(ge=0, le=10**12)]
#: As large as Postgres keeps.
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Total = Annotated[int, Meta(ge=0, le=2**53)]
ShortText = Annotated[str, Meta(max_length=500)]


class Applied(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The configuration a server decides by, and why not a newer one."""

    epoch: Number = 0
    revision: Number = 0
    hash: Annotated[str, Meta(max_length=64)] = ""
    source: ConfigSource = ConfigSource.BUILT_IN
    status: ConfigStatus = ConfigStatus.NONE
    #: With ``rejected``: what was wrong with the configuration offered.
    error: ShortText = ""


class BreakerView(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A dependency's breaker as one server sees it."""

    dependency: Name
    state: BreakerState = BreakerState.CLOSED
    generation: Number = 0
    for_ms: Age = 0
    #: Until an open breaker may probe.
    remaining_ms: Age = 0
    override: OverrideMode | None = None
    #: Decided by this server alone, without the store.
    local: bool = False
    #: The fleet's outcomes in the breaker's window, as the last report saw them.
    window_calls: Total = 0
    window_failures: Total = 0
    consecutive_failures: Total = 0


class DependencyCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Calls to one dependency since the process started."""

    dependency: Name
    ok: Total = 0
    failure: Total = 0
    slow: Total = 0
    neutral: Total = 0
    refused: dict[Reason, Total] = msgspec.field(default_factory=dict)


class RuleCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Requests that one rule bound since the process started."""

    rule: Name
    #: Allowed or not; ``None`` for every request of the tenant it is listed for.
    asked: Total | None = None
    #: Of those, the ones this rule refused.
    refused: Total = 0
    #: Calls a shadow rule let through and would have refused, where Redis decided.
    shadow: Total = 0


class TenantCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Requests of one tenant since the process started."""

    tenant: Subject
    allowed: Total = 0
    refused: Total = 0
    #: By rule, of the busiest only.
    rules: Annotated[tuple[RuleCounters, ...], Meta(max_length=100)] = ()


class StoreCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Questions put to Redis since the process started."""

    asked: Total = 0
    timeouts: Total = 0
    errors: Total = 0
    #: Answer times, by ``LATENCY_EDGES_US``.
    latency: Annotated[tuple[Total, ...], Meta(max_length=32)] = ()


class Counters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Everything counted since the process started."""

    requests: Total = 0
    #: Requests answered 429 or 503, by reason.
    refused: dict[Reason, Total] = msgspec.field(default_factory=dict)
    unknown_tenants: Total = 0
    decided_locally: Total = 0
    store: StoreCounters = msgspec.field(default_factory=StoreCounters)
    dependencies: Annotated[tuple[DependencyCounters, ...], Meta(max_length=500)] = ()
    #: The busiest tenants only; ``requests`` and ``refused`` hold the totals.
    tenants: Annotated[tuple[TenantCounters, ...], Meta(max_length=100)] = ()
    #: By rule, of all tenants together, also those that are not listed.
    rules: Annotated[tuple[RuleCounters, ...], Meta(max_length=100)] = ()


class SyncRequest(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    environment: Name
    service: Name
    server: Name
    #: A new random id per process.
    boot: Annotated[str, Meta(min_length=8, max_length=64)]
    #: Rises by one with every request of this process.
    sequence: Annotated[int, Meta(ge=0, le=2**53)]
    agent_version: Annotated[str, Meta(max_length=64)]
    zone: Annotated[str, Meta(max_length=64)] = ""
    up_ms: Age = 0
    applied: Applied = msgspec.field(default_factory=Applied)
    mode: Mode = Mode.SHARED
    mode_for_ms: Age = 0
    #: Why the mode is what it is, in words: ``connection refused``, ``100 timeouts in 10 s``.
    mode_cause: ShortText = ""
    breakers: Annotated[tuple[BreakerView, ...], Meta(max_length=500)] = ()
    counters: Counters = msgspec.field(default_factory=Counters)
    #: Tenants this server has met and has no record of.
    want: Annotated[tuple[Subject, ...], Meta(max_length=1000)] = ()
    #: The last request of a process that stops on purpose.
    leaving: bool = False
    #: Its piece of what is spent without Redis; ``None`` when it has none, or spends it no more.
    share: HeldShare | None = None


class Drill(Struct, frozen=True, kw_only=True):
    """An admin wants to see what this server does without Redis. It ends by itself, on the pod's clock."""

    id: Annotated[int, Meta(ge=1, le=2**53)]
    kind: DrillKind
    remaining_ms: Annotated[int, Meta(ge=1, le=86_400_000)]


class SyncResponse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    #: The control plane's clock; expiries are counted from it on the pod's monotonic clock.
    server_time_us: int
    #: When to come back; the agent adds 20 percent of jitter either way.
    next_ms: Annotated[int, Meta(ge=50, le=600_000)]
    #: Servers of this environment, the most of the last minutes: the divisor of local shares.
    live_servers: Annotated[int, Meta(ge=1, le=1_000_000)]
    head: ConfigHead
    #: The policy document, when its hash is not the one the server applied; else empty. Kept as
    #: bytes so that the hash can be checked before anything is parsed.
    policy: msgspec.Raw = NO_POLICY
    #: The records wanted, and those changed since the applied revision; ``None`` is a tenant
    #: nobody registered, who gets the default tier.
    tenants: dict[Subject, TenantRecord | None] = msgspec.field(default_factory=dict)
    #: Too much has changed to list: ask again for every tenant held.
    refetch_tenants: bool = False
    #: This server's piece of what is spent without Redis, and how long it holds.
    share: ShareLease | None = None
    #: What this server pretends, and how long; ``None`` for nothing, or nothing any more.
    drill: Drill | None = None
    #: Breakers that are held without a revision, in gateways' memory, while neither Postgres nor Redis
    #: is there to take it: laid upon the policy of whatever head the server has.
    held: dict[Slug, Override] = msgspec.field(default_factory=dict)


class Nudge(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Published on ``keys.config_channel`` after a newer configuration reached Redis."""

    epoch: int
    revision: int
    #: The revision this one was published over: a pod that applied less has missed something.
    since: int
    #: Tenants whose records changed between the two; ``None`` for too many to list.
    tenants: tuple[str, ...] | None = ()


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(SyncRequest).decode
decode_response = msgspec.json.Decoder(SyncResponse).decode
decode_nudge = msgspec.json.Decoder(Nudge).decode
