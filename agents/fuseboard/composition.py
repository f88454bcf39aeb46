"""Puts together the parts of an agent that decide: which part uses which."""

from collections.abc import Callable
from secrets import token_hex
from time import monotonic

from fuseboard.admission.account_stops import AccountStops
from fuseboard.admission.admission import Admission
from fuseboard.admission.call_admission import CallAdmission
from fuseboard.admission.call_guard import CallGuards
from fuseboard.admission.decisions import DecisionBuilder
from fuseboard.admission.guarded_calls import GuardedCalls
from fuseboard.admission.request_admission import RequestAdmission
from fuseboard.batching.account_domains import AccountDomains
from fuseboard.batching.batch import Batcher
from fuseboard.batching.domains import RequestDomains
from fuseboard.batching.fleet_leases import Leases
from fuseboard.batching.known_spending import KnownSpending
from fuseboard.batching.settlements import Settlements
from fuseboard.breaker.fleet_breaker import FleetBreaker
from fuseboard.breaker.probes import Probes
from fuseboard.breaker.reports import Reports
from fuseboard.calling.retries import Capacity, Retries
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.policy import Tuning
from fuseboard.contract.protection import PodProtection, Retry
from fuseboard.decision import Signer
from fuseboard.reporting.counters import Counters
from fuseboard.store import Store
from fuseboard.store.drill_store import DrillStore
from fuseboard.store.health import StoreHealth
from fuseboard.without_redis.redis_fallback import compose_redis_fallback


def compose_admission(
    *,
    configuration: Configuration,
    counters: Counters,
    store: Store,
    server: str,
    environment: str,
    on_change: Callable[[], None],
    service: str = "",
    signer: Signer | None = None,
) -> Admission:
    """Make everything that takes part in a decision. ``on_change``: the mode or a breaker has changed."""

    def tuning() -> Tuning:
        return configuration.snapshot.tuning

    drill_store = DrillStore(store)
    health = StoreHealth(store=drill_store, environment=environment, tuning=tuning)
    spending = KnownSpending()
    batcher = Batcher(
        store=drill_store,
        health=health,
        meter=counters,
        tuning=tuning,
        token_prefix=f"{token_hex(4)}-",
        spending=spending,
    )
    settlements = Settlements(store=drill_store, health=health, spending=spending)
    leases = Leases(
        batcher=batcher,
        settlements=settlements,
        live_servers=lambda: configuration.live_servers,
        usable=lambda: health.usable,
    )
    reports = Reports(store=drill_store, health=health, tuning=tuning)
    redis_fallback = compose_redis_fallback(
        configuration=configuration, store=drill_store, health=health, spending=spending
    )
    redis_fallback.limits.settle = settlements.add
    decisions = DecisionBuilder(server, health, signer)
    requests = RequestAdmission(
        configuration=configuration,
        counters=counters,
        health=health,
        batcher=batcher,
        local=redis_fallback.limits,
        domains=RequestDomains(environment, settlements, service=service, together=store.together),
        settlements=settlements,
        leases=leases,
        decisions=decisions,
    )
    guards = CallGuards(configuration, monotonic)
    breakers: dict[str, FleetBreaker] = {}
    stops = AccountStops(
        environment=environment,
        server=server,
        configuration=configuration,
        store=drill_store,
        health=health,
        breakers=breakers,
    )
    calls = CallAdmission(
        environment=environment,
        configuration=configuration,
        counters=counters,
        health=health,
        batcher=batcher,
        reports=reports,
        local=redis_fallback.limits,
        settlements=settlements,
        leases=leases,
        decisions=decisions,
        guards=guards,
        probes=Probes(lambda breaker: reports.add(breaker, urgent=True)),
        on_change=on_change,
        stops=stops,
        breakers=breakers,
    )
    return Admission(
        store=drill_store,
        redis_fallback=redis_fallback,
        requests=requests,
        calls=calls,
        accounts=AccountDomains(environment, settlements),
        guarded=GuardedCalls(calls, guards),
    )


def compose_retries(configuration: Configuration, admission: Admission) -> Retries:
    """Make what allows retries, by the configuration and by what the pod knows about its calls."""

    def settings(dependency: str) -> Retry | None:
        known = configuration.snapshot.dependency(dependency)
        return known.protection.retry if known is not None and known.protection is not None else None

    def protection() -> PodProtection | None:
        return configuration.snapshot.policy.protection

    def capacity(dependency: str) -> Capacity:
        closed = admission.is_closed(dependency)
        guard = admission.guards.find(dependency)
        if guard is None or guard.bulkhead is None:
            return Capacity(closed=closed)
        used = guard.bulkhead.in_flight / guard.bulkhead.settings.max_concurrent
        return Capacity(closed=closed, mean_wait_s=guard.waits.mean(guard.clock()), saturation=used)

    return Retries(
        settings=settings,
        protection=protection,
        now_us=lambda: configuration.clock.now_us(),
        live_servers=lambda: configuration.live_servers,
        capacity=capacity,
    )
