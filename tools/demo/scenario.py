"""The demo's scenario: tenants of three tiers, their traffic, dependencies, and timings."""

import math
from dataclasses import dataclass
from zlib import crc32

#: The service whose pods serve the tenants.
SERVICE = "shop"
PODS = ("shop-1", "shop-2", "shop-3")
ZONES = ("zone-a", "zone-b", "zone-c")

#: The vendor that fails from time to time.
FLAKY = "payments-api"
#: Receipts wait in its backlog until they can be sent.
OUTBOX = "email-smtp"

#: ``Tuning`` for a demo: everything that takes minutes in production takes seconds.
TUNING = {
    # A dozen processes share this machine's cores with Redis: 5 ms would be missed without a Redis fault.
    "store_deadline_us": 20_000,
    "failure_window_ms": 2_000,
    "timeout_window_ms": 2_000,
    "probe_interval_ms": 500,
    "ramp_ms": 3_000,
    "report_interval_ms": 50,
    "share_rest_ms": 2_500,
}

#: Pods show what they would shed, and refuse nothing: a busy machine must not look like a defect of the demo.
OBSERVE_SHEDDING_S = 6 * 24 * 3600

#: How often pods sync, in milliseconds.
BEAT_MS = 500


@dataclass(frozen=True, kw_only=True)
class Quota:
    """A token bucket: ``limit`` calls per ``window_s`` seconds, ``burst`` at once."""

    limit: int
    window_s: int
    burst: int


#: Every tier and tenant has this one quota.
QUOTA = "requests"

#: Tier -> quota, instead of the default ones per minute.
TIERS = {
    "anonymous": Quota(limit=4, window_s=1, burst=4),
    "free": Quota(limit=8, window_s=1, burst=8),
    "pro": Quota(limit=30, window_s=1, burst=30),
    "enterprise": Quota(limit=120, window_s=1, burst=120),
}


@dataclass(frozen=True, kw_only=True)
class Tenant:
    key: str
    title: str
    tier: str
    #: Its mean share of all calls.
    share: float
    #: The amplitude of its variation, relative to the mean; one swing per period.
    swing: float
    period_s: float

    def share_at(self, seconds: float) -> float:
        """Its share of the traffic at that moment; an amplitude above 1 means silence between bursts."""
        # Each has another phase, so that their peaks differ.
        phase = 2 * math.pi * (seconds / self.period_s + crc32(self.key.encode()) % 7 / 7)
        return max(0.0, self.share * (1 + self.swing * math.sin(phase)))


TENANTS = (
    Tenant(key="acme-retail", title="Acme Retail", tier="enterprise", share=0.30, swing=0.5, period_s=40),
    Tenant(key="globex", title="Globex", tier="enterprise", share=0.20, swing=0.3, period_s=25),
    Tenant(key="initech", title="Initech", tier="pro", share=0.14, swing=0.6, period_s=30),
    Tenant(key="umbrella-labs", title="Umbrella Labs", tier="pro", share=0.10, swing=0.4, period_s=55),
    Tenant(key="hooli-trial", title="Hooli (trial)", tier="free", share=0.02, swing=0.8, period_s=35),
    # Bursts to about three times its quota, then is silent.
    Tenant(key="noisy-sparrow", title="Noisy Sparrow", tier="free", share=0.10, swing=1.6, period_s=20),
)

#: Calls under an unregistered name: decided by the default tier, and counted.
STRANGER = Tenant(key="nobody-we-know", title="-", tier="anonymous", share=0.01, swing=0.5, period_s=30)

#: The tenant of the checkpoints' own requests, practically unlimited.
STORYTELLER = "storyteller"

#: A free tenant without other traffic: only checkpoints use its quota.
PENNY = "penny-wise"

#: Without traffic: key, tier and title.
RESERVED = ((STORYTELLER, "enterprise", "Storyteller"), (PENNY, "free", "Penny Wise"))

#: For the checkpoints.
UNLIMITED = Quota(limit=100_000, window_s=1, burst=100_000)


@dataclass(frozen=True, kw_only=True)
class Dependency:
    name: str
    title: str
    kind: str
    owner: str
    fallback: str
    runbook: str
    #: Share of all calls that leave the pods.
    share: float
    latency_ms: int
    #: Breaker columns that differ from the preset of its kind.
    breaker: dict[str, int]
    #: Calls per second that the vendor's contract allows, or ``None``.
    vendor_limit: int | None = None
    #: Calls per day that are paid for, or ``None``.
    paid_per_day: int | None = None
    #: Pods have the bulkhead, the SLA and the retries of the presets of its kind.
    protected: bool = False
    #: Pods call it with a tier, retries and fallbacks.
    by_tier: bool = False


_QUICK = {
    "window_s": 2,
    "minimum_calls": 10,
    "open_ms": 2_000,
    "open_max_ms": 8_000,
    "probe_lease_ms": 2_000,
    "slow_ms": 1_000,
}

DEPENDENCIES = (
    Dependency(
        name=FLAKY,
        title="Payments API",
        kind="external",
        owner="payments-oncall",
        fallback="Orders are taken and charged later.",
        runbook="payment-provider-timeouts",
        share=0.4,
        latency_ms=12,
        breaker=_QUICK,
        vendor_limit=400,
        protected=True,
    ),
    Dependency(
        name="search",
        title="Product search",
        kind="internal",
        owner="search-team",
        fallback="Best sellers are shown instead of results.",
        runbook="search",
        share=0.25,
        latency_ms=6,
        breaker=_QUICK,
        protected=True,
        by_tier=True,
    ),
    Dependency(
        name="ledger-db",
        title="Ledger",
        kind="database",
        owner="ledger-team",
        fallback="Orders are booked later from the journal.",
        runbook="ledger-db",
        share=0.17,
        latency_ms=4,
        breaker=_QUICK,
    ),
    Dependency(
        name="fraud-score",
        title="Fraud score",
        kind="external",
        owner="fraud-desk",
        fallback="Small orders pass; a person reviews large ones.",
        runbook="fraud-score",
        share=0.1,
        latency_ms=30,
        breaker=_QUICK,
        vendor_limit=100,
    ),
    Dependency(
        name=OUTBOX,
        title="Mail relay",
        kind="external",
        owner="platform-oncall",
        fallback="Receipts wait in the outbox.",
        runbook="email-smtp",
        share=0.08,
        latency_ms=20,
        breaker=_QUICK,
        vendor_limit=100,
        paid_per_day=50_000,
    ),
)
