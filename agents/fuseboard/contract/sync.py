"""Heartbeat and poll in one: ``POST /agent/v1/sync``.

A pod reports its identity, the configuration it applied and what it saw. The answer says whether there
is something newer, and when to come back. Counters are cumulative since the process started (``boot``),
so a lost or repeated heartbeat costs nothing. Durations travel instead of clock readings, because no
clock of a pod is trusted.
"""

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from fuseboard.contract.descriptor_tallies import DescriptorTally
from fuseboard.contract.failures import MAX_FAILED_DEPENDENCIES, DependencyFailures
from fuseboard.contract.load import MAX_CALL_LOADS, CallLoad, PodLoad, RetryCaps
from fuseboard.contract.policy import ConfigHead, Override, TenantRecord
from fuseboard.contract.primitives import Primitives
from fuseboard.contract.refusal_samples import MAX_SAMPLES, DigestKey, RefusalSample
from fuseboard.contract.refusal_token import ExplainPage, RefusalKey
from fuseboard.contract.seal_keys import SealKeys
from fuseboard.contract.shares import HeldShare, ShareLease
from fuseboard.contract.tallies import Tally
from fuseboard.contract.usage import MAX_PARTS, UsagePart
from fuseboard.contract.words import (
    MAX_LIMIT,
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

#: Upper edges of the histogram of calls to a dependency in milliseconds; one more bucket counts the rest.
CALL_EDGES_MS = (2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000, 20_000, 60_000)

#: Tenants in a heartbeat: the busiest recent ones. With fewer, it lists all of them.
BUSIEST_TENANTS = 50

#: In a response: the policy that the server applied is still current.
NO_POLICY = msgspec.Raw()

Age = Annotated[int, Meta(ge=0, le=10**12)]
#: The largest number that Postgres stores.
Number = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Total = Annotated[int, Meta(ge=0, le=2**53)]
ShortText = Annotated[str, Meta(max_length=500)]


class Applied(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The configuration that a pod decides by, and why not a newer one."""

    epoch: Number = 0
    revision: Number = 0
    hash: Annotated[str, Meta(max_length=64)] = ""
    source: ConfigSource = ConfigSource.BUILT_IN
    status: ConfigStatus = ConfigStatus.NONE
    #: With ``rejected``: what was wrong with the offered configuration.
    error: ShortText = ""


class BreakerView(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The breaker of a dependency, as one pod sees it."""

    dependency: Name
    state: BreakerState = BreakerState.CLOSED
    generation: Number = 0
    for_ms: Age = 0
    #: How long until an open breaker may probe.
    remaining_ms: Age = 0
    override: OverrideMode | None = None
    #: Decided by this pod alone, without the store.
    local: bool = False
    #: The outcomes of the fleet in the breaker's window, as of the last report.
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
    #: How long calls took, by ``CALL_EDGES_MS``, where the caller reported it. Zeros at the end are left out.
    latency: Annotated[tuple[Total, ...], Meta(max_length=32)] = ()


class RuleCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Requests that one rule applied to since the process started."""

    rule: Name
    #: Allowed or not; ``None`` when it is every request of the tenant it is listed for.
    asked: Total | None = None
    #: Requests that this rule refused.
    refused: Total = 0
    #: Calls that a shadow rule would have refused, where Redis decided.
    shadow: Total = 0
    #: Calls that were spent from a fleet lease, without a question to Redis.
    leased: Total = 0


class TenantCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Requests of one tenant since the process started."""

    tenant: Subject
    allowed: Total = 0
    refused: Total = 0
    #: By rule, for the busiest tenants only.
    rules: Annotated[tuple[RuleCounters, ...], Meta(max_length=100)] = ()


class StoreCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Questions to Redis since the process started."""

    asked: Total = 0
    timeouts: Total = 0
    errors: Total = 0
    #: Response times, by ``LATENCY_EDGES_US``.
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
    #: The busiest tenants only; ``requests`` and ``refused`` are the totals.
    tenants: Annotated[tuple[TenantCounters, ...], Meta(max_length=100)] = ()
    #: By rule, for all tenants together, listed or not.
    rules: Annotated[tuple[RuleCounters, ...], Meta(max_length=100)] = ()


#: The most pairs of dependency and measure that a pod reports.
MAX_UNCHARGED = 20


class AllowedAlone(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The calls that a pod allowed without Redis, and whether Redis knows of it."""

    #: Calls (or costs) that it has not reported to Redis yet. They are lost if it dies and its disk does too.
    unreported: Total = 0
    #: Decisions that it could not count, for lack of room, since the process started.
    uncounted: Total = 0
    #: Journals of dead pods that it reported.
    adopted: Total = 0
    #: Journals of dead pods that it deleted because they were too old.
    expired: Total = 0


class PermitCounters(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """Permits that a sidecar gave to other processes since it started. A report ends a permit."""

    issued: Total = 0
    #: Permits that ended after their time, without a report.
    expired: Total = 0
    #: Permits that ended because newer ones needed their room.
    displaced: Total = 0


#: The counts that are exported as events of one metric.
PERMIT_EVENTS = ("issued", "expired", "displaced")


class Uncharged(Struct, frozen=True, kw_only=True, gc=False):
    """A limit counts this measure of calls to the dependency, and no call has stated a cost in it."""

    dependency: Name
    measure: Name


#: Limits of vendors in one heartbeat.
MAX_SEEN = 50


class SeenLimit(Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A limit of a vendor as one pod saw it: the number that answers state, in a window like that of ours,
    and what became of its calls.
    """

    dependency: Name
    limit: Name
    #: 0 for unknown.
    said: Annotated[int, Meta(ge=0, le=MAX_LIMIT)] = 0
    #: The number that applies instead of the configured one; 0 for none.
    followed: Annotated[int, Meta(ge=0, le=MAX_LIMIT)] = 0
    #: Answers that have stated ``said`` since the vendor stated another number, or none; and for how long.
    answers: Total = 0
    for_ms: Age = 0
    #: The last answer stated that this is left; ``None`` for unknown.
    left: Total | None = None
    # The others are about the last 10 minutes.
    #: Calls to the dependency, those that it refused because of a limit, and those that our limits refused.
    sent: Total = 0
    refused: Total = 0
    blocked: Total = 0
    #: Charged to this limit because the vendor had less left than Redis: spent by others.
    others: Total = 0
    #: The present and the lowest time of the calls of all pods, where the limit follows it; 0 for unknown.
    took_ms: Age = 0
    lowest_ms: Age = 0


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
    #: Why this mode, in words: ``connection refused``, ``100 timeouts in 10 s``.
    mode_cause: ShortText = ""
    breakers: Annotated[tuple[BreakerView, ...], Meta(max_length=500)] = ()
    counters: Counters = msgspec.field(default_factory=Counters)
    #: Tenants that this pod has seen and has no record of.
    want: Annotated[tuple[Subject, ...], Meta(max_length=1000)] = ()
    #: The last request of a process that stops on purpose.
    leaving: bool = False
    #: Entries of lists that this pod left out, to keep its heartbeat small.
    cut: Total = 0
    #: Its reserved share; ``None`` when it has none, or does not spend it any more.
    share: HeldShare | None = None
    #: How busy it is; ``None`` when it measures nothing.
    load: PodLoad | None = None
    #: The dependencies with a part of the protection, the busiest first.
    protection: Annotated[tuple[CallLoad, ...], Meta(max_length=MAX_CALL_LOADS)] = ()
    #: Some of the requests that it refused since its last heartbeat. What is lost is not sent again.
    refusals: Annotated[tuple[RefusalSample, ...], Meta(max_length=MAX_SAMPLES)] = ()
    #: How calls failed, for dependencies with failed calls.
    failures: Annotated[tuple[DependencyFailures, ...], Meta(max_length=MAX_FAILED_DEPENDENCIES)] = ()
    #: Counts of its tenants since an earlier tally, about once a minute; ``None`` in between.
    tally: Tally | None = None
    #: Calls that it allowed without Redis; ``None`` while there is nothing to say.
    alone: AllowedAlone | None = None
    #: When a limit gets another algorithm or period, its scripts carry over what is spent.
    carries_counts: bool = False
    #: Its locks, and its work that must not be done twice; ``None`` for an agent that does not report them.
    primitives: Primitives | None = None
    #: Measures that limits count and no call of this pod has stated, since the limits last changed.
    uncharged: Annotated[tuple[Uncharged, ...], Meta(max_length=MAX_UNCHARGED)] = ()
    #: The numbers that vendors have stated to it in the last minutes.
    seen: Annotated[tuple[SeenLimit, ...], Meta(max_length=MAX_SEEN)] = ()
    #: It enforces the budgets of the policy.
    enforces_budgets: bool = False
    #: It decides for all pods of a node: it has no bulkhead, no local rate and no shedding.
    serves_node: bool = False
    #: The usage of language models: the parts that no answer has confirmed yet.
    usage: Annotated[tuple[UsagePart, ...], Meta(max_length=MAX_PARTS)] = ()
    #: The descriptors of Envoy that it answered since an earlier tally; ``None`` if there were none.
    descriptors: DescriptorTally | None = None
    #: The permits that other processes got from it; ``None`` in a pod that is no sidecar.
    permits: PermitCounters | None = None


class Drill(Struct, frozen=True, kw_only=True):
    """An admin tests what this pod does without Redis. The drill ends on its own, by the pod's clock."""

    id: Annotated[int, Meta(ge=1, le=2**53)]
    kind: DrillKind
    remaining_ms: Annotated[int, Meta(ge=1, le=86_400_000)]


class SyncResponse(Struct, frozen=True, kw_only=True, omit_defaults=True):
    #: The clock of the control plane. Pods count expiries from it on their monotonic clocks.
    server_time_us: int
    #: When to come back. The agent adds 20 percent of jitter either way.
    next_ms: Annotated[int, Meta(ge=50, le=600_000)]
    #: The divisor of local shares: pods that counted a request, the most of the last ten minutes. For a pod
    #: that has counted none: all pods.
    live_servers: Annotated[int, Meta(ge=1, le=1_000_000)]
    head: ConfigHead
    #: The policy document, unless its hash is the one that the pod applied; then empty. Kept as bytes, so
    #: that the hash can be checked before anything is parsed.
    policy: msgspec.Raw = NO_POLICY
    #: The wanted records, and those changed since the applied revision; ``None`` is a tenant that is not
    #: registered and gets the default tier.
    tenants: dict[Subject, TenantRecord | None] = msgspec.field(default_factory=dict)
    #: Too many changes to list: ask again for every kept tenant.
    refetch_tenants: bool = False
    #: The reserved share of this pod, and for how long.
    share: ShareLease | None = None
    #: The fault that this pod simulates, and for how long; ``None`` for no drill, or when it is over.
    drill: Drill | None = None
    #: Overrides without a revision, kept in gateways' memory while neither Postgres nor Redis can store them.
    #: They apply on top of the policy of whatever head the pod has.
    held: dict[Slug, Override] = msgspec.field(default_factory=dict)
    #: The most retries of this pod, so that the fleet makes few; without one, the pod's own budget applies.
    retry_caps: RetryCaps = msgspec.field(default_factory=dict)
    #: Milliseconds for which this pod may be unready because of pressure; 0 for not.
    unready_ms: Annotated[int, Meta(ge=0, le=600_000)] = 0
    #: The key for the tokens of its refusals; without one, it makes none.
    refusal_key: RefusalKey | None = None
    #: With a key: the page that explains its tokens, which answers to refused requests name; empty for none.
    explain_url: ExplainPage = ""
    #: The key for digests of callers, for samples of its refusals; without one, it sends none.
    digest_key: DigestKey | None = None
    #: The keys that seal kept answers; without a key, a pod that never had one keeps them as they are.
    seal_keys: SealKeys = ()
    #: To a heartbeat with ``usage``: Postgres has its parts until this number. An older gateway sends
    #: ``None``.
    usage_taken: Annotated[int, Meta(ge=0, le=2**53)] | None = None


class Nudge(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Published on ``keys.config_channel`` after a newer configuration reached Redis."""

    epoch: int
    revision: int
    #: The revision that this one replaced. A pod that applied an older one has missed something.
    since: int
    #: Tenants whose records changed between the two; ``None`` when they are too many to list.
    tenants: tuple[str, ...] | None = ()


encode = msgspec.json.Encoder().encode
decode_request = msgspec.json.Decoder(SyncRequest).decode
decode_response = msgspec.json.Decoder(SyncResponse).decode
decode_nudge = msgspec.json.Decoder(Nudge).decode
