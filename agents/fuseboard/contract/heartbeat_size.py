"""Makes a heartbeat smaller: a pod before it sends one, a gateway before it keeps one.

What an operator misses least is cut first, in this order:

1. samples of refusals
2. what vendors state about their limits
3. names of the locks that are held
4. counts by rule of single tenants
5. how long calls took, from the last dependency
6. how calls failed
7. what protects calls, from the least busy dependency
8. tenants, from the least busy one
9. counts by rule of all tenants together
10. wanted tenants beyond the first few: the next heartbeat asks for them again
11. dependencies
12. breakers, first those that are closed, without an override
13. the first few wanted tenants

What is too long stays so in the next heartbeat. While Redis is down, a pod gets its tenants from the gateway
only, so it always asks for some.

Who the pod is, the configuration it applied, its mode, and its totals are never cut.
"""

from collections.abc import Callable
from typing import TypeAlias

from msgspec.structs import replace

from fuseboard.contract.sync import BreakerView, SyncRequest
from fuseboard.contract.words import BreakerState

#: Wanted tenants that are asked for also in a heartbeat that is cut, and the most characters of their names.
ALWAYS_WANTED = 50
ALWAYS_WANTED_LETTERS = 4_000

#: How many entries a part of a heartbeat has, and the heartbeat with fewer of them.
Part: TypeAlias = tuple[Callable[[SyncRequest], int], Callable[[SyncRequest, int], SyncRequest]]


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


def _named_locks(request: SyncRequest) -> int:
    return len(request.primitives.held) if request.primitives is not None else 0


def keep_named_locks(request: SyncRequest, most: int) -> SyncRequest:
    """With the names of at most ``most`` locks: those that are held longest."""
    if request.primitives is None:
        return request
    return replace(request, primitives=replace(request.primitives, held=request.primitives.held[:most]))


def _list(name: str) -> Part:
    """The entries of a list of the heartbeat."""

    def keep(request: SyncRequest, most: int) -> SyncRequest:
        return replace(request, **{name: getattr(request, name)[:most]})

    return lambda request: len(getattr(request, name)), keep


def _counters(name: str) -> Part:
    """The entries of a list of counters."""

    def keep(request: SyncRequest, most: int) -> SyncRequest:
        kept = getattr(request.counters, name)[:most]
        return replace(request, counters=replace(request.counters, **{name: kept}))

    return lambda request: len(getattr(request.counters, name)), keep


def _details(name: str, detail: str) -> Part:
    """The entries of a list of counters up to the last with this detail. Those beyond ``most`` lose it."""

    def count(request: SyncRequest) -> int:
        entries = enumerate(getattr(request.counters, name), 1)
        return max((at for at, one in entries if getattr(one, detail)), default=0)

    def keep(request: SyncRequest, most: int) -> SyncRequest:
        entries = getattr(request.counters, name)
        kept = entries[:most] + tuple(replace(one, **{detail: ()}) for one in entries[most:])
        return replace(request, counters=replace(request.counters, **{name: kept}))

    return count, keep


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
    return replace(request, want=request.want[: _always_wanted(request) + most])


_PARTS: tuple[Part, ...] = (
    _list("refusals"),
    _list("seen"),
    (_named_locks, keep_named_locks),
    _details("tenants", "rules"),
    _details("dependencies", "latency"),
    _list("failures"),
    _list("protection"),
    _counters("tenants"),
    _counters("rules"),
    (_wanted_beyond, _keep_wanted_beyond),
    _counters("dependencies"),
    (lambda request: len(request.breakers), keep_breakers),
    _list("want"),
)


def _entries(request: SyncRequest) -> int:
    counters = request.counters
    by_rule = sum(len(tenant.rules) for tenant in counters.tenants)
    measured = sum(bool(one.latency) for one in counters.dependencies)
    counted = len(counters.tenants) + by_rule + len(counters.rules) + len(counters.dependencies) + measured
    counted += len(request.seen) + len(request.refusals) + len(request.failures) + _named_locks(request)
    return counted + len(request.protection) + len(request.want) + len(request.breakers)
