"""What every golden file says, as the objects it must decode to.

A change of the contract adds a file and an example; it never touches an old one: such pods live on.
"""

from typing import Any

import msgspec

from fuseboard.contract.load import CallLoad, PodLoad, PriorityLoad, TierLoad
from fuseboard.contract.policy import (
    BreakerPolicy,
    ConfigHead,
    Dependency,
    Limit,
    Override,
    Policy,
    TenantRecord,
    Tier,
    Tuning,
)
from fuseboard.contract.primitives import Primitives
from fuseboard.contract.protection import (
    Bulkhead,
    CallProtection,
    LocalRate,
    Observe,
    PodProtection,
    Readiness,
    Retry,
    Route,
    Shedding,
)
from fuseboard.contract.shares import HeldShare, ShareLease
from fuseboard.contract.sync import (
    Applied,
    BreakerView,
    Counters,
    DependencyCounters,
    Drill,
    Nudge,
    RuleCounters,
    StoreCounters,
    SyncRequest,
    SyncResponse,
    TenantCounters,
)
from fuseboard.contract.words import (
    Algorithm,
    BreakerState,
    CallTier,
    ConfigSource,
    ConfigStatus,
    DrillKind,
    FailurePolicy,
    Jitter,
    LoadLevel,
    Mode,
    OverrideMode,
    Reason,
    WhenFull,
)
from tests.contract.budget_examples import BUDGETS
from tests.contract.descriptor_examples import NAMED_POLICIES
from tests.contract.failing_examples import FAILURES
from tests.contract.flag_examples import with_flags
from tests.contract.sample_examples import (
    ALONE,
    ANSWERS,
    LEASED,
    PRIMITIVES,
    SAMPLES,
    TALLY,
    TIMED,
    TRACED,
    UNCHARGED,
    UNSEALED,
    USAGE,
    with_seen_limits,
)

PER_MINUTE = Limit(name="requests", limit=600, window_ms=60_000, burst=100)
STRICT = Limit(
    name="per-day",
    limit=10_000,
    window_ms=86_400_000,
    algorithm=Algorithm.SLIDING_WINDOW,
    failure_policy=FailurePolicy.RESERVED,
    shadow=True,
)

POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(
        Tier(name="free", quotas=(PER_MINUTE,), priority=10),
        Tier(name="enterprise", quotas=(PER_MINUTE, STRICT), priority=90),
    ),
    dependencies=(
        Dependency(
            name="openai",
            vendor_limits=(STRICT,),
            breaker=BreakerPolicy(
                consecutive_failures=3,
                failure_percent=40,
                slow_percent=80,
                slow_ms=30_000,
                minimum_calls=10,
                window_s=60,
                open_ms=60_000,
                open_max_ms=900_000,
                probes=2,
                probe_lease_ms=45_000,
                successes_to_close=3,
                minimum_servers=1,
            ),
            timeout_ms=40_000,
            override=Override(
                mode=OverrideMode.FORCED_OPEN,
                revision=41,
                expires_at_us=1_800_000_000_000_000,
                reason="vendor asked us to stop — ticket 17",
                actor="alice",  # as in golden/, which keeps its names
            ),
            reset_revision=12,
        ),
        Dependency(name="ledger"),
    ),
    tuning=Tuning(
        store_deadline_us=4_000,
        store_failures=4,
        failure_window_ms=6_000,
        store_timeouts=50,
        timeout_window_ms=20_000,
        probe_interval_ms=500,
        ramp_ms=3_000,
        report_interval_ms=50,
    ),
)
SMALLEST_POLICY = Policy(environment="production", default_tier="free", tiers=(Tier(name="free"),))

HEAD = ConfigHead(epoch=2, revision=42, hash="0123456789abcdef")

REQUEST = SyncRequest(
    environment="production",
    service="checkout",
    server="checkout-7d9f-x2x1",
    boot="01890a5d-ac96-774b",
    sequence=412,
    agent_version="0.1.0",
    zone="eu-west-1a",
    up_ms=3_600_000,
    applied=Applied(
        epoch=2,
        revision=41,
        hash="fedcba9876543210",
        source=ConfigSource.DISK,
        status=ConfigStatus.REJECTED,
        error="default_tier: there is no tier 'gold'",
    ),
    mode=Mode.LOCAL,
    mode_for_ms=12_500,
    mode_cause="connection refused",
    breakers=(
        BreakerView(
            dependency="openai",
            state=BreakerState.HALF_OPEN,
            generation=1_800_000_000_000_001,
            for_ms=61_000,
            remaining_ms=29_000,
            override=OverrideMode.METRICS_ONLY,
            local=True,
            window_calls=120,
            window_failures=60,
            consecutive_failures=3,
        ),
        BreakerView(dependency="ledger"),
    ),
    counters=Counters(
        requests=10_000,
        refused={Reason.QUOTA: 120, Reason.BREAKER_OPEN: 30},
        unknown_tenants=4,
        decided_locally=77,
        store=StoreCounters(
            asked=9_000, timeouts=3, errors=1, latency=(5_000, 3_000, 900, 90, 6, 1, 0, 0, 0, 0, 0, 3)
        ),
        dependencies=(
            DependencyCounters(
                dependency="openai", ok=400, failure=60, slow=7, neutral=2, refused={Reason.VENDOR_LIMIT: 11}
            ),
        ),
        tenants=(TenantCounters(tenant="acme ünd sons", allowed=800, refused=120),),
    ),
    want=("acme ünd sons", "unknown"),
    leaving=True,
)
SMALLEST_REQUEST = SyncRequest(
    environment="production",
    service="checkout",
    server="pod-1",
    boot="boot-0001",
    sequence=0,
    agent_version="0",
)

RESPONSE = SyncResponse(
    server_time_us=1_799_999_999_000_000,
    next_ms=5_000,
    live_servers=18,
    head=HEAD,
    policy=msgspec.Raw(b'{"environment":"production","default_tier":"free","tiers":[{"name":"free"}]}'),
    tenants={"acme ünd sons": TenantRecord(tier="enterprise"), "unknown": None},
    refetch_tenants=True,
)
SMALLEST_RESPONSE = SyncResponse(server_time_us=1, next_ms=50, live_servers=1, head=HEAD)

TENANT = TenantRecord(tier="enterprise", suspended=True, quotas=(PER_MINUTE, STRICT))
NUDGE = Nudge(epoch=2, revision=42, since=41, tenants=("acme ünd sons",))

# Pieces of what is spent without Redis, and drills.
SHARED_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(
        Dependency(name="ledger", vendor_limits=(msgspec.structs.replace(STRICT, reserved_percent=0),)),
    ),
    tuning=Tuning(reserved_percent=20, share_lease_ms=600_000, share_rest_ms=120_000),
)
SHARED_REQUEST = msgspec.structs.replace(
    REQUEST, mode=Mode.DRILL, share=HeldShare(level=5, place=17, terms=1_099_511_627_779)
)
# Something was left out.
CUT_REQUEST = msgspec.structs.replace(SHARED_REQUEST, cut=250)

SHARED_RESPONSE = msgspec.structs.replace(
    RESPONSE,
    share=ShareLease(level=5, place=17, terms=1_099_511_627_779, remaining_ms=899_000),
    drill=Drill(id=3, kind=DrillKind.SLOW, remaining_ms=120_000),
)

# Breakers held beside the document.
HOLDING_RESPONSE = msgspec.structs.replace(
    SMALLEST_RESPONSE,
    held={
        "openai": Override(
            mode=OverrideMode.FORCED_OPEN,
            revision=1_000_042,
            expires_at_us=1_800_000_000_000_000,
            reason="both stores are away",
            actor="alice",  # as in golden/
        )
    },
)

BY_RULE_REQUEST = msgspec.structs.replace(
    REQUEST,
    counters=msgspec.structs.replace(
        REQUEST.counters,
        tenants=(
            TenantCounters(
                tenant="acme ünd sons",
                allowed=800,
                refused=120,
                rules=(RuleCounters(rule="requests", refused=120), RuleCounters(rule="new", shadow=31)),
            ),
            TenantCounters(
                tenant="globex", allowed=70, rules=(RuleCounters(rule="exports", asked=7, refused=0),)
            ),
        ),
        rules=(
            RuleCounters(rule="exports", asked=9),
            RuleCounters(rule="requests", asked=9_000, refused=120),
        ),
    ),
)

#: Calls that failed after all their attempts.
EXHAUSTED = (CallLoad(dependency="openai", first_calls=9, retries=3, exhausted=1),)

#: Limits of all callers, of every service and of one.
SERVICE_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    service_limits=(
        Limit(name="flood", limit=10_000, window_ms=60_000, burst=1_000, service="*"),
        Limit(
            name="uploads",
            limit=100,
            window_ms=1_000,
            algorithm=Algorithm.SLIDING_WINDOW,
            failure_policy=FailurePolicy.LOCAL_SHARE,
            endpoints=("POST /uploads",),
            service="web",
        ),
    ),
)

# What protects a pod. No value is a default.
PROTECTING_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(
        Dependency(
            name="openai",
            protection=CallProtection(
                tier=CallTier.CRITICAL,
                sla_ms=30_000,
                bulkhead=Bulkhead(
                    max_concurrent=20,
                    shares=(60, 30, 10),
                    queues=(10, 5, 3),
                    queue_timeout_ms=3_000,
                    when_full=(WhenFull.ABORT, WhenFull.DISCARD, WhenFull.QUEUE),
                    borrow=True,
                    adaptive=True,
                    target_wait_ms=250,
                    resize_under_pressure=True,
                ),
                local_rate=LocalRate(limit=100, window_ms=30_000),
                retry=Retry(
                    attempts=2,
                    base_ms=1_000,
                    cap_ms=60_000,
                    jitter=Jitter.DECORRELATED,
                    budget_percent=5,
                    floor_milli=500,
                    load_factor_percent=110,
                    default_retry_after_ms=60_000,
                    idempotent=True,
                ),
            ),
        ),
        Dependency(name="ledger", protection=CallProtection()),
    ),
    protection=PodProtection(
        shedding=Shedding(queue_max=200, p95_percent=80, shed_at=60, shed_hard_at=95),
        readiness=Readiness(unready_percent=10, hold_ms=20_000),
        routes=(Route(pattern="POST /v1/*", sla_ms=2_000),),
        retries_per_s=5,
        observe=Observe(
            shedding_until_us=1_800_000_000_000_000,
            bulkhead_until_us=1_800_000_000_000_001,
            local_rate_until_us=1_800_000_000_000_002,
            retry_until_us=1_800_000_000_000_003,
        ),
    ),
)
# The tiers lend their slots.
SHARING_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(Dependency(name="openai", protection=CallProtection(bulkhead=Bulkhead(share_idle=True))),),
)
# Streams have bounds for their parts, and each tier of calls has a timeout.
STREAMING_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(
        Dependency(
            name="openai",
            first_part_ms=30_000,
            between_parts_ms=60_000,
            protection=CallProtection(timeouts_ms=(180_000, 120_000, 0)),
        ),
    ),
)
# Calls wait longer for Redis than those of other dependencies.
PATIENT_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(Dependency(name="openai", store_wait_ms=250),),
)
PROTECTED_REQUEST = msgspec.structs.replace(
    CUT_REQUEST,
    load=PodLoad(
        pressure=820,
        level=LoadLevel.SHED,
        cause="94 calls wait (limit 100)",
        cpu=710,
        throttled=30,
        memory=640,
        lag_ms=12,
        in_flight=140,
        waiting=94,
        p95_ms=1_700,
        errors=31,
        observed=4,
        asks_unready=True,
        unready=True,
    ),
    protection=(
        CallLoad(
            dependency="openai",
            tiers=(
                TierLoad(
                    limit=25, active=25, queued=9, peak=25, entered=9_000, full=40, timed_out=7, borrowed=300
                ),
                TierLoad(limit=18),
                TierLoad(limit=7),
            ),
            mean_ms=1_300,
            p95_ms=2_900,
            wait_p95_ms=80,
            first_calls=9_000,
            retries=410,
            helped=300,
            no_budget=55,
            fallbacks=47,
            cached=30,
            fallback_failures=2,
            queue_size=48,
            queue_predicted=51,
            observed=3,
        ),
        CallLoad(dependency="ledger"),
    ),
)
NESTING_REQUEST = msgspec.structs.replace(
    SMALLEST_REQUEST, protection=(CallLoad(dependency="openai", reclaimed=2, nested=17),)
)
PROTECTING_RESPONSE = msgspec.structs.replace(HOLDING_RESPONSE, retry_caps={"openai": 250}, unready_ms=30_000)
BY_CALLS_POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free"),),
    dependencies=(Dependency(name="openai", breaker=BreakerPolicy(window_s=600, window_calls=100)),),
)

REMAINING_POLICY = msgspec.structs.replace(SMALLEST_POLICY, tuning=Tuning(remaining_for_ms=0))
FOLLOWING_POLICY = msgspec.structs.replace(SMALLEST_POLICY, tuning=Tuning(vendor_floor_percent=10))
PREFIX_POLICY = msgspec.structs.replace(SMALLEST_POLICY, tuning=Tuning(ipv6_prefix=56))
SHED_REQUEST = msgspec.structs.replace(
    SMALLEST_REQUEST,
    load=PodLoad(
        late=1_250,
        priorities=(
            PriorityLoad(priority=10, asked=900, shed=700),
            PriorityLoad(priority=90, asked=800, shed=0),
        ),
        shares_idle=True,
    ),
)

#: File in ``golden/`` -> the object.
EXAMPLES: dict[str, Any] = {
    "policy.1.json": POLICY,
    "policy.1.smallest.json": SMALLEST_POLICY,
    "tenant.1.json": TENANT,
    **BUDGETS,
    "tenant.1.smallest.json": TenantRecord(tier="free"),
    "sync_request.1.json": REQUEST,
    "sync_request.1.smallest.json": SMALLEST_REQUEST,
    "sync_response.1.json": RESPONSE,
    "sync_response.1.smallest.json": SMALLEST_RESPONSE,
    "policy.2.json": SHARED_POLICY,
    "sync_request.2.json": SHARED_REQUEST,
    "sync_response.2.json": SHARED_RESPONSE,
    "sync_request.3.json": BY_RULE_REQUEST,
    "sync_request.4.json": CUT_REQUEST,
    "sync_response.3.json": HOLDING_RESPONSE,
    "policy.3.json": PROTECTING_POLICY,
    "sync_request.5.json": PROTECTED_REQUEST,
    "sync_request.6.json": NESTING_REQUEST,
    "sync_request.8.json": msgspec.structs.replace(SMALLEST_REQUEST, counters=TIMED),
    "sync_response.4.json": PROTECTING_RESPONSE,
    "sync_request.7.json": msgspec.structs.replace(SMALLEST_REQUEST, refusals=SAMPLES),
    "sync_request.9.json": msgspec.structs.replace(SMALLEST_REQUEST, failures=FAILURES),
    "sync_request.11.json": msgspec.structs.replace(SMALLEST_REQUEST, tally=TALLY),
    "sync_request.12.json": msgspec.structs.replace(SMALLEST_REQUEST, alone=ALONE),
    "sync_request.13.json": msgspec.structs.replace(SMALLEST_REQUEST, refusals=TRACED),
    "sync_request.14.json": msgspec.structs.replace(SMALLEST_REQUEST, primitives=PRIMITIVES),
    "sync_request.15.json": msgspec.structs.replace(SMALLEST_REQUEST, primitives=Primitives()),
    "sync_request.unsealed.json": msgspec.structs.replace(SMALLEST_REQUEST, primitives=UNSEALED),
    "sync_request.uncharged.json": msgspec.structs.replace(SMALLEST_REQUEST, uncharged=UNCHARGED),
    **with_seen_limits(SMALLEST_REQUEST, SMALLEST_POLICY),
    "sync_request.usage.json": msgspec.structs.replace(SMALLEST_REQUEST, usage=USAGE),
    "sync_request.10.json": msgspec.structs.replace(SMALLEST_REQUEST, counters=LEASED),
    **with_flags(SMALLEST_REQUEST),
    **{name: msgspec.structs.replace(SMALLEST_RESPONSE, **fields) for name, fields in ANSWERS.items()},
    "policy.4.json": BY_CALLS_POLICY,
    "policy.ipv6_prefix.json": PREFIX_POLICY,
    "policy.remaining_for_ms.json": REMAINING_POLICY,
    "policy.vendor_floor_percent.json": FOLLOWING_POLICY,
    "policy.service_limits.json": SERVICE_POLICY,
    **NAMED_POLICIES,
    "sync_request.exhausted.json": msgspec.structs.replace(SMALLEST_REQUEST, protection=EXHAUSTED),
    "policy.5.json": SHARING_POLICY,
    "policy.6.json": STREAMING_POLICY,
    "policy.store_wait.json": PATIENT_POLICY,
    "sync_request.16.json": SHED_REQUEST,
    "nudge.1.json": NUDGE,
    "nudge.1.smallest.json": Nudge(epoch=1, revision=1, since=0),
    "nudge.1.too_many.json": Nudge(epoch=1, revision=900, since=1, tenants=None),
}
