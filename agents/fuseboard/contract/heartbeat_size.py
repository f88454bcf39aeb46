"""Makes a heartbeat smaller: a pod before it sends one, a gateway before it keeps one.

What an operator misses least is cut first, in this order:

1. samples of refusals
2. names of the locks that are held
3. counts by rule of single tenants
4. how long calls took, from the last dependency
5. how calls failed
6. what protects calls, from the least busy dependency
7. tenants, from the least busy one
8. counts by rule of all tenants together
9. wanted tenants beyond the first few: the next heartbeat asks for them again
10. dependencies
11. breakers, first those that are closed, without an override
12. the first few wanted tenants

What is too long stays so in the next heartbeat. While Redis is down, a pod gets its tenants from the gateway
only, so it always asks for some.

Who the pod is, the configuration it applied, its mode, and its totals are never cut.
"""

from collections.abc import Callable

from msgspec.structs import replace

from fuseboard.contract.sync import BreakerView, SyncRequest
from fuseboard.contract.words import BreakerState

#: Wanted tenants that are asked for also in a heartbeat that is cut, and the most characters of their names.
ALWAYS_WANTED = 50
ALWAYS_WANTED_LETTERS = 4_000


def cut_to(
    request: SyncRequest, most: int, pack: Callable[[SyncRequest], bytes]
) -> tuple[SyncRequest, bytes]:
    """``request``, or what is left of it in at most ``most`` bytes; and these bytes, as ``pack`` writes it.

    ``cut`` counts what was left out. What is never cut may be longer than ``most``.
    """
    packed = pack(request)
    for count, keep in _PARTS:
        left = count(request)
        while left and len(packed) > most:
            # Always by an eighth: what is too long may be in another part.
            left = min(left * 7 // 8, left * most // len(packed))
            kept = keep(request, left)
            request = replace(kept, cut=request.cut + _entries(request) - _entries(kept))
            packed = pack(request)
    return request, packed


def keep_breakers(request: SyncRequest, most: int) -> SyncRequest:
    """With at most ``most`` breakers: those that are closed, without an override, are left out first."""
    # Sorting is stable, so that breakers keep their order from one heartbeat to the next.
    return replace(request, breakers=tuple(sorted(request.breakers, key=_is_at_rest))[:most])


def _is_at_rest(view: BreakerView) -> bool:
    return view.state is BreakerState.CLOSED and view.override is None


def _keep_refusals(request: SyncRequest, most: int) -> SyncRequest:
    return replace(request, refusals=request.refusals[:most])


def _named_locks(request: SyncRequest) -> int:
    return len(request.primitives.held) if request.primitives is not None else 0


def keep_named_locks(request: SyncRequest, most: int) -> SyncRequest:
    """With the names of at most ``most`` locks: those that are held longest."""
    if request.primitives is None:
        return request
    return replace(request, primitives=replace(request.primitives, held=request.primitives.held[:most]))


def _tenants_by_rule(request: SyncRequest) -> int:
    return max((at for at, tenant in enumerate(request.counters.tenants, 1) if tenant.rules), default=0)


def _keep_tenants_by_rule(request: SyncRequest, most: int) -> SyncRequest:
    tenants = request.counters.tenants
    kept = tenants[:most] + tuple(replace(tenant, rules=()) for tenant in tenants[most:])
    return replace(request, counters=replace(request.counters, tenants=kept))


def _latencies(request: SyncRequest) -> int:
    return max((at for at, one in enumerate(request.counters.dependencies, 1) if one.latency), default=0)


def _keep_latencies(request: SyncRequest, most: int) -> SyncRequest:
    all_of = request.counters.dependencies
    kept = all_of[:most] + tuple(replace(one, latency=()) for one in all_of[most:])
    return replace(request, counters=replace(request.counters, dependencies=kept))


def _keep_tenants(request: SyncRequest, most: int) -> SyncRequest:
    return replace(request, counters=replace(request.counters, tenants=request.counters.tenants[:most]))


def _keep_protection(request: SyncRequest, most: int) -> SyncRequest:
    return replace(request, protection=request.protection[:most])


def _keep_failures(request: SyncRequest, most: int) -> SyncRequest:
    return replace(request, failures=request.failures[:most])


def _keep_rules(request: SyncRequest, most: int) -> SyncRequest:
    return replace(request, counters=replace(request.counters, rules=request.counters.rules[:most]))


def _keep_wanted(request: SyncRequest, most: int) -> SyncRequest:
    return replace(request, want=request.want[:most])


def _always_wanted(request: SyncRequest) -> int:
    """How many of the wanted tenants are left out last."""
    letters = 0
    for at, tenant in enumerate(request.want[:ALWAYS_WANTED]):
        letters += len(tenant)
        if letters > ALWAYS_WANTED_LETTERS:
            return at
    return min(ALWAYS_WANTED, len(request.want))


def _wanted_beyond(request: SyncRequest) -> int:
    return len(request.want) - _always_wanted(request)


def _keep_wanted_beyond(request: SyncRequest, most: int) -> SyncRequest:
    return _keep_wanted(request, _always_wanted(request) + most)


def _keep_dependencies(request: SyncRequest, most: int) -> SyncRequest:
    dependencies = request.counters.dependencies[:most]
    return replace(request, counters=replace(request.counters, dependencies=dependencies))


#: How many entries a part has, and a heartbeat with fewer of them.
_PARTS: tuple[tuple[Callable[[SyncRequest], int], Callable[[SyncRequest, int], SyncRequest]], ...] = (
    (lambda request: len(request.refusals), _keep_refusals),
    (_named_locks, keep_named_locks),
    (_tenants_by_rule, _keep_tenants_by_rule),
    (_latencies, _keep_latencies),
    (lambda request: len(request.failures), _keep_failures),
    (lambda request: len(request.protection), _keep_protection),
    (lambda request: len(request.counters.tenants), _keep_tenants),
    (lambda request: len(request.counters.rules), _keep_rules),
    (_wanted_beyond, _keep_wanted_beyond),
    (lambda request: len(request.counters.dependencies), _keep_dependencies),
    (lambda request: len(request.breakers), keep_breakers),
    (lambda request: len(request.want), _keep_wanted),
)


def _entries(request: SyncRequest) -> int:
    counters = request.counters
    by_rule = sum(len(tenant.rules) for tenant in counters.tenants)
    measured = sum(bool(one.latency) for one in counters.dependencies)
    counted = len(counters.tenants) + by_rule + len(counters.rules) + len(counters.dependencies) + measured
    counted += len(request.refusals) + len(request.failures) + _named_locks(request)
    return counted + len(request.protection) + len(request.want) + len(request.breakers)
