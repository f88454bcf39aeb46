"""Puts together the parts of an agent that decide: which part uses which."""

from collections.abc import Callable
from secrets import token_hex
from time import monotonic

from msgspec import Struct, structs

from fuseboard.admission.account_stops import AccountStops
from fuseboard.admission.admission import Admission
from fuseboard.admission.call_admission import CallAdmission
from fuseboard.admission.call_guard import CallGuards
from fuseboard.admission.call_outcomes import CallOutcomes
from fuseboard.admission.decisions import DecisionBuilder
from fuseboard.admission.guarded_calls import GuardedCalls
from fuseboard.admission.pod_breakers import PodBreakers
from fuseboard.admission.request_admission import RequestAdmission
from fuseboard.batching.account_domains import AccountDomains
from fuseboard.batching.batch import Batcher
from fuseboard.batching.domains import RequestDomains
from fuseboard.batching.fleet_leases import Leases
from fuseboard.batching.kept_demands import KeptDemands
from fuseboard.batching.known_spending import KnownSpending
from fuseboard.batching.settlements import Settlements
from fuseboard.breaker.probes import Probes
from fuseboard.breaker.reports import Reports
from fuseboard.calling.retries import Capacity, Retries
from fuseboard.configuration.current_configuration import Configuration
from fuseboard.contract.protection import PodProtection, Retry
from fuseboard.decision import Signer
from fuseboard.reporting.counters import Counters
from fuseboard.settings import MAX_SUBJECTS
from fuseboard.store import Store
from fuseboard.store.drill_store import DrillStore
from fuseboard.store.health import StoreHealth
from fuseboard.without_redis.local_limits import LocalLimits
from fuseboard.without_redis.redis_fallback import compose_redis_fallback


class _Shared(Struct, frozen=True, kw_only=True):
    """The parts that requests and calls use both."""

    configuration: Configuration
    counters: Counters
    health: StoreHealth
    batcher: Batcher
    local: LocalLimits
    settlements: Settlements
    leases: Leases
    decisions: DecisionBuilder


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
    guards_calls: bool = True,
    most_subjects: int = MAX_SUBJECTS,
) -> Admission:
    """Make everything that takes part in a decision. ``on_change``: the mode or a breaker has changed.

    Without ``guards_calls``, there are no bulkheads and no local rates. The rules of ``most_subjects``
    tenants, addresses and keys are kept prepared.
    """
    drill_store = DrillStore(store)
    health = StoreHealth(
        store=drill_store, environment=environment, tuning=lambda: configuration.snapshot.tuning
    )
    spending = KnownSpending(most_subjects)
    redis_fallback = compose_redis_fallback(
        configuration=configuration, store=drill_store, health=health, spending=spending
    )
    decisions = DecisionBuilder(server, health, signer)
    shared = _compose_shared(
        configuration,
        counters,
        drill_store,
        health,
        spending,
        redis_fallback.limits,
        decisions,
        most_subjects,
    )
    redis_fallback.limits.settle = shared.settlements.add
    kept = KeptDemands(most_subjects)
    domains = RequestDomains(
        environment,
        shared.settlements,
        kept=kept,
        service=service,
        together=store.together,
        most_subjects=most_subjects,
    )
    reports = Reports(store=drill_store, health=health, tuning=lambda: configuration.snapshot.tuning)
    guards = CallGuards(configuration, monotonic, enabled=guards_calls)
    calls = _compose_calls(shared, environment, drill_store, reports, guards, kept, on_change)
    return Admission(
        store=drill_store,
        redis_fallback=redis_fallback,
        requests=RequestAdmission(domains=domains, **structs.asdict(shared)),
        calls=calls,
        outcomes=_compose_outcomes(calls, reports),
        accounts=AccountDomains(environment, shared.settlements, kept),
        guarded=GuardedCalls(calls, calls.guards),
    )


def _compose_shared(
    configuration: Configuration,
    counters: Counters,
    store: DrillStore,
    health: StoreHealth,
    spending: KnownSpending,
    local: LocalLimits,
    decisions: DecisionBuilder,
    most_subjects: int,
) -> _Shared:
    batcher = Batcher(
        store=store,
        health=health,
        meter=counters,
        tuning=lambda: configuration.snapshot.tuning,
        token_prefix=f"{token_hex(4)}-",
        spending=spending,
    )
    settlements = Settlements(store=store, health=health, spending=spending, most_subjects=most_subjects)
    leases = Leases(
        batcher=batcher,
        settlements=settlements,
        live_servers=lambda: configuration.live_servers,
        usable=lambda: health.usable,
    )
    return _Shared(
        configuration=configuration,
        counters=counters,
        health=health,
        batcher=batcher,
        local=local,
        settlements=settlements,
        leases=leases,
        decisions=decisions,
    )


def _compose_calls(
    shared: _Shared,
    environment: str,
    store: DrillStore,
    reports: Reports,
    guards: CallGuards,
    kept: KeptDemands,
    on_change: Callable[[], None],
) -> CallAdmission:
    configuration, server = shared.configuration, shared.decisions.server
    breakers = PodBreakers(
        environment=environment,
        server=server,
        configuration=configuration,
        counters=shared.counters,
        settlements=shared.settlements,
        leases=shared.leases,
        kept=kept,
        reports=reports,
        on_change=on_change,
    )
    stops = AccountStops(
        environment=environment,
        server=server,
        configuration=configuration,
        store=store,
        health=shared.health,
        breakers=breakers,
    )
    return CallAdmission(
        environment=environment,
        guards=guards,
        probes=Probes(lambda breaker: reports.add(breaker, urgent=True)),
        on_change=on_change,
        stops=stops,
        breakers=breakers,
        **structs.asdict(shared),
    )


def _compose_outcomes(calls: CallAdmission, reports: Reports) -> CallOutcomes:
    return CallOutcomes(
        configuration=calls.configuration,
        counters=calls.counters,
        health=calls.health,
        reports=reports,
        local=calls.local,
        settlements=calls.settlements,
        decisions=calls.decisions,
        stops=calls.stops,
        breakers=calls.breakers,
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
