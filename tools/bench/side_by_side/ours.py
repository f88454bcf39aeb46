"""The agent's admission, as a pod runs it, with limits that admit everything."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext

from msgspec.structs import replace

from fuseboard.admission.call_pressure import CallShedding
from fuseboard.composition import compose_admission
from fuseboard.configuration.checked_config import CheckedConfig
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.policy import (
    BreakerPolicy,
    ConfigHead,
    Dependency,
    Limit,
    Policy,
    TenantRecord,
    Tier,
    Tuning,
    encode_policy,
    hash_of,
)
from fuseboard.contract.protection import Bulkhead, CallProtection, LocalRate, PodProtection, Retry, Shedding
from fuseboard.contract.store_url import StoreUrl
from fuseboard.contract.words import MAX_LIMIT, Algorithm, ConfigSource, Mode, Outcome
from fuseboard.reporting.counters import Counters
from fuseboard.store.single_store import SingleStore
from tests.waiting import eventually
from tools.bench.side_by_side.shared_only import shared_only

DEPENDENCY = "payments"
GUARDED, UNGUARDED = "guarded", "unguarded"
SLOTS = 50
SLA_MS = 1000
MANY_TENANTS = 200
TENANTS = tuple(f"tenant-{number:03d}" for number in range(MANY_TENANTS))

#: The vendor's limit is a strict sliding window: the most expensive kind, and never leased, so that every
#: call to the vendor asks Redis. The tenant's quota is a token bucket.
VENDOR = Limit(name="calls", limit=50_000_000, window_ms=1000, algorithm=Algorithm.SLIDING_WINDOW)
QUOTA = Limit(name="calls", limit=5_000_000, window_ms=1000, burst=5_000_000, dependency=DEPENDENCY)
#: A limit that is leased, so that most calls are decided in memory.
LEASED = Limit(name="calls", limit=50_000_000, window_ms=1000, burst=50_000_000)
REQUESTS = Limit(name="requests", limit=50_000_000, window_ms=10_000, burst=50_000_000)
#: The same, but never leased: not early, because it has a threshold, and not hot, because none reaches that.
ASKED_REQUESTS = replace(REQUESTS, lease_above=MAX_LIMIT)

#: Missed deadlines never end the run in local mode: this many in 1 ms are impossible. On a busy machine the
#: default of 5 ms would let some rounds be decided without Redis: those would be cheap, and count in our
#: favour. The deadline has a separate measurement.
PATIENT = Tuning(store_deadline_us=50_000, store_timeouts=10_000, timeout_window_ms=1)
SHIPPED_DEADLINE = Tuning(store_timeouts=10_000, timeout_window_ms=1)


def policy(environment: str, tuning: Tuning, requests: Limit = REQUESTS) -> Policy:
    return Policy(
        environment=environment,
        default_tier="all",
        tiers=(Tier(name="all", quotas=(QUOTA, requests)),),
        dependencies=(
            Dependency(name=DEPENDENCY, vendor_limits=(VENDOR,), breaker=BreakerPolicy()),
            Dependency(name=UNGUARDED, vendor_limits=(LEASED,), breaker=BreakerPolicy()),
            Dependency(
                name=GUARDED,
                vendor_limits=(LEASED,),
                breaker=BreakerPolicy(),
                protection=CallProtection(
                    bulkhead=Bulkhead(max_concurrent=SLOTS),
                    local_rate=LocalRate(limit=MAX_LIMIT),
                    retry=Retry(),
                    sla_ms=SLA_MS,
                ),
            ),
        ),
        protection=PodProtection(shedding=Shedding()),
        tuning=tuning,
    )


def configured(
    environment: str, tuning: Tuning = PATIENT, live_servers: int = 1, requests: Limit = REQUESTS
) -> Configuration:
    configuration = Configuration(environment=environment)
    decided = policy(environment, tuning, requests)
    document = encode_policy(decided)
    head = ConfigHead(epoch=1, revision=1, hash=hash_of(document))
    tenants = dict.fromkeys(TENANTS, TenantRecord(tier="all"))
    configuration.apply(
        CheckedConfig(head=head, source=ConfigSource.DISK, policy=decided, document=document, tenants=tenants)
    )
    configuration.live_servers = live_servers
    return configuration


class Pod:
    """One server. Every environment has separate keys, so pods do not share breakers or limits."""

    def __init__(
        self, redis_url: str, environment: str, tuning: Tuning, live_servers: int, requests: Limit
    ) -> None:
        self.counters = Counters()
        self.store = SingleStore(StoreUrl.parse(redis_url))
        self.configuration = configured(environment, tuning, live_servers, requests)
        self.admission = compose_admission(
            configuration=self.configuration,
            counters=self.counters,
            store=self.store,
            server="bench",
            environment=environment,
            on_change=lambda: None,
        )
        # As a running agent has it: the first step of a guarded call.
        self.shedding = CallShedding(self.configuration, self.admission.guarded)
        self.shedding.adopt(self.configuration.snapshot)

    def call(self, tenants: int):
        """Admit a call: override, breaker, vendor limit and tenant quota."""
        admit, names = self.admission.admit_call, TENANTS[:tenants]

        async def call(number: int) -> None:
            await admit(DEPENDENCY, tenant=names[number % tenants])

        return call

    def reported_call(self, tenants: int):
        """The same, and report success, as a user of a breaker must."""
        admission, names, ok = self.admission, TENANTS[:tenants], Outcome.OK

        async def call(number: int) -> None:
            permit = await admission.admit_call(DEPENDENCY, tenant=names[number % tenants])
            admission.report(permit, ok)

        return call


@asynccontextmanager
async def running(
    redis_url: str,
    environment: str,
    tuning: Tuning = PATIENT,
    *,
    live_servers: int = 1,
    requests: Limit = REQUESTS,
    may_decide_locally: bool = False,
) -> AsyncIterator[Pod]:
    """A pod that is connected. The run ends if it decides without Redis, unless it ``may_decide_locally``."""
    pod = Pod(redis_url, environment, tuning, live_servers, requests)
    pod.admission.start()
    try:
        await eventually(lambda: pod.admission.mode is Mode.SHARED, "an answer of Redis", within_s=5)
        with nullcontext() if may_decide_locally else shared_only(environment, pod.counters):
            yield pod
    finally:
        await pod.admission.stop()
