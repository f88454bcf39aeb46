"""Pods without HTTP: a configuration, a real Redis, and a name."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import msgspec

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
from fuseboard.contract.words import Algorithm, ConfigSource, FailurePolicy, Mode
from fuseboard.reporting.counters import Counters
from fuseboard.store import open_store
from tests.waiting import eventually

REQUESTS = Limit(
    name="requests", limit=60, window_ms=60_000, burst=20, failure_policy=FailurePolicy.LOCAL_SHARE
)
CALLS = Limit(
    name="calls",
    limit=1000,
    window_ms=1000,
    algorithm=Algorithm.SLIDING_WINDOW,
    failure_policy=FailurePolicy.LOCAL_SHARE,
)
BREAKER = BreakerPolicy(consecutive_failures=4, open_ms=60_000, probes=2, minimum_servers=1)
#: The longest deadline that a published policy may have. Agents of this process wait longer: see
#: ``no_pause_is_an_outage`` in tests/conftest.py.
DEADLINE_US = 50_000
#: Quick enough to watch.
TUNING = Tuning(probe_interval_ms=50, ramp_ms=300, store_deadline_us=DEADLINE_US, store_timeouts=5)
#: Stays shared however busy the machine is: for tests that are not about outages.
PATIENT = msgspec.structs.replace(TUNING, store_timeouts=10_000, store_failures=1000)
POLICY = Policy(
    environment="production",
    default_tier="free",
    tiers=(Tier(name="free", quotas=(REQUESTS,)), Tier(name="unlimited")),
    dependencies=(Dependency(name="payments", vendor_limits=(CALLS,), breaker=BREAKER),),
    tuning=TUNING,
)
#: Tests of the deadline itself publish this one: ``tests.patient_pods`` leaves it as it is.
SHORT_US = DEADLINE_US - 1
SHORT_DEADLINE = msgspec.structs.replace(
    POLICY, tuning=msgspec.structs.replace(TUNING, store_deadline_us=SHORT_US)
)
TENANTS = {
    "acme": TenantRecord(tier="free"),
    "big": TenantRecord(tier="unlimited"),
    "late-payer": TenantRecord(tier="free", suspended=True),
}


def configured(
    policy: Policy = POLICY,
    *,
    revision: int = 7,
    live_servers: int = 1,
    tenants: Mapping[str, TenantRecord] = TENANTS,
) -> Configuration:
    configuration = Configuration(environment="production")
    give(configuration, policy, revision=revision, tenants=tenants)
    configuration.live_servers = live_servers
    return configuration


def give(
    configuration: Configuration,
    policy: Policy,
    *,
    revision: int,
    tenants: Mapping[str, TenantRecord] = TENANTS,
) -> None:
    """Publish ``policy`` to one server."""
    document = encode_policy(policy)
    head = ConfigHead(epoch=1, revision=revision, hash=hash_of(document))
    configuration.apply(
        CheckedConfig(head=head, source=ConfigSource.DISK, policy=policy, document=document, tenants=tenants)
    )


class Server:
    """One pod: its admission, and what it would tell the control plane."""

    def __init__(self, redis_url: str, name: str, configuration: Configuration, service: str = "") -> None:
        self.configuration = configuration
        self.counters = Counters()
        self.changes = 0
        self.admission = compose_admission(
            configuration=configuration,
            counters=self.counters,
            store=open_store(redis_url),
            server=name,
            environment="production",
            service=service,
            on_change=self._changed,
        )

    def _changed(self) -> None:
        self.changes += 1


@asynccontextmanager
async def running(
    redis_url: str,
    name: str = "web-1",
    configuration: Configuration | None = None,
    *,
    service: str = "",
    connected: bool = True,
) -> AsyncIterator[Server]:
    server = Server(redis_url, name, configuration or configured(), service)
    server.admission.start()
    try:
        if connected:
            await eventually(lambda: server.admission.mode is Mode.SHARED)
        yield server
    finally:
        await server.admission.stop()
